"""Tuning: only on request, kept in a file, used where it fits, and harmless where it is broken."""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
import warnings
from dataclasses import replace
from types import SimpleNamespace

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


def test_a_candidate_that_spills_is_kept_only_where_all_do(monkeypatch):
    first, second, *_ = tuning.candidates("gradient", 80, "half")
    assert second != first
    for spilling, wanted in (([second], first), ([], second), (None, second)):
        monkeypatch.setattr(
            tuning, "_spills", lambda kernel, problem, config, s=spilling: s is None or config in s
        )
        assert tune(favourite=1)["gradient"] == wanted


@pytest.mark.parametrize("kernel", configs.KERNELS)
@pytest.mark.parametrize("words", [0, 3])
def test_spills_are_those_of_the_compiled_kernel(kernel, words, monkeypatch):
    compiled = SimpleNamespace(n_spills=words)
    monkeypatch.setattr(launch, "partial_statistics", lambda *args: (compiled, None, None))
    monkeypatch.setattr(tuning, "_call", lambda *args: lambda: compiled)
    rows = SimpleNamespace(device=torch.device("cuda"), shape=(4, 8))
    config = configs.TABLE[kernel, 90, "half"]
    assert tuning._spills(kernel, replace(problem(), rows=rows), config) == (words > 0)


def test_what_was_measured_is_kept_where_the_next_kernel_fails(cache):
    calls = []

    def timer(function):
        calls.append(function)
        if len(calls) > len(tuning.candidates("statistics", 80, "half")):
            raise KeyboardInterrupt
        return float(len(calls))

    with pytest.raises(KeyboardInterrupt):
        tuning.tune(64, 64, 64, device="cpu", timer=timer)
    (kept,) = json.loads(cache.read_text())
    assert ", statistics, " in kept


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_file_has_the_permissions_of_the_umask(cache, umask):
    before = os.umask(umask)
    try:
        tune(favourite=1)
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o666 & ~umask
    assert [path.name for path in cache.parent.iterdir()] == [tuned.FILE]


def test_a_folder_that_cannot_be_written_is_found_before_anything_runs(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / tuned.FILE).mkdir(parents=True)
    for folder in (tmp_path / "file" / "in it", tmp_path / "taken"):
        monkeypatch.setenv("SLIPFORM_CACHE", str(folder))
        with pytest.raises(OSError, match=rf"^SLIPFORM_CACHE: got {folder}.*; expected a folder"):
            tuning.tune(64, 64, 64, device="cpu", timer=never)


def never(function):
    raise AssertionError("nothing should be timed")


WRONG = {
    "R 0": ({"R": 0}, ValueError, "R: got 0"),
    "R negative": ({"R": -4}, ValueError, "R: got -4"),
    "R float": ({"R": 64.0}, TypeError, "R: got 64.0"),
    "R bool": ({"R": True}, TypeError, "R: got True"),
    "C 0": ({"C": 0}, ValueError, "C: got 0"),
    "C 2^31": ({"C": 2**31}, ValueError, "C: got 2147483648"),
    "D 0": ({"D": 0}, ValueError, "D: got 0"),
    "D 2049": ({"D": 2049}, ValueError, "D: got 2049"),
    "K negative": ({"K": -1}, ValueError, "K: got -1"),
    "K None": ({"K": None}, TypeError, "K: got None"),
    "dtype float64": ({"dtype": torch.float64}, ValueError, "dtype: got torch.float64"),
    "dtype text": ({"dtype": "bf16"}, ValueError, "dtype: got 'bf16'"),
    "precision": ({"precision": "bf16x3"}, ValueError, "precision: got 'bf16x3'"),
    "precision None": ({"precision": None}, ValueError, "precision: got None"),
    "bias": ({"bias": True}, ValueError, "bias: got True"),
    "groups": ({"groups": 1}, ValueError, "groups: got 1"),
    "device": ({"device": "gpu"}, ValueError, "device: got 'gpu'"),
    "device None": ({"device": None}, ValueError, "device: got None"),
    "meta": ({"device": "meta"}, ValueError, "device: got 'meta'"),
    "cpu without a timer": ({"device": "cpu", "timer": None}, ValueError, "device: got 'cpu'"),
    "timer": ({"timer": 3}, TypeError, "timer: got 3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_of_tune(name, cache):
    change, error, message = WRONG[name]
    given = {"R": 64, "C": 64, "D": 64, "device": "cpu", "timer": never, **change}
    with pytest.raises(error, match=rf"^{re.escape(message)}; expected ."):
        tuning.tune(**given)
    assert not cache.parent.exists()


def test_no_gpu_is_said_clearly(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for options in ({}, {"timer": never}, {"device": "cuda:1"}):
        with pytest.raises(RuntimeError, match=r"^device: got 'cuda.*expected a CUDA.* finds none"):
            tuning.tune(64, 64, 64, **options)


def test_other_gpus_that_cannot_serve(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    for device, reason in (("cuda:2", "there are 2"), ("cuda", "capability is below 8.0")):
        with pytest.raises(RuntimeError, match=reason):
            tuning.tune(64, 64, 64, device=device)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET is set"):
        tuning.tune(64, 64, 64)


@pytest.mark.parametrize("bias", ["none", "scalar", "vector"])
@pytest.mark.parametrize("groups", [False, True])
def test_bias_and_groups_are_measured_and_looked_up_apart(bias, groups):
    """They are other code: what holds more vectors may spill where the plain one does not."""
    best = tune(favourite=2, bias=bias, groups=groups)["gradient"]
    table = configs.TABLE["gradient", 80, "half"]
    assert best != table
    shapes = {"none": None, "scalar": torch.zeros(()), "vector": torch.zeros(4)}
    ids = torch.arange(4)
    for kind, with_groups in itertools.product(shapes, (False, True)):
        like = replace(problem(), bias=shapes[kind])
        if with_groups:
            like = replace(like, row_group=ids, col_group=ids)
        wanted = best if (kind, with_groups) == (bias, groups) else table
        assert launch.config_for("gradient", like) == wanted


def test_the_sample_is_a_problem_like_the_wanted_one():
    sample = tuning.Sample(5, 7, 6, torch.float16, 2, "vector", True, "tf32")
    made = sample.problem(torch.device("cpu"))
    assert made.rows.shape == (5, 6)
    assert made.cols.dtype == torch.float16
    assert made.bias.shape == (7,)
    assert made.hard_cols.tolist() == [[5, 6], [0, 1], [2, 3], [4, 5], [6, 0]]
    assert made.margin.shape == (5, 2)
    assert made.col_target.tolist() == [0, 1, 2, 3, 4, -1, -1]
    assert not torch.isin(made.row_group, made.col_group).any()
    assert made.precision == "tf32"


@pytest.mark.parametrize("kind", ["half", "tf32", "ieee"])
@pytest.mark.parametrize("architecture", configs.ARCHITECTURES)
def test_the_table_is_the_first_candidate(architecture, kind):
    for kernel in configs.KERNELS:
        found = tuning.candidates(kernel, architecture, kind)
        assert found[0] == configs.TABLE[kernel, architecture, kind]
        assert len(set(found)) == len(found) > 2
