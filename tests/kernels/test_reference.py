"""The reference backend is the definition: against a loop, against torch, and by gradcheck."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings

from slipform_kernels import two_way_cross_entropy
from support.accuracy import check
from support.backends import run
from support.cases import Spec, build
from support.oracle import dense_oracle, loop_oracle
from support.strategies import specs


@given(specs(dtypes=("float64",)))
def test_equals_the_loop_over_all_options(spec):
    case = build(spec)
    check(case, run(case, "reference"), loop_oracle(case))


@given(specs(dtypes=("float64",)))
def test_fp64_is_served_by_the_reference_and_gives_fp64(spec):
    case = build(spec)
    got = run(case, None)
    assert got.row_loss.dtype == got.col_loss.dtype == torch.float64
    check(case, got, dense_oracle(case))


@pytest.mark.parametrize("scale", [0.0, 1.0, 14.3, 100.0])
@pytest.mark.parametrize("bias", [None, "0d", "vector"])
def test_equals_torch_cross_entropy(scale, bias):
    case = build(Spec(37, 53, 12, "float64", targets="random", scale=scale, bias=bias)).leaves()
    logits = case.scale.item() * case.rows @ case.cols.t()
    logits = logits if case.bias is None else logits + case.bias
    row_target, col_target = case.targets()
    want = (
        F.cross_entropy(logits, row_target, reduction="none", ignore_index=-1),
        F.cross_entropy(logits.t(), col_target, reduction="none", ignore_index=-1),
    )
    got = two_way_cross_entropy(
        case.rows, case.cols, case.scale, **case.options(), backend="reference"
    )
    leaves = [case.rows, case.cols] + ([] if case.bias is None else [case.bias])
    upstream = [case.g, case.h]
    got_grads = torch.autograd.grad(got, leaves, upstream)
    want_grads = torch.autograd.grad(want, leaves, upstream)
    for ours, theirs in zip((*got, *got_grads), (*want, *want_grads), strict=True):
        # torch subtracts the positive from the log-sum-exp: logits of 100 cost two digits.
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


GRADCHECK = [
    Spec(4, 4, 3, scale=2.0),
    Spec(5, 3, 2, targets="random", scale=3.0, bias="vector", seed=1),
    Spec(4, 6, 3, targets="random", scale=5.0, bias="1d", hard=2, margin="random", seed=2),
    Spec(5, 5, 2, targets="shared", scale=1.0, groups="dense", hard=3, margin="random", seed=3),
    Spec(3, 7, 4, targets="row_only", scale=8.0, bias="0d", scale_form="1d", seed=4),
    Spec(1, 4, 1, targets="random", scale=2.0, seed=5),
    Spec(4, 4, 3, targets="diagonal", geometry="separated", scale=20.0, seed=6),
]


@pytest.mark.parametrize("spec", GRADCHECK, ids=lambda s: f"{s.rows}x{s.cols}-{s.targets}")
def test_gradcheck(spec):
    case = build(Spec(**{**vars(spec), "dtype": "float64"}))
    names = ["rows", "cols", "scale", "bias", "margin"]
    names = [n for n in names if torch.is_tensor(getattr(case, n))]
    options = case.options()

    def losses(*values):
        given = dict(zip(names, values, strict=True))
        features = [given.pop(n, case.scale) for n in ("rows", "cols", "scale")]
        return two_way_cross_entropy(*features, **{**options, **given}, backend="reference")

    leaves = [getattr(case, n).clone().requires_grad_() for n in names]
    assert torch.autograd.gradcheck(losses, leaves)


@settings(max_examples=20)
@given(specs(dtypes=("float64",)))
def test_second_derivatives_exist_in_the_reference(spec):
    case = build(spec).leaves()
    losses = two_way_cross_entropy(
        case.rows, case.cols, case.scale, **case.options(), backend="reference"
    )
    (first,) = torch.autograd.grad(sum(v.sum() for v in losses), case.rows, create_graph=True)
    if first.requires_grad:
        (second,) = torch.autograd.grad(first.square().sum(), case.rows, allow_unused=True)
        assert second is None or second.isfinite().all()
