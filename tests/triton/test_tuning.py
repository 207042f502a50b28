"""Tuning: only on request, kept in a file, used where it fits, and harmless where it is broken."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

import pytest
import torch

from slipform_kernels.backends.triton import configs, launch, tuned, tuning
from slipform_kernels.problem import Problem


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIPFORM_CACHE", str(tmp_path / "slipform"))
    tuned._load.cache_clear()
    yield tmp_path / "slipform" / tuned.FILE
    tuned._load.cache_clear()


def problem(D: int = 64, K: int = 0, dtype: torch.dtype = torch.bfloat16) -> Problem:
    features, index = torch.zeros(4, D, dtype=dtype), torch.arange(4)
    made = Problem(features, features, torch.tensor(1.0), None, index, index)
    if K:
        hard = torch.zeros(4, K, dtype=torch.int64)
        made = replace(made, hard_cols=hard, margin=torch.zeros(4, K))
    return made


def tune(favourite: int, **options) -> dict[str, configs.Config]:
    """Tunes with a stub timer that finds one candidate the fastest; no kernel runs."""
    calls = []

    def timer(function):
        assert callable(function)
        calls.append(function)
        return 1.0 if (len(calls) - 1) % len(known) == favourite else 2.0

    known = tuning.candidates("statistics", 80, "half")
    return tuning.tune(64, 64, options.pop("D", 64), device="cpu", timer=timer, **options)


def test_nothing_is_tuned_unless_asked_for(cache):
    for kernel in configs.KERNELS:
        assert launch.config_for(kernel, problem()) == configs.TABLE[kernel, 80, "half"]
    assert not cache.exists()


def test_the_fastest_candidate_is_kept_and_used(cache):
    best = tune(favourite=2)
    for kernel in configs.KERNELS:
        assert best[kernel] == tuning.candidates(kernel, 80, "half")[2]
        assert best[kernel] != configs.TABLE[kernel, 80, "half"]
        assert launch.config_for(kernel, problem()) == best[kernel]
    assert len(json.loads(cache.read_text())) == 2


def test_it_serves_problems_of_its_kind_alone():
    best = tune(favourite=1, D=300, K=2)["gradient"]
    assert launch.config_for("gradient", problem(D=512, K=2)) == best
    for other in (problem(D=512), problem(D=256, K=2), problem(512, 2, torch.float32)):
        kind = configs.product_kind(other.rows.dtype, other.precision)
        assert launch.config_for("gradient", other) == configs.TABLE["gradient", 80, kind]


def test_later_tuning_adds_and_replaces(cache):
    tune(favourite=1)
    tune(favourite=2, K=1)
    best = tune(favourite=3)
    assert len(json.loads(cache.read_text())) == 4
    assert launch.config_for("statistics", problem()) == best["statistics"]


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        '{"key": 3}',
        '{"key": {"rows": 128}}',
        '{"key": {"rows": 96, "cols": 64, "depth": 64, "warps": 4, "stages": 3}}',
    ],
)
def test_a_broken_file_warns_once_and_is_ignored(cache, text):
    cache.parent.mkdir()
    cache.write_text(text)
    with pytest.warns(UserWarning, match="cannot be read"):
        found = launch.config_for("gradient", problem())
    assert found == configs.TABLE["gradient", 80, "half"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launch.config_for("gradient", problem())


def test_candidates_that_do_not_fit_are_left_out(monkeypatch):
    import triton

    first = tuning.candidates("gradient", 80, "half")[0]

    def timer(function):
        if not hasattr(timer, "seen"):
            timer.seen = True
            raise triton.OutOfResources(200_000, 100_000, "shared memory")
        return 1.0

    assert tuning.tune(64, 64, 64, device="cpu", timer=timer)["statistics"] != first


def test_no_candidate_at_all_is_an_error():
    import triton

    def timer(function):
        raise triton.OutOfResources(200_000, 100_000, "shared memory")

    with pytest.raises(RuntimeError, match="no configuration of the statistics kernel runs"):
        tuning.tune(64, 64, 64, device="cpu", timer=timer)


@pytest.mark.parametrize("kind", ["half", "tf32", "ieee"])
@pytest.mark.parametrize("architecture", configs.ARCHITECTURES)
def test_the_table_is_the_first_candidate(architecture, kind):
    for kernel in configs.KERNELS:
        found = tuning.candidates(kernel, architecture, kind)
        assert found[0] == configs.TABLE[kernel, architecture, kind]
        assert len(set(found)) == len(found) > 2
