"""The ends of the range: scales, sizes, groups, separation, non-finite inputs, block edges."""

from __future__ import annotations

import dataclasses
import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform_kernels import engine
from support.accuracy import check, check_bar, relative_error
from support.backends import every_backend, native_missing, run, without_fused
from support.cases import HALF, Case, Spec, build
from support.oracle import Outcome, dense_oracle, loop_oracle, solved


def assert_matches(spec: Spec, backend: str) -> None:
    case, want = solved(spec)
    check(case, run(case, backend), want)


EXTREMES = {
    "cosines over [-1, 1] at scale 100": Spec(65, 70, 2, "float32", "random", "circle", 100.0),
    "the same with everything": Spec(
        64, 64, 3, "float32", "random", "circle", 100.0, "1d", "vector", 3, "random", "dense"
    ),
    "scale 0": Spec(
        33, 20, 16, targets="random", scale=0.0, bias="vector", hard=2, margin="random"
    ),
    "R = C = 1": Spec(1, 1, 8),
    "R = 1": Spec(1, 300, 8, targets="random", hard=4, margin="random", seed=1),
    "C = 1": Spec(300, 1, 8, targets="shared", hard=1, margin="random", seed=1),
    "D = 1": Spec(40, 30, 1, targets="random", scale=100.0, hard=2, margin="random"),
    "no anchor anywhere": Spec(40, 30, 8, targets="none", hard=2, margin="random", bias="vector"),
    "groups leave only the positive": Spec(30, 30, 8, groups="all_equal", bias="vector"),
    "norms of 0.2 to 5": Spec(65, 50, 32, "float32", "random", "unnormalised", 4.0),
    "norms of up to 50": Spec(20, 20, 4, "float32", "random", "unnormalised", 100.0),
    "shared targets, all columns open": Spec(64, 5, 16, targets="shared", scale=50.0),
    "more columns closed than open": Spec(9, 2, 4, targets="random", bias="vector_inf"),
}


@every_backend("reference")
@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_extreme(backend, name, dtype):
    assert_matches(dataclasses.replace(EXTREMES[name], dtype=dtype), backend)


@every_backend()
def test_rows_without_anchor_have_exactly_no_loss_and_no_gradient(backend):
    case = build(Spec(40, 30, 8, targets="none", hard=2, margin="random", bias="vector"))
    got = run(case, backend)
    for name in ("row_loss", "col_loss", *Outcome.GRADIENTS):
        assert not getattr(got, name).any(), name


@every_backend()
def test_only_the_positive_left_is_exactly_no_loss_and_no_gradient(backend):
    got = run(build(Spec(30, 30, 8, groups="all_equal", scale=50.0)), backend)
    for name in ("row_loss", "col_loss", "rows", "cols", "scale"):
        assert not getattr(got, name).any(), name


@every_backend()
def test_one_column_hard_for_several_rows(backend):
    case = build(Spec(50, 60, 16, targets="random", scale=20.0, upstream="weights"))
    case.hard_cols = torch.full((50, 2), 7)
    case.hard_cols[:, 1] = torch.arange(50) % 3
    case.margin = torch.rand(50, 2) / 5
    check(case, run(case, backend), loop_oracle(case))


@every_backend()
def test_the_same_hard_column_twice_adds_its_margins(backend):
    case = build(Spec(20, 20, 8, scale=10.0))
    case.hard_cols = torch.full((20, 4), 3)
    case.margin = torch.full((20, 4), 0.05)
    check(case, run(case, backend), loop_oracle(case))


# Positives with a cosine of about 0.8 and little spread elsewhere: at these scales the positive is
# 20 to 40 nats above the log-sum-exp of the rest.
SEPARATED = [(300, 300, 512, 45.0), (100, 100, 1024, 42.0), (257, 257, 96, 54.0)]


def separated(rows: int, cols: int, dim: int, scale: float, dtype: str = "float32") -> Case:
    case = build(Spec(rows, cols, dim, dtype, scale=scale, seed=rows))
    near = 0.3 * case.rows.double() + 0.5 * case.cols.double()
    case.rows = (near / near.norm(dim=1, keepdim=True)).to(case.rows.dtype)
    return case


@every_backend()
@pytest.mark.parametrize("size", SEPARATED)
def test_well_separated_pairs(backend, size):
    case = separated(*size)
    want = dense_oracle(case)
    # A loss of softplus(-d) is exp(-d) here: the construction is what it claims to be.
    nats = -want.row_loss.log()
    assert nats.min() > 20
    assert nats.max() < 40
    got = run(case, backend)
    check(case, got, want)
    for name in Outcome.GRADIENTS[:3]:
        assert relative_error(getattr(got, name), getattr(want, name)) < 1e-4, name
    assert relative_error(got.row_loss, want.row_loss) < 1e-4


