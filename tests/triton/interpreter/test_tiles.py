"""The kernels in many small tiles, and in the table's own, against the fp64 oracle."""

from __future__ import annotations

import itertools
import math
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from slipform_kernels import engine
from slipform_kernels.backends.triton import configs, launch, prepare, tuning
from slipform_kernels.backends.triton.configs import TABLE, Config
from support.accuracy import check, relative_error
from support.backends import run
from support.cases import HALF, Case, Spec, build
from support.oracle import Outcome, dense_oracle
from support.strategies import specs

TILES = {
    "small": Config(32, 32, 16, 4, 2, parts=2),
    "flat": Config(16, 64, 32, 4, 2, parts=4),
    "high": Config(64, 16, 16, 4, 2),
    "descriptors": Config(32, 32, 16, 4, 2, parts=2, tma=True),
}
ALL = Spec(
    100, 150, 40, targets="random", scale=30.0, bias="vector", hard=3, margin="random",
    groups="rare", upstream="weights",
)  # fmt: skip


@contextmanager
def tiles(config: Config, *, workspace: int = 64 << 10, multiprocessors: int = 16):
    """Both kernels in these tiles, the backward in blocks, the forward in several splits."""
    with pytest.MonkeyPatch.context() as patch:
        for key in TABLE:
            patch.setitem(configs.TABLE, key, config)
        patch.setattr(engine, "CACHE_BYTES", 0)
        patch.setattr(engine, "WORKSPACE_BYTES", workspace)
        patch.setattr(launch, "_multiprocessors", lambda device: multiprocessors)
        patch.setattr(launch, "BAND", 64)
        yield


@contextmanager
def unset_memory():
    """New tensors hold nan, or indices of nothing: what is not written shows."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((torch, "empty"), (torch.Tensor, "new_empty")):
            patch.setattr(owner, name, _filled(getattr(owner, name)))
        yield


def _filled(make):
    def made(*args, **kwargs):
        tensor = make(*args, **kwargs)
        return tensor.fill_(float("nan") if tensor.is_floating_point() else -7)

    return made


@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize("dtypes", [("float32",), HALF], ids=["fp32", "half"])
@settings(max_examples=25)
@given(spec=specs())
def test_any_problem_in_small_tiles(name, dtypes, spec):
    case = build(replace(spec, dtype=dtypes[spec.seed % len(dtypes)]))
    with tiles(TILES[name], workspace=4 << 10), unset_memory():
        got = run(case, "triton")
    check(case, got, dense_oracle(case))


@pytest.mark.parametrize("architecture", configs.ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_the_tables_own_tiles(architecture, dtype, monkeypatch):
    monkeypatch.setattr(launch, "architecture", lambda device: architecture)
    monkeypatch.setattr(engine, "CACHE_BYTES", 0)
    monkeypatch.setattr(engine, "WORKSPACE_BYTES", 96 << 10)
    case = build(replace(ALL, rows=150, cols=300, dtype=dtype))
    with unset_memory():
        got = run(case, "triton")
    check(case, got, dense_oracle(case))


@pytest.mark.parametrize("D", [1, 15, 16, 24, 100])
@pytest.mark.parametrize("name", ["small", "descriptors"])
def test_any_depth(name, D):
    """Depths that fill no block, and those that a descriptor cannot start rows at."""
    case = build(replace(ALL, rows=40, cols=50, dim=D))
    with tiles(TILES[name]):
        check(case, run(case, "triton"), dense_oracle(case))


@pytest.mark.parametrize("workspace", [200, 3000, 20_000, 1 << 20])
@pytest.mark.parametrize("multiprocessors", [1, 7, 1000])
def test_blocks_and_splits(workspace, multiprocessors):
    """Blocks that start between multiples of the tiles, splits of unequal length."""
    case = build(replace(ALL, rows=70 if workspace > 200 else 12, cols=90))
    config = TILES["small"]
    with tiles(config, workspace=workspace, multiprocessors=multiprocessors), unset_memory():
        got = run(case, "triton")
    check(case, got, dense_oracle(case))


def test_fp16_gradients_of_large_features():
    """The workspace's units suit the greatest weight; products with it must not overflow."""
    case = build(replace(ALL, groups=None, scale=3.0, dtype="float16"))
    case.rows[:] = case.rows[:1]
    with tiles(TILES["small"], workspace=20_000):
        check(case, run(case, "triton"), dense_oracle(case))


def test_partial_sums_are_linear_in_the_batch():
    """Nothing that the statistics allocate grows with rows x columns."""
    assert largest_allocation(128) == largest_allocation(256)


