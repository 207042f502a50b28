"""The GPU kernels on the CPU, against the fp64 oracle: whole tiles, edges, blocks, layouts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform_kernels import engine
from slipform_kernels.backends import native_cuda
from support import emulation
from support.accuracy import check, relative_error
from support.backends import run
from support.cases import HALF, Case, Spec, build
from support.oracle import Outcome, dense_oracle, solved
from support.strategies import specs

ALL = Spec(
    150, 300, 40, "bfloat16", targets="random", scale=30.0, bias="vector", hard=3,
    margin="random", groups=None, upstream="weights",
)  # fmt: skip
FUSED, ELEMENTWISE = replace(ALL, dim=40), replace(ALL, dim=33)
FORMS = {"fused": FUSED, "elementwise": ELEMENTWISE}


@pytest.fixture(autouse=True)
def unset_memory(monkeypatch):
    """New tensors hold nan: what is not written shows."""
    for owner, name in ((torch, "empty"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, _filled(getattr(owner, name)))


def _filled(make):
    def made(*args, **kwargs):
        tensor = make(*args, **kwargs)
        return tensor.fill_(float("nan") if tensor.is_floating_point() else -7)

    return made


@pytest.fixture
def in_order():
    """Sets the order in which threads and blocks run."""
    assert emulation.module is not None
    yield emulation.module.set_order
    emulation.module.set_order("forward")


def solve(spec: Spec, precision: str | None = None) -> None:
    case, want = solved(spec)
    check(case, run(case, "native", precision=precision), want)


@settings(max_examples=40)
@given(spec=specs(dtypes=HALF), depth=st.sampled_from([8, 16, 24, 32, 40, 96]))
def test_any_problem_fused(spec, depth):
    solve(replace(spec, dim=depth))


@settings(max_examples=25)
@given(spec=specs())
def test_any_problem_elementwise(spec):
    solve(spec)


@pytest.mark.parametrize("order", ["forward", "reverse", "random:7"])
@pytest.mark.parametrize("form", FORMS)
def test_any_order_of_threads(form, order, in_order):
    in_order(order)
    solve(FORMS[form])


@pytest.mark.parametrize("dtype", ["float32", *HALF])
@pytest.mark.parametrize("groups", [None, "rare"])
def test_dtypes_and_groups(dtype, groups):
    for form in FORMS.values():
        solve(replace(form, dtype=dtype, groups=groups))


@pytest.mark.parametrize("targets", ["explicit", "random"])
@pytest.mark.parametrize(
    ("rows", "cols", "depth"),
    [
        (128, 128, 32), (127, 129, 32), (129, 127, 8), (1, 257, 16), (257, 1, 24), (256, 384, 64),
        (32, 256, 5), (31, 257, 5), (33, 255, 7), (65, 512, 3), (200, 20, 4),
    ],
)  # fmt: skip
def test_edges_of_tiles(rows, cols, depth, targets):
    solve(replace(ALL, rows=rows, cols=cols, dim=depth, targets=targets))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("workspace", [3000, 50_000, 130_000])
def test_blocks_of_the_backward(form, workspace, monkeypatch):
    """Blocks that start between multiples of the tiles; positives and hard columns beyond them."""
    monkeypatch.setattr(engine, "WORKSPACE_BYTES", workspace)
    solve(replace(FORMS[form], rows=90, cols=170))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rectangles_of_the_forward(form, dtype, monkeypatch):
    monkeypatch.setattr(native_cuda, "PARTIAL_BYTES", 2048)
    monkeypatch.setattr(emulation.Hardware, "cache_bytes", lambda self, device: 40_000)
    solve(replace(FORMS[form], rows=300, cols=520, dtype=dtype))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("offset", [1, 2])
def test_rows_that_start_between_multiples_of_16_bytes(form, dtype, offset, monkeypatch):
    def between(make):
        def made(problem, *shape):
            shape = shape[0] if isinstance(shape[0], tuple) else shape
            wide = make(problem, shape[0], shape[1] + 2 * offset + 1)
            return wide[:, offset : offset + shape[1]]

        return made

    make = native_cuda._similarity_workspace
    monkeypatch.setattr(native_cuda, "_similarity_workspace", between(make))
    workspace = native_cuda.workspace
    monkeypatch.setattr(
        native_cuda, "workspace", between(lambda problem, *shape: workspace(problem, shape))
    )
    solve(replace(FORMS[form], dtype=dtype))


def test_features_that_start_between_multiples_of_16_bytes():
    case, want = solved(FUSED)
    rows, cols = (
        torch.cat((x.new_zeros(1), x.flatten()))[1:].view(x.shape) for x in (case.rows, case.cols)
    )
    assert rows.data_ptr() % 16
    check(case, run(replace(case, rows=rows, cols=cols), "native"), want)


@pytest.mark.parametrize("depth", [4, 12, 40, 64])
def test_tf32(depth):
    """On features that tf32 holds exactly, its products are exact, and fp32's bar applies."""
    case = build(replace(ALL, dim=depth, dtype="float32"))
    case.rows, case.cols = (_without_low_bits(x) for x in (case.rows, case.cols))
    check(case, run(case, "native", precision="tf32"), dense_oracle(case))


