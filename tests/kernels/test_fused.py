"""The CPU's fused kernels (csrc/fused_cpu.cpp): parts of the matrix, kept similarities, threads.

The tests of all backends, under `native`, run them as well, on smaller problems.
"""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path

import pytest
import torch

from slipform_kernels import ClipLoss, engine, ops, two_way_cross_entropy
from slipform_kernels.backends import native, native_fused
from support.accuracy import check, relative_error
from support.backends import native_missing, run
from support.cases import Spec, build
from support.oracle import Outcome, dense_oracle, solved


def serves(dtype: torch.dtype) -> bool:
    if native_missing() is not None:
        return False
    features = torch.zeros(600, 600, dtype=dtype)
    problem = ops.problem_of(features, features, torch.ones(()), *[None] * 7, precision="ieee")
    return native.whole(problem) is native_fused


TYPES = [name for name in ("float32", "bfloat16") if serves(getattr(torch, name))]
pytestmark = pytest.mark.skipif(not TYPES, reason="no fused kernels for this processor or build")

EVERYTHING = Spec(
    *(100, 130, 40, "float32", "random"),
    scale=30.0,
    bias="vector",
    hard=2,
    margin="random",
    groups="rare",
)

# Backward takes 2,016 rows and 1,024 columns at a time, forward 12,288 and 2,048. Tiles have 32
# rows and 512 columns, and panels of packed features 64.
SHAPES = [
    (2015, 1023),
    (2016, 1024),
    (2017, 1025),
    (2049, 2051),
    (4033, 63),
    (33, 4100),
    (14_000, 7),
    (31, 513),
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("n_rows", "n_cols"), SHAPES)
def test_parts_of_the_matrix(n_rows, n_cols, dtype):
    spec = dataclasses.replace(EVERYTHING, rows=n_rows, cols=n_cols, dim=9, dtype=dtype)
    case, want = solved(spec)
    check(case, run(case, "native"), want)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [1, 2, 63, 65, 130, 513, 1025])
def test_widths(dim, dtype):
    """Of odd numbers, and beyond the columns of one task."""
    case, want = solved(dataclasses.replace(EVERYTHING, dim=dim, dtype=dtype))
    check(case, run(case, "native"), want)


def outcome_at(case, threads: int) -> Outcome:
    torch.set_num_threads(threads)
    return run(case, "native")


@pytest.mark.parametrize("dtype", TYPES)
def test_number_of_threads_changes_no_bit(dtype):
    case = build(dataclasses.replace(EVERYTHING, rows=2100, cols=1100, dim=70, dtype=dtype))
    alone = outcome_at(case, 1)
    for threads in (2, 3, 5):
        other = outcome_at(case, threads)
        for name in ("row_loss", "col_loss", *Outcome.GRADIENTS):
            assert torch.equal(getattr(alone, name), getattr(other, name)), (name, threads)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("budget", "rows_kept"), [(1000, 0), (1700, 1613), (2500, 2500)])
def test_kept_similarities_change_no_bit(budget, rows_kept, dtype, monkeypatch):
    """SLIPFORM_MATRIX_BYTES lets all, some or none of the matrix be kept, whole bands of blocks."""
    spec = dataclasses.replace(EVERYTHING, rows=2500, cols=1300, dtype=dtype)
    case = build(spec)
    monkeypatch.setenv(engine.CACHE_VARIABLE, "0")
    none_kept = run(case, "native")
    monkeypatch.setenv(engine.CACHE_VARIABLE, str(4 * 1300 * budget))
    seen = []
    statistics = native_fused.statistics
    monkeypatch.setattr(
        native_fused, "statistics", lambda p, cache: seen.append(len(cache)) or statistics(p, cache)
    )
    kept = run(case, "native")
    assert seen == [1300 * rows_kept]
    for name in ("row_loss", "col_loss", *Outcome.GRADIENTS):
        assert torch.equal(getattr(none_kept, name), getattr(kept, name)), name


@pytest.mark.parametrize("dtype", TYPES)
def test_far_apart_logits_take_the_exact_branch(dtype):
    """Tiles whose logits, or log-sum-exps, span more than 60 nats, beside tiles that do not."""
    case = build(dataclasses.replace(EVERYTHING, rows=70, cols=1100, dtype=dtype, scale=40.0))
    rows = case.rows.clone()
    rows[:20] *= 12  # the first tile's rows
    case = dataclasses.replace(case, rows=rows)
    check(case, run(case, "native"), dense_oracle(case))


