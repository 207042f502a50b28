"""Unusual input that is right: views, expanded tensors, any subset that requires grad, half."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from slipform_kernels import two_way_cross_entropy
from support.accuracy import check, relative_error
from support.backends import every_backend
from support.cases import Case, Spec, build
from support.oracle import Outcome, dense_oracle

R, C, D, K = 6, 9, 5, 2


def index(value: int) -> torch.Tensor:
    return torch.tensor([value])


def shaped(case: Case, change: Callable[[torch.Tensor], torch.Tensor]) -> Case:
    """The case with `change` applied to every tensor argument."""
    fields = {n: change(v) if torch.is_tensor(v) else v for n, v in vars(case).items()}
    return Case(**{**fields, "g": case.g, "h": case.h})


def strided(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, x], dim=-1)[..., 0]


def with_offset(x: torch.Tensor) -> torch.Tensor:
    flat = torch.cat([x.new_zeros(3), x.flatten()])
    return flat[3:].view(x.shape)


@every_backend("reference")
@pytest.mark.parametrize("change", [strided, with_offset], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_argument_may_be_a_view(backend, change, dtype):
    spec = Spec(R, C, D, dtype, "random", bias="vector", hard=K, margin="random", groups="rare")
    case = build(spec)
    got = differentiate(shaped(case, change), Outcome.GRADIENTS, backend)
    check(case, got, dense_oracle(case))


@every_backend("reference")
def test_expanded_tensors(backend):
    """One row, one margin, one target and one bias stand for all, without being copied out."""
    case = build(Spec(R, C, D, targets="random", bias="vector", hard=K, margin="random"))
    case.rows = case.rows[:1].expand(R, D)
    case.cols = case.cols[:, :1].expand(C, D)
    case.bias = case.bias[:1].expand(C)
    case.margin = case.margin[:1, :1].expand(R, K)
    case.row_target = index(3).expand(R)
    case.col_target = index(2).expand(C)
    case.hard_cols = index(4).expand(R, K)
    case.row_group, case.col_group = index(1).expand(R), torch.arange(C)
    got = differentiate(case, Outcome.GRADIENTS, backend)
    check(case, got, dense_oracle(case))


def differentiate(case: Case, names: tuple[str, ...], backend: str | None) -> Outcome:
    """Losses and gradients where only the tensors in `names` require grad; strides are kept."""
    given = {n: getattr(case, n).detach().requires_grad_() for n in names}
    case = Case(**{**vars(case), **given})
    losses = two_way_cross_entropy(
        case.rows, case.cols, case.scale, **case.options(), backend=backend
    )
    if not given:
        assert not any(loss.requires_grad for loss in losses)
        return Outcome(*losses)
    grads = torch.autograd.grad(losses, list(given.values()), [case.g, case.h])
    return Outcome(*(v.detach() for v in losses), **dict(zip(given, grads, strict=True)))


SUBSETS = [s for n in range(6) for s in itertools.combinations(Outcome.GRADIENTS, n)]


@every_backend("reference")
@pytest.mark.parametrize("names", SUBSETS, ids=lambda s: "+".join(s) or "nothing")
def test_any_subset_may_require_grad(backend, names):
    case = build(
        Spec(R, C, D, targets="random", bias="vector", hard=K, margin="random", groups="rare")
    )
    want = dense_oracle(case)
    got = differentiate(case, names, backend)
    for name in Outcome.GRADIENTS:
        if name not in names:
            setattr(want, name, None)
    check(case, got, want)


@every_backend("reference")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_on_the_cpu_is_served(backend, dtype):
    case = build(Spec(R, C, D, dtype, "random", hard=K, margin="random"))
    check(
        case, differentiate(case, ("rows", "cols", "scale", "margin"), backend), dense_oracle(case)
    )


@every_backend("reference")
def test_one_tensor_as_rows_and_cols_gets_both_gradients(backend):
    case = build(Spec(R, R, D, scale=3.0))
    case.cols = case.rows
    want = dense_oracle(case)
    x = case.rows.clone().requires_grad_()
    losses = two_way_cross_entropy(x, x, case.scale, backend=backend)
    (grad,) = torch.autograd.grad(losses, x, [case.g, case.h])
    assert relative_error(grad, want.rows + want.cols) < 1e-5


@every_backend("reference")
def test_upstream_gradients_may_be_expanded_or_missing(backend):
    case = build(Spec(R, C, D, targets="random", upstream="rows_only"))
    case.g = torch.ones(R)
    want = dense_oracle(case)
    leaf = case.leaves()
    row_loss, _ = two_way_cross_entropy(
        leaf.rows, leaf.cols, leaf.scale, **leaf.options(), backend=backend
    )
    # sum() sends an expanded gradient to the rows and none to the columns.
    grads = torch.autograd.grad(row_loss.sum(), [leaf.rows, leaf.cols])
    assert relative_error(grads[0], want.rows) < 1e-5
    assert relative_error(grads[1], want.cols) < 1e-5


@every_backend()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_default_dtype_changes_nothing(backend, dtype):
    """Memory for the kernels must have the type that they write, whatever new tensors have."""
    torch.manual_seed(0)
    x, y = (torch.randn(50, 40).to(dtype).requires_grad_() for _ in range(2))

    def outcome():
        losses = two_way_cross_entropy(x, y, 1.0, backend=backend)
        return *losses, *torch.autograd.grad(losses[0].sum() + losses[1].sum(), [x, y])

    usual = outcome()
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        unusual = outcome()
    finally:
        torch.set_default_dtype(before)
    for a, b in zip(usual, unusual, strict=True):
        assert torch.equal(a, b)