def largest_allocation(rows: int) -> int:
    """Entries of the largest tensor of partial sums for so many rows."""
    case, sizes, new = build(Spec(rows, 200, 8, targets="random")), [], launch._new

    def watched(problem, shape):
        sizes.append(math.prod(shape))
        return new(problem, shape)

    with tiles(TILES["small"]), pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "_new", watched)
        launch.statistics(ops_problem(case))
    return max(size for size in sizes if size != rows)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_exponential_or_two(dtype, monkeypatch):
    """Rows whose log-sum-exps lie within 55 nats share one exponential; others need two."""
    references = watch_references(monkeypatch)
    near = build(replace(ALL, groups=None, bias="0d", scale=10.0, dtype=dtype))
    far = build(replace(ALL, groups=None, bias="0d", scale=10.0, dtype=dtype))
    far.rows[3] *= -60
    far.rows[77] *= 60
    for case in (near, far):
        with tiles(TILES["small"]):
            check(case, run(case, "triton"), dense_oracle(case))
    assert references[0] < torch.inf
    assert references[-1] == torch.inf


def apart(nats: float, dtype: str, *, of: str) -> Case:
    """Logits that hardly differ, but those of every third row (or column) are `nats` lower.

    So are then their log-sum-exps, and their maxima within any tile.
    """
    case = build(Spec(96, 96, 24, dtype, scale=4.0, upstream="weights"))
    case.rows *= 0.01
    moved, still = (case.rows, case.cols) if of == "rows" else (case.cols, case.rows)
    moved[:, 0], still[:, 0] = 0.0, 0.25
    moved[1::3, 0] = -nats
    return case


