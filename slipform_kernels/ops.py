"""The two operators slipform::statistics and slipform::gradients, opaque to torch.compile.

    statistics: operands -> the log-sum-exp of every row and column over all but the positive, and
                the positives' logits
    gradients:  operands, those log-sum-exps, upstream gradients -> gradients of the operands

Everything else of a loss (softplus, means, weights, merging ranks) is ordinary autograd on top.
The positives' logits are computed inside, so that their gradient joins the same fp32 sums as the
rest's: for low-precision features the two parts nearly cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from . import dispatch, engine, reference
from .backends import native
from .problem import Problem

_OPERANDS = (
    "Tensor rows, Tensor cols, Tensor scale, Tensor? bias, Tensor? row_target, Tensor? col_target, "
    "Tensor? hard_cols, Tensor? margin, Tensor? row_group, Tensor? col_group, "
)
# Position of the operands that can need a gradient, in the order of the `gradients` results.
_DIFFERENTIABLE = {"rows": 0, "cols": 1, "scale": 2, "bias": 3, "margin": 7}
OPERAND_COUNT = 10

torch.library.define(
    "slipform::statistics",
    f"({_OPERANDS} str precision, str backend) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
torch.library.define(
    "slipform::gradients",
    f"({_OPERANDS} Tensor row_rest, Tensor row_rest_grad, Tensor row_positive_grad, "
    "Tensor col_rest, Tensor col_rest_grad, Tensor col_positive_grad, Tensor cache, "
    "bool[5] needed, str precision, str backend) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def statistics(*operands: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(row_rest [R], row_positive [R], col_rest [C], col_positive [C]), fp32, differentiable.

    Takes the operator's arguments in order. A rest without members is -inf; the positive of a row
    or column without target is 0.
    """
    return torch.ops.slipform.statistics(*operands)[:4]


def check_ranges(
    R: int, C: int, row_target: Tensor | None, col_target: Tensor | None, hard_cols: Tensor | None
) -> None:
    """Raise ValueError for an index outside [-1, size), for CPU tensors."""
    for name, index, size, unit in (
        ("row_target", row_target, C, "C"),
        ("col_target", col_target, R, "R"),
        ("hard_cols", hard_cols, C, "C"),
    ):
        if index is None or index.device.type != "cpu" or index.numel() == 0:
            continue
        low, high = (int(v) for v in torch.aminmax(index))
        if low < -1 or high >= size:
            raise ValueError(
                f"{name}: got values from {low} to {high}; expected -1 (none) to {size - 1}, "
                f"with {unit} = {size}"
            )


