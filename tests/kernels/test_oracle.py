"""The tests' own oracles agree with each other and with torch, and the accuracy check can fail."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings

from support.accuracy import check, check_bar
from support.cases import Case, Spec, build
from support.oracle import Outcome, dense_losses, dense_oracle, loop_oracle
from support.strategies import specs


@given(specs(dtypes=("float64", "float32", "bfloat16")))
def test_loop_and_dense_oracles_agree(spec):
    case = build(spec)
    loop, dense = loop_oracle(case), dense_oracle(case)
    check(case.double(), dense, loop)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_loop_oracle_is_torch_cross_entropy_where_that_is_defined(scale):
    case = build(Spec(23, 31, 8, "float64", targets="random", scale=scale, bias="vector"))
    logits = scale * case.rows @ case.cols.t() + case.bias
    row_target, col_target = case.targets()
    want_rows = F.cross_entropy(logits, row_target, reduction="none", ignore_index=-1)
    want_cols = F.cross_entropy(logits.t(), col_target, reduction="none", ignore_index=-1)
    got = loop_oracle(case)
    torch.testing.assert_close(got.row_loss, want_rows, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got.col_loss, want_cols, rtol=1e-12, atol=1e-12)


def test_dense_losses_pass_gradcheck():
    case = build(Spec(4, 5, 3, "float64", "random", hard=2, margin="random", groups="rare", seed=3))
    leaves = [v.requires_grad_() for v in (case.rows, case.cols, case.scale, case.margin)]

    def losses(rows, cols, scale, margin):
        return dense_losses(Case(**{**vars(case), **_named(rows, cols, scale, margin)}))

    assert torch.autograd.gradcheck(losses, leaves)


def _named(rows, cols, scale, margin):
    return {"rows": rows, "cols": cols, "scale": scale, "margin": margin}


SITUATIONS = {
    "R != C": lambda c, t, u: len(c.rows) != len(c.cols),
    "R = 1": lambda c, t, u: len(c.rows) == 1,
    "C = 1": lambda c, t, u: len(c.cols) == 1,
    "D = 1": lambda c, t, u: c.rows.shape[1] == 1,
    "diagonal by default": lambda c, t, u: c.row_target is None,
    "a row without a target": lambda c, t, u: (t < 0).any(),
    "a column without a target": lambda c, t, u: (u < 0).any(),
    "no anchors at all": lambda c, t, u: (t < 0).all() and (u < 0).all(),
    "rows that share a target": lambda c, t, u: t[t >= 0].unique().numel() < (t >= 0).sum(),
    "t_i = j with u_j != i": lambda c, t, u: any(
        j >= 0 and int(u[j]) not in (-1, i) for i, j in enumerate(t.tolist())
    ),
    "K = 0": lambda c, t, u: c.hard_cols is not None and c.hard_cols.shape[1] == 0,
    "K = 4": lambda c, t, u: c.hard_cols is not None and c.hard_cols.shape[1] == 4,
    "a hard column twice": lambda c, t, u: (
        c.hard_cols is not None
        and c.hard_cols.shape[1] > 1
        and ((c.hard_cols[:, 0] == c.hard_cols[:, 1]) & (c.hard_cols[:, 0] >= 0)).any()
    ),
    "a hard column is the positive": lambda c, t, u: (
        c.margin is not None and ((c.hard_cols == t[:, None]) & (t >= 0)[:, None]).any()
    ),
    "a hard column of several rows": lambda c, t, u: (
        c.margin is not None
        and c.hard_cols[c.hard_cols >= 0].unique().numel() < (c.hard_cols >= 0).sum()
    ),
    "margins without a hard column": lambda c, t, u: (
        c.margin is not None and ((c.hard_cols < 0) & (c.margin != 0)).any()
    ),
    "a closed column": lambda c, t, u: (
        isinstance(c.bias, torch.Tensor) and (c.bias == -torch.inf).any()
    ),
    "bias [1]": lambda c, t, u: isinstance(c.bias, torch.Tensor) and c.bias.shape == (1,),
    "bias float": lambda c, t, u: isinstance(c.bias, float),
    "groups": lambda c, t, u: (
        c.row_group is not None and (c.row_group[:, None] == c.col_group).float().mean() < 0.9
    ),
    "only the positives left": lambda c, t, u: (
        c.row_group is not None and (c.row_group[:, None] == c.col_group).all() and (t >= 0).any()
    ),
    "scale [1]": lambda c, t, u: isinstance(c.scale, torch.Tensor) and c.scale.shape == (1,),
    "scale float": lambda c, t, u: isinstance(c.scale, float),
    "scale 0": lambda c, t, u: float(c.scale) == 0,
    "scale above 50": lambda c, t, u: float(c.scale) > 50,
    "not contiguous": lambda c, t, u: not c.rows.is_contiguous(),
    "upstream zeros": lambda c, t, u: (c.g == 0).any() and (c.h != 0).any(),
    "upstream weights": lambda c, t, u: (c.g < 0).any() and (c.h < 0).any(),
}


def test_generator_covers_every_situation():
    seen: Counter[str] = Counter()

    @settings(max_examples=1000)
    @given(specs())
    def collect(spec):
        case = build(spec)
        seen.update(
            name for name, holds in SITUATIONS.items() if bool(holds(case, *case.targets()))
        )

    collect()
    assert set(SITUATIONS) <= set(seen), f"never drawn: {set(SITUATIONS) - set(seen)}"


def test_cases_are_deterministic():
    spec = Spec(9, 11, 5, targets="random", hard=2, margin="random", bias="vector", groups="rare")
    first, second = vars(build(spec)), vars(build(spec))
    assert all(torch.equal(first[n], second[n]) for n in first if torch.is_tensor(first[n]))
    assert not torch.equal(
        build(spec).rows, build(Spec(9, 11, 5, "float32", "random", seed=1)).rows
    )


PLANTED = Spec(40, 48, 16, targets="random", hard=2, margin="random", bias="vector", seed=5)


@pytest.mark.parametrize("name", ["row_loss", "col_loss", *Outcome.GRADIENTS])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_check_fails_on_a_planted_error(name, dtype):
    case = build(Spec(**{**vars(PLANTED), "dtype": dtype}))
    want = dense_oracle(case)
    for compare in (check, check_bar):
        compare(case, want, want)
        wrong = copy.copy(want)
        size = 1e-4 if dtype == "float32" or "loss" in name else 2e-2
        setattr(wrong, name, getattr(want, name) * (1 + size))
        with pytest.raises(AssertionError, match=name):
            compare(case, wrong, want)


@pytest.mark.parametrize("name", ["row_loss", *Outcome.GRADIENTS])
def test_check_fails_on_nan_and_on_a_missing_gradient(name):
    case = build(PLANTED)
    want = dense_oracle(case)
    wrong = copy.copy(want)
    setattr(wrong, name, getattr(want, name) * float("nan"))
    with pytest.raises(AssertionError, match=name):
        check(case, wrong, want)
    if name in Outcome.GRADIENTS:
        setattr(wrong, name, None)
        with pytest.raises(AssertionError, match=name):
            check(case, wrong, want)