@pytest.mark.parametrize("of", ["rows", "cols"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("nats", [0, 40, 54, 55, 56, 60, 80, 100, 130, 200])
def test_log_sum_exps_apart(nats, dtype, of, monkeypatch):
    """One exponential serves both directions up to 80 ln 2 = 55.45 nats; two exact ones beyond."""
    case = apart(nats, dtype, of=of)
    references = watch_references(monkeypatch)
    with tiles(TILES["small"]), unset_memory():
        got = run(case, "triton")
    check(case, got, dense_oracle(case))
    assert (references[-1] < torch.inf) == (nats < 55.45)


def watch_references(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The backward's references for exponents: inf where two exponentials are taken."""
    references, factors = [], prepare.factors

    def watched(weights):
        made = factors(weights)
        references.append(float(made.reference))
        return made

    monkeypatch.setattr(prepare, "factors", watched)
    return references


def test_maxima_far_apart_within_a_tile():
    """Columns of one tile with logits around -100 and around 100."""
    case = build(Spec(64, 64, 8, "float32", "random", scale=100.0))
    case.cols[:, 0] = torch.where(torch.arange(64) % 3 == 0, 1.0, -1.0)
    case.rows[:, 0] = 1.0
    with tiles(TILES["small"]):
        check(case, run(case, "triton"), dense_oracle(case))


# Of the whole 32 x 32 tile at (48, 48), which overlaps four marking tiles, one entry in each.
QUARTERS = {"upper left": (52, 53), "upper right": (54, 73), "lower left": (72, 55)}
QUARTERS |= {"lower right": (75, 76)}


@pytest.mark.parametrize("name", ["small", "descriptors"])
@pytest.mark.parametrize("kind", ["row_target", "col_target", "hard_cols"])
@pytest.mark.parametrize("quarter", QUARTERS)
def test_whole_tiles_between_the_marking_ones(quarter, kind, name, monkeypatch):
    """A block that starts at (48, 48): each of the four marks that a tile overlaps counts."""
    i, j = QUARTERS[quarter]
    case = build(Spec(96, 96, 16, scale=30.0, targets="none"))
    if kind == "row_target":
        case.row_target[i] = j
    elif kind == "col_target":
        case.col_target[j] = i
    else:
        case.row_target[i] = 90  # in another tile: the hard column alone marks this one
        case.hard_cols = torch.full((96, 1), -1)
        case.hard_cols[i], case.margin = j, torch.full((96, 1), 0.2)
    # The entry weighs most: taken for one like all others, it would spoil every gradient.
    case.cols[j] = case.rows[i]
    blocks = list(itertools.product([slice(0, 48), slice(48, 96)], repeat=2))
    with tiles(TILES[name]):
        monkeypatch.setattr(engine, "blocks", lambda *args: iter(blocks))
        got = run(case, "triton")
    check(case, got, dense_oracle(case))


@pytest.mark.parametrize("K", [None, 3])
def test_tiles_with_positives_or_hard_columns_are_marked(K):
    case = build(replace(ALL, hard=K, margin="random" if K else None))
    problem = ops_problem(case)
    config = TILES["flat"]
    made = prepare.operands(problem, config)
    expected = torch.zeros(7, 3, dtype=torch.uint8)
    for i, j in enumerate(case.row_target.tolist()):
        if j >= 0:
            expected[i // 16, j // 64] = 1
    for j, i in enumerate(case.col_target.tolist()):
        if i >= 0:
            expected[i // 16, j // 64] = 1
    for i, hard in enumerate(case.hard_cols.tolist() if K else []):
        for j in hard:
            if j >= 0:
                expected[i // 16, j // 64] = 1
    assert torch.equal(made.marks, expected)
    assert torch.equal(made.row_target.long(), case.row_target)
    assert torch.equal(made.col_target.long(), case.col_target)


def test_operands_are_kept_for_the_configuration_they_are_for():
    problem = ops_problem(build(ALL))
    small, flat = (prepare.operands_of_pass(problem, TILES[name]) for name in ("small", "flat"))
    assert small.marks.shape == (4, 5)
    assert flat.marks.shape == (7, 3)
    assert prepare.operands_of_pass(problem, TILES["flat"]) is flat


@pytest.mark.parametrize("options", [{}, {"K": 2, "bias": "vector", "groups": True}])
def test_tuning_runs_every_candidate(options, tmp_path, monkeypatch):
    """What it times are the kernels, with the arguments that launches have."""
    monkeypatch.setenv("SLIPFORM_CACHE", str(tmp_path))
    calls = []

    def timer(function):
        function()
        calls.append(function)
        return float(len(calls))

    best = tuning.tune(130, 70, 24, device="cpu", dtype=torch.float16, timer=timer, **options)
    assert len(calls) == sum(len(tuning.candidates(k, 80, "half")) for k in configs.KERNELS)
    assert best == {kernel: TABLE[kernel, 80, "half"] for kernel in configs.KERNELS}


def test_groups_keep_all_64_bits():
    """Ids that agree in their lower 32 bits are different ids."""
    case = build(Spec(20, 30, 8, targets="random", scale=5.0))
    case.row_group = torch.arange(20) % 4 * 2**32 + 5
    case.col_group = torch.arange(30) % 5 * 2**32 + 5
    with tiles(TILES["small"]):
        check(case, run(case, "triton"), dense_oracle(case))


def test_indices_past_the_end_write_nothing():
    """The GPU cannot check them beforehand; the marks must not be written through them."""
    problem = ops_problem(build(Spec(20, 30, 8, targets="random")))
    problem.row_target[4], problem.col_target[5] = 10**6, 10**6
    assert prepare.operands(problem, TILES["small"]).marks.shape == (1, 1)


@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_two_runs_give_equal_bits(dtype):
    case = build(replace(ALL, dtype=dtype))
    with tiles(TILES["small"], workspace=20_000):
        first, second = run(case, "triton"), run(case, "triton")
    for name in ("row_loss", "col_loss", *Outcome.GRADIENTS):
        assert torch.equal(getattr(first, name), getattr(second, name)), name


def test_rows_and_columns_in_another_order():
    case = build(replace(ALL, scale=10.0, upstream="mean"))
    gen = torch.Generator().manual_seed(1)
    row, col = torch.randperm(100, generator=gen), torch.randperm(150, generator=gen)
    new_row, new_col = row.argsort(), col.argsort()

    def moved(index: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return torch.where(index >= 0, new[index.clamp(min=0)], -1)

    other = Case(
        case.rows[row], case.cols[col], case.scale, case.bias[col],
        moved(case.row_target[row], new_col), moved(case.col_target[col], new_row),
        moved(case.hard_cols[row], new_col), case.margin[row],
        case.row_group[row], case.col_group[col], case.g[row], case.h[col],
    )  # fmt: skip
    with tiles(TILES["small"], workspace=20_000):
        got, want = run(other, "triton"), run(case, "triton")
    orders = {"row_loss": row, "rows": row, "margin": row, "col_loss": col, "cols": col}
    for name, order in {**orders, "bias": col}.items():
        assert relative_error(getattr(got, name), getattr(want, name)[order]) < 1e-6, name
    assert relative_error(got.scale, want.scale) < 1e-5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_not_finite_stays_where_it_belongs(value):
    """In a batch of row anchors alone, one row's values reach its own loss and no other's."""
    case = build(replace(ALL, targets="row_only", groups=None, bias=None))
    clean = dense_oracle(case)
    case.rows[99, 3] = value
    case.row_target[99] = 7
    with tiles(TILES["small"]), unset_memory():
        got = run(case, "triton")
    assert not got.row_loss[99].isfinite()
    torch.testing.assert_close(
        got.row_loss[:99].double(), clean.row_loss[:99], rtol=2e-5, atol=1e-6
    )


def ops_problem(case: Case):
    from slipform_kernels import ops

    names = ("rows", "cols", "scale", "bias", "row_target", "col_target", "hard_cols", "margin")
    values = [getattr(case, n) for n in (*names, "row_group", "col_group")]
    return ops.problem_of(*values, precision="ieee")