def targets_or_diagonal(
    rows: Tensor, row_target: Tensor | None, col_target: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The targets, with 0, 1, 2, ... in place of one that is not given."""
    if row_target is None or col_target is None:
        diagonal = torch.arange(rows.shape[0], device=rows.device)
        row_target = diagonal if row_target is None else row_target
        col_target = diagonal if col_target is None else col_target
    return row_target, col_target


def problem_of(
    rows: Tensor,
    cols: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    row_target: Tensor | None,
    col_target: Tensor | None,
    hard_cols: Tensor | None,
    margin: Tensor | None,
    row_group: Tensor | None,
    col_group: Tensor | None,
    *,
    precision: str,
) -> Problem:
    """The operator's arguments with the diagonal written out and tensors made contiguous."""
    diagonal = row_target is None and col_target is None
    row_target, col_target = targets_or_diagonal(rows, row_target, col_target)
    return Problem(
        rows.contiguous(),
        cols.contiguous(),
        scale,
        None if bias is None else bias.contiguous(),
        row_target.contiguous(),
        col_target.contiguous(),
        None if hard_cols is None else hard_cols.contiguous(),
        None if margin is None else margin.contiguous(),
        None if row_group is None else row_group.contiguous(),
        None if col_group is None else col_group.contiguous(),
        precision,
        diagonal,
    )


def run_statistics(*args: Any) -> tuple[Tensor, ...]:
    """slipform::statistics on real tensors: row and column rest and positives, and the cache."""
    *operands, precision, backend = args
    rows, cols, _, _, row_target, col_target, hard_cols, *_ = operands
    check_ranges(rows.shape[0], cols.shape[0], row_target, col_target, hard_cols)
    problem = problem_of(*operands, precision=precision)
    chosen = dispatch.choose(problem, backend)
    with no_autocast(rows):
        return engine.statistics(problem, chosen)


def run_gradients(*args: Any) -> tuple[Tensor, ...]:
    """slipform::gradients on real tensors: dX, dY, dscale, dbias, dmargin."""
    operands = args[:OPERAND_COUNT]
    *statistics_and_grads, cache, needed, precision, backend = args[OPERAND_COUNT:]
    problem = problem_of(*operands, precision=precision)
    chosen = dispatch.choose(problem, backend)
    with no_autocast(operands[0]):
        weights = engine.weights(problem, *statistics_and_grads)
        return engine.gradients(problem, weights, cache, needed, chosen)


torch.library.impl("slipform::statistics", "CompositeExplicitAutograd", run_statistics)
torch.library.impl("slipform::gradients", "CompositeExplicitAutograd", run_gradients)


def no_autocast(rows: Tensor) -> AbstractContextManager[Any]:
    device_type = rows.device.type
    if not torch.is_autocast_enabled(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


@torch.library.register_fake("slipform::statistics")
def _fake_statistics(rows: Tensor, cols: Tensor, *args: Any) -> tuple[Tensor, ...]:
    R, C = rows.shape[0], cols.shape[0]
    new = rows.new_empty
    stats = [new((n,), dtype=torch.float32) for n in (R, R, C, C)]
    return (*stats, new((engine.cache_entries(R, C, rows.device),), dtype=torch.float32))


@torch.library.register_fake("slipform::gradients")
def _fake_gradients(*args: Any) -> tuple[Tensor, ...]:
    rows, needed = args[0], args[OPERAND_COUNT + 7]
    return tuple(
        rows.new_empty(args[position].shape if need else (0,), dtype=args[position].dtype)
        if need
        else rows.new_empty((0,))
        for need, position in zip(needed, _DIFFERENTIABLE.values(), strict=True)
    )


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    row_rest, _, col_rest, _, cache = output
    ctx.save_for_backward(*inputs[:OPERAND_COUNT], row_rest, col_rest, cache)
    ctx.precision, ctx.backend = inputs[OPERAND_COUNT:]
    ctx.set_materialize_grads(True)
    ctx.mark_non_differentiable(cache)


def _backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    *operands, row_rest, col_rest, cache = ctx.saved_tensors
    row_rest_grad, row_positive_grad, col_rest_grad, col_positive_grad, _ = grads
    return input_gradients(
        torch.ops.slipform.gradients, ctx.needs_input_grad, operands,
        row_rest, row_rest_grad, row_positive_grad, col_rest, col_rest_grad, col_positive_grad,
        cache, ctx.precision, ctx.backend,
    )  # fmt: skip


def input_gradients(
    run: Callable[..., tuple[Tensor, ...]],
    needs_input_grad: Sequence[bool],
    operands: Sequence[Tensor | None],
    *statistics: Any,
) -> tuple[Tensor | None, ...]:
    """Gradients of all arguments of slipform::statistics, None for those that have none.

    `statistics` are the arguments of `run`, which is slipform::gradients or `run_gradients`, from
    row_rest on and without `needed`.
    """
    which = needed(needs_input_grad)
    *before, precision, backend = statistics
    return in_place_of_operands(which, run(*operands, *before, which, precision, backend))


def needed(needs_input_grad: Sequence[bool]) -> list[bool]:
    """Of `needs_input_grad` of slipform::statistics, what the results of `gradients` are for."""
    return [needs_input_grad[position] for position in _DIFFERENTIABLE.values()]


def in_place_of_operands(
    which: list[bool], results: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """Results of `gradients` in the places of slipform::statistics' arguments."""
    input_grads: list[Tensor | None] = [None] * (OPERAND_COUNT + 2)
    for need, position, result in zip(which, _DIFFERENTIABLE.values(), results, strict=True):
        if need:
            input_grads[position] = result
    return tuple(input_grads)


def positive_loss(rest: Tensor, positive: Tensor, target: Tensor | None) -> Tensor:
    """`reference.positive_loss`, without a graph."""
    if native.computes(rest):
        return native.positive_loss(rest, positive, target)
    return reference.positive_loss(rest, positive, target)


def pulls(
    grad: Tensor,
    rest: Tensor,
    positive: Tensor,
    target: Tensor | None,
    factor: float | Tensor = 1.0,
) -> tuple[Tensor, Tensor]:
    """d loss / d rest = factor grad sigmoid(rest - positive), 0 for no anchor; d loss / d positive.

    The second is minus the first. All [A]; `grad` may be 0-d.
    """
    if native.computes(rest):
        return native.pulls(grad, rest, positive, target, float(factor))
    pull = factor * grad * torch.sigmoid(rest - positive)
    pull = pull if target is None else torch.where(target >= 0, pull, 0.0)
    return pull, -pull


# One direction's log-sum-exps, logits of positives, and targets: [A] each.
Anchors = tuple[Tensor, Tensor, "Tensor | None"]


def mean_loss(of_rows: Anchors, of_cols: Anchors, counts: Sequence[int | Tensor]) -> Tensor:
    """Mean of both directions' means, 0-d; `counts` are the numbers of anchors."""
    if native.computes(of_rows[0]):
        means = [
            native.positive_loss_sum(*anchors) / int(count)
            for anchors, count in zip((of_rows, of_cols), counts, strict=True)
        ]
        return of_rows[0].new_full((), sum(means) / 2)
    row_mean, col_mean = (
        reference.positive_loss(*anchors).sum() / count
        for anchors, count in zip((of_rows, of_cols), counts, strict=True)
    )
    return (row_mean + col_mean) / 2


def _no_double_backward(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(
        "two_way_cross_entropy: double backward is not supported (got a gradient of a gradient); "
        'use backend="reference", which stores the matrix, for second derivatives'
    )


torch.library.register_autograd("slipform::statistics", _backward, setup_context=_save_for_backward)
torch.library.register_autograd("slipform::gradients", _no_double_backward)