@every_backend()
@pytest.mark.parametrize("dtype", ["float32", *HALF])
@pytest.mark.parametrize("column", [0, 8, 16])
@pytest.mark.parametrize("block", [None, 8 << 10])
def test_nan_in_one_row(backend, block, column, dtype, monkeypatch):
    """An odd D, with the nan at either end of the row, where a neighbour could read it."""
    spec = Spec(70, 90, 17, dtype, targets="random", scale=20.0)
    case = _in_blocks(build(spec), block, monkeypatch)
    want = dense_oracle(case)
    case.rows[11, column] = float("nan")
    case.row_target[11] = 5
    got = run(case, backend)
    others = torch.arange(70) != 11
    check_losses(got.row_loss[others], want.row_loss[others])
    assert got.row_loss[11].isnan()
    anchors = case.col_target >= 0
    assert not got.col_loss[anchors].isfinite().any()
    assert not got.col_loss[~anchors].any()


@every_backend()
def test_nan_in_a_column_that_is_nobodys_anchor_reaches_every_row(backend):
    case = build(Spec(40, 50, 16, targets="row_only", scale=20.0))
    case.cols[49] = float("nan")
    got = run(case, backend)
    assert got.row_loss.isnan().all()
    assert not got.col_loss.any()


@every_backend()
@pytest.mark.parametrize("value", [float("inf"), -float("inf")])
@pytest.mark.parametrize("block", [None, 8 << 10])
def test_inf_in_one_row(backend, value, block, monkeypatch):
    case = _in_blocks(build(Spec(70, 90, 16, targets="explicit", scale=20.0)), block, monkeypatch)
    want = dense_oracle(case)
    case.rows[11, 3] = value
    got = run(case, backend)
    others = torch.arange(70) != 11
    check_losses(got.row_loss[others], want.row_loss[others])
    assert not got.row_loss[11].isfinite()
    # The row's logits are +inf or -inf. A column in whose rest it is -inf loses one term, no more.
    logit = value * case.cols[:, 3].sign()
    touched = (case.col_target >= 0) & ((logit > 0) | (case.col_target == 11))
    assert not got.col_loss[touched].isfinite().any()
    kept = (case.col_target >= 0) & ~touched
    without = dense_oracle(_without_row(case, 11)).col_loss
    check_losses(got.col_loss[kept], without[kept])


def _without_row(case: Case, row: int) -> Case:
    keep = torch.arange(len(case.rows)) != row
    shifted = case.col_target - (case.col_target > row).long()
    shifted[case.col_target == row] = -1
    return dataclasses.replace(
        case,
        rows=case.rows[keep],
        row_target=case.row_target[keep],
        col_target=shifted,
        g=case.g[keep],
    )


def _in_blocks(case: Case, workspace: int | None, monkeypatch: pytest.MonkeyPatch) -> Case:
    """Optionally makes the engine cut the case in several blocks."""
    if workspace is not None:
        small_workspace(monkeypatch, workspace)
    return case


def small_workspace(monkeypatch: pytest.MonkeyPatch, workspace: int) -> None:
    monkeypatch.setattr(engine, "CACHE_BYTES", 0)
    monkeypatch.setattr(engine, "WORKSPACE_BYTES", workspace)


def count_blocks(monkeypatch: pytest.MonkeyPatch, backend: str) -> list[None]:
    """A list that grows by one for every block whose gradient the backend computes."""
    module = importlib.import_module(f"slipform_kernels.backends.{backend}")
    gradient, calls = module.gradient, []

    def counted(*args):
        calls.append(None)
        return gradient(*args)

    monkeypatch.setattr(module, "gradient", counted)
    return calls


def check_losses(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=1e-6)


@every_backend()
@pytest.mark.parametrize("n_cols", [511, 512, 513, 1025])
@pytest.mark.parametrize("n_rows", [15, 16, 17, 31, 32, 33])
def test_tile_edges(backend, n_rows, n_cols):
    assert_matches(
        Spec(
            n_rows,
            n_cols,
            24,
            targets="random",
            scale=30.0,
            bias="vector_inf",
            hard=2,
            margin="random",
            groups="rare",
            seed=n_cols,
        ),
        backend,
    )


DEPTHS = [1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 65, 127, 129, 255, 257, 511, 513, 1023, 1025]


@every_backend()
@pytest.mark.parametrize("dtype", ["float32", *HALF])
@pytest.mark.parametrize("dim", DEPTHS)
def test_depth_edges(backend, dtype, dim):
    assert_matches(Spec(37, 91, dim, dtype, "random", scale=20.0, hard=1, margin="random"), backend)


@pytest.mark.skipif(native_missing() is not None, reason=native_missing() or "")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_native_with_the_librarys_products(dtype, monkeypatch):
    """Where the extension computes all of it, the tests above take that."""
    without_fused(monkeypatch)
    for name in ("the same with everything", "D = 1", "R = 1", "norms of 0.2 to 5"):
        assert_matches(dataclasses.replace(EXTREMES[name], dtype=dtype), "native")
    small_workspace(monkeypatch, 64 << 10)
    assert_matches(Spec(200, 300, 65, dtype, "random", scale=40.0, bias="vector"), "native")