def test_unusual_numbers_stay_in_their_rows_and_columns():
    """An infinite feature spoils its own row, and every column's sum, and nothing else."""
    torch.manual_seed(0)
    rows, cols = torch.randn(70, 20), torch.randn(600, 20)
    target = torch.arange(70)
    rows[33, 4] = torch.inf
    losses = torch.ops.slipform.statistics(
        rows, cols, torch.tensor(1.0), None, target, torch.full((600,), -1), *[None] * 4, "ieee",
        "native",
    )  # fmt: skip
    want = torch.logsumexp(
        (rows @ cols.T).masked_fill(torch.eye(70, 600, dtype=bool), -torch.inf), 1
    )
    fine = torch.arange(70) != 33
    torch.testing.assert_close(losses[0][fine], want[fine])
    assert not torch.isfinite(losses[0][33])


def test_the_mean_of_a_loss_is_one_node_and_the_losses_mean():
    x, y = (torch.nn.functional.normalize(torch.randn(40, 16), dim=1) for _ in range(2))
    x.requires_grad_()
    loss = ClipLoss(backend="native")(x, y, 10.0)
    logits = (10 * x @ y.T).double()
    labels = torch.arange(40)
    want = (
        torch.nn.functional.cross_entropy(logits, labels)
        + torch.nn.functional.cross_entropy(logits.T, labels)
    ) / 2
    assert abs(loss.item() - want.item()) < 1e-6
    assert type(loss.grad_fn).__name__ == "_MeanBackward"
    (grad,) = torch.autograd.grad(3 * loss, x)
    (right,) = torch.autograd.grad(3 * want, x)
    torch.testing.assert_close(grad, right, rtol=1e-5, atol=1e-7)


def test_they_serve_where_the_processor_has_the_instructions():
    """A silent return to the slower path would go unnoticed."""
    flags = Path("/proc/cpuinfo").read_text().split()
    if platform.machine() != "x86_64" or native._native.level() not in ("amx", "avx512"):
        pytest.skip("not at a level that they are written for")
    if "avx512_bf16" in flags or "amx_bf16" in flags:
        assert "bfloat16" in TYPES
    if "AuthenticAMD" in flags:
        assert "float32" in TYPES


@pytest.mark.parametrize("given", ["-1", "4MiB", "1e9", "٣"])
def test_a_budget_that_is_no_number_of_bytes(given, monkeypatch):
    monkeypatch.setenv(engine.CACHE_VARIABLE, given)
    with pytest.raises(ValueError, match=r"SLIPFORM_MATRIX_BYTES: got '.*'; expected a number of"):
        ClipLoss()(torch.randn(3, 4), torch.randn(3, 4), 1.0)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("budget", [1700, 2500])
@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ({"SLIPFORM_BACKEND": "native"}, {"SLIPFORM_BACKEND": "torch"}),
        ({"SLIPFORM_BACKEND": "torch"}, {"SLIPFORM_BACKEND": "native"}),
        ({}, {"SLIPFORM_CPU_LEVEL": "baseline"}),
        ({"SLIPFORM_CPU_LEVEL": "baseline"}, {}),
    ],
)
def test_what_forward_kept_serves_any_backward(forward, backward, budget, dtype, monkeypatch):
    spec = dataclasses.replace(EVERYTHING, rows=2500, cols=1300, dim=16, dtype=dtype)
    case = build(spec).leaves()
    monkeypatch.setenv(engine.CACHE_VARIABLE, str(4 * 1300 * budget))
    with monkeypatch.context() as patch:
        for name, value in forward.items():
            patch.setenv(name, value)
        losses = two_way_cross_entropy(case.rows, case.cols, case.scale, **case.options())
    with monkeypatch.context() as patch:
        for name, value in backward.items():
            patch.setenv(name, value)
        got = torch.autograd.grad(losses, [case.rows, case.cols], [case.g, case.h])
    want = solved(spec)[1]
    bar = 1e-5 if dtype == "float32" else 4e-3
    for ours, right in zip(got, (want.rows, want.cols), strict=True):
        assert relative_error(ours, right) < bar


def test_kept_memory_is_taken_again_and_never_shared():
    first = native.memory(3_000_000)
    first.fill_(1.0)
    second = native.memory(3_000_000)
    second.fill_(2.0)
    assert bool((first == 1).all())
    place = second.data_ptr()
    del second
    smaller = native.memory(2_000_000)
    assert smaller.data_ptr() == place
    assert len(native.memory(500)) == 500
    assert bool((first == 1).all())