def _without_low_bits(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def test_tf32_rounds_to_nearest():
    case, want = solved(replace(ALL, dim=64, dtype="float32", scale=5.0))
    got = run(case, "native", precision="tf32")
    assert 1e-7 < relative_error(got.row_loss, want.row_loss) < 3e-4


@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_two_runs_give_equal_bits_in_any_order(dtype, in_order):
    for form in FORMS.values():
        case = build(replace(form, dtype=dtype))
        first = run(case, "native")
        in_order("random:3")
        second = run(case, "native")
        for name in ("row_loss", "col_loss", *Outcome.GRADIENTS):
            assert torch.equal(getattr(first, name), getattr(second, name)), name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [10.0, 100.0])
def test_logits_far_apart_within_a_tile(form, scale):
    """Columns with logits around -scale and around scale, and no positives in most tiles."""
    case = build(
        replace(FORMS[form], rows=300, cols=600, scale=scale, targets="explicit", hard=None)
    )
    case.cols[:, 0] = torch.where(torch.arange(600) % 3 == 0, 1.0, -1.0)
    case.rows[:, 0] = 1.0
    check(case, run(case, "native"), dense_oracle(case))


@pytest.mark.parametrize("form", FORMS)
def test_log_sum_exps_far_apart_within_a_tile(form):
    case = build(
        replace(FORMS[form], rows=300, cols=600, scale=10.0, targets="explicit", hard=None)
    )
    case.rows[::3] *= 12
    check(case, run(case, "native"), dense_oracle(case))


def test_groups_keep_all_64_bits():
    """Ids that agree in their lower 32 bits are different ids."""
    case = build(replace(FUSED, rows=20, cols=30))
    case.row_group = torch.arange(20) % 4 * 2**32 + 5
    case.col_group = torch.arange(30) % 5 * 2**32 + 5
    check(case, run(case, "native"), dense_oracle(case))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_not_finite_stays_where_it_belongs(form, value):
    """In a batch of row anchors alone, one row's values reach its own loss and no other's."""
    case = build(replace(FORMS[form], targets="row_only", bias=None, scale=10.0))
    clean = dense_oracle(case)
    case.rows[99, 3] = value
    case.row_target[99] = 7
    got = run(case, "native")
    assert not got.row_loss[99].isfinite()
    others = torch.arange(150) != 99
    torch.testing.assert_close(
        got.row_loss[others].double(), clean.row_loss[others], rtol=2e-5, atol=1e-6
    )


def test_products_meet_no_bank_conflicts():
    assert emulation.module is not None
    emulation.module.bank_conflicts()
    solve(replace(FUSED, dim=96))
    conflicts = emulation.module.bank_conflicts()
    assert conflicts["ldmatrix"] == conflicts["cp_async"] == 0


def test_rows_and_columns_in_another_order():
    case = build(replace(FUSED, scale=10.0, upstream="mean"))
    gen = torch.Generator().manual_seed(1)
    row, col = torch.randperm(150, generator=gen), torch.randperm(300, generator=gen)
    new_row, new_col = row.argsort(), col.argsort()

    def moved(index: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return torch.where(index >= 0, new[index.clamp(min=0)], -1)

    other = Case(
        case.rows[row], case.cols[col], case.scale, case.bias[col],
        moved(case.row_target[row], new_col), moved(case.col_target[col], new_row),
        moved(case.hard_cols[row], new_col), case.margin[row], None, None,
        case.g[row], case.h[col],
    )  # fmt: skip
    got, want = run(other, "native"), run(case, "native")
    assert relative_error(got.row_loss, want.row_loss[row]) < 1e-6
    assert relative_error(got.col_loss, want.col_loss[col]) < 1e-6
    assert relative_error(got.margin, want.margin[row]) < 1e-2