# Around 4 MiB of similarities, below which the engine keeps them, and around 8 MiB, its workspace;
# with the statement whether it needs more than one block.
EDGES = [
    (1024, 1024, False),
    (1025, 1024, False),
    (1024, 2048, False),
    (1448, 1449, True),
    (2100, 1000, True),
    (450, 4700, True),
]


@every_backend()
@pytest.mark.threads(2)
@pytest.mark.parametrize(("n_rows", "n_cols", "several"), EDGES)
def test_default_block_edges(backend, n_rows, n_cols, several, monkeypatch):
    without_fused(monkeypatch)
    calls = count_blocks(monkeypatch, backend)
    spec = Spec(n_rows, n_cols, 16, "float32", "random", scale=30.0, groups="rare")
    assert_matches(dataclasses.replace(spec, hard=2, margin="random"), backend)
    assert (len(calls) > 1) == several


@every_backend()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@settings(max_examples=40)
@given(
    workspace=st.sampled_from([256, 700, 1024, 3000]),
    n_rows=st.integers(1, 40),
    n_cols=st.integers(1, 40),
    targets=st.sampled_from(["diagonal", "random", "shared"]),
    bias=st.sampled_from([None, "1d", "vector_inf"]),
    seed=st.integers(0, 999),
)
def test_any_block_size(backend, dtype, workspace, n_rows, n_cols, targets, bias, seed):
    spec = Spec(
        n_rows,
        n_cols,
        12,
        dtype,
        targets,
        scale=25.0,
        bias=bias,
        hard=2,
        margin="random",
        groups="rare",
        upstream="weights",
        seed=seed,
    )
    with pytest.MonkeyPatch.context() as patch:
        without_fused(patch)
        small_workspace(patch, workspace)
        assert_matches(spec, backend)


@every_backend()
def test_blocks_of_one_entry(backend, monkeypatch):
    without_fused(monkeypatch)
    small_workspace(monkeypatch, 1)
    calls = count_blocks(monkeypatch, backend)
    assert_matches(
        Spec(6, 7, 5, targets="random", hard=2, margin="random", bias="vector", groups="rare"),
        backend,
    )
    assert len(calls) == 42


BITS = Spec(
    400,
    700,
    48,
    targets="random",
    scale=30.0,
    bias="vector",
    hard=2,
    margin="random",
    groups="rare",
)


def assert_same_bits(first: Outcome, second: Outcome, names: tuple[str, ...]) -> None:
    for name in names:
        a, b = getattr(first, name), getattr(second, name)
        assert torch.equal(a, b), f"{name}: {int((a != b).sum())} of {a.numel()} entries differ"


@every_backend()
@pytest.mark.threads(2)
@pytest.mark.parametrize("dtype", ["float32", *HALF])
@pytest.mark.parametrize("block", [None, 200 << 10])
def test_two_runs_give_equal_bits(backend, dtype, block, monkeypatch):
    case = _in_blocks(build(dataclasses.replace(BITS, dtype=dtype)), block, monkeypatch)
    first, second = run(case, backend), run(case, backend)
    assert_same_bits(first, second, ("row_loss", "col_loss", *Outcome.GRADIENTS))


@every_backend()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("block", [None, 200 << 10])
def test_number_of_threads_does_not_matter(backend, dtype, block, monkeypatch):
    case = _in_blocks(build(dataclasses.replace(BITS, dtype=dtype)), block, monkeypatch)
    want = dense_oracle(case)
    results, products = [], []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(run(case, backend))
        products.append(case.rows @ case.cols.t())
        check_bar(case, results[-1], want)
    # A library product may depend on the number of threads. Where it does not, nothing may.
    if all(torch.equal(products[0], p) for p in products):
        for other in results[1:]:
            assert_same_bits(results[0], other, ("row_loss", "col_loss", *Outcome.GRADIENTS))


@every_backend()
def test_permuted_samples_give_permuted_results(backend):
    case = build(dataclasses.replace(BITS, targets="diagonal", cols=400, bias=None))
    case.row_target = case.col_target = torch.arange(400)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(1))
    position = order.argsort()
    hard = torch.where(case.hard_cols >= 0, position[case.hard_cols.clamp(min=0)], -1)
    moved = Case(
        case.rows[order],
        case.cols[order],
        case.scale,
        hard_cols=hard[order],
        margin=case.margin[order],
        row_group=case.row_group[order],
        col_group=case.col_group[order],
        g=case.g[order],
        h=case.h[order],
    )
    got, want = run(moved, backend), run(case, backend)
    for name in ("row_loss", "col_loss", "rows", "cols", "margin"):
        assert relative_error(getattr(got, name), getattr(want, name)[order]) < 1e-6, name
    assert relative_error(got.scale, want.scale) < 1e-6


@every_backend()
def test_inputs_are_not_changed(backend):
    case = build(BITS)
    before = {n: v.clone() for n, v in vars(case).items() if torch.is_tensor(v)}
    run(case, backend)
    for name, value in before.items():
        assert torch.equal(value, getattr(case, name)), name
