"""The pass over the blocks of a sigmoid loss, and the operators that torch.compile sees of it.

    slipform::sigmoid_losses:     operands -> losses [R]
    slipform::sigmoid_gradients:  operands, upstream gradients [R] -> gradients of the operands
    slipform::sigmoid_sum:        operands -> the losses' sum, and its gradients in the sums' dtype

See `sigmoid.py` for the formulas and for when gradients are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import distributed, engine, ops, products, reference
from .exchange import Exchange
from .problem import Problem

OPERAND_COUNT = 5
DIFFERENTIABLE = 4  # rows, cols, scale and bias come first
# fp32 matrices of a block's size at a time: similarities, logits, and three for the losses.
_SPACES = 5

_OPERANDS = "Tensor rows, Tensor cols, Tensor scale, Tensor? bias, Tensor? row_target, "
torch.library.define("slipform::sigmoid_losses", f"({_OPERANDS} str precision) -> Tensor")
torch.library.define(
    "slipform::sigmoid_gradients",
    f"({_OPERANDS} Tensor row_grad, bool[4] needed, str precision)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
torch.library.define(
    "slipform::sigmoid_sum",
    f"({_OPERANDS} bool[4] needed, str precision) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def problem_of(*operands: Any, precision: str) -> Problem:
    """The operators' operands, checked as far as their values have to be known."""
    rows, cols, scale, bias, row_target = operands
    ops.check_ranges(rows.shape[0], cols.shape[0], row_target, None, None)
    no_target = torch.full((cols.shape[0],), -1, device=cols.device)
    return ops.problem_of(
        rows, cols, scale, bias, row_target, no_target, None, None, None, None, precision=precision
    )


def evaluate(
    problem: Problem,
    row_grad: Tensor | None,
    needed: list[bool],
    *,
    losses: bool,
    rounded: bool = True,
    exchange: Exchange | None = None,
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """Losses [R] if asked for, and what is needed of dX, dY, dscale, dbias, in one pass.

    `row_grad` are the upstream gradients [R]; None stands for ones. Gradients have the operands'
    dtypes, or where not `rounded` the sums'.
    """
    R, C = problem.shape
    row_loss = problem.rows.new_zeros(R, dtype=problem.wide) if losses else None
    unit = None
    if any(needed) and problem.rows.dtype == torch.float16:
        row_grad, unit = _in_units(problem, row_grad, exchange)

    def add(sums: engine.Sums, part: Problem, place: slice) -> None:
        _add(sums, part, row_loss, row_grad)

    which = [*needed, False]  # there are no margins
    if exchange is None:
        sums = engine.Sums(problem, which)
        add(sums, problem, slice(0, C))
    else:
        pieces = exchange.pieces(distributed.columns_of(problem))
        sums = distributed.accumulate(exchange, problem, pieces, which, add)
    return row_loss, sums.results(unit, rounded=rounded)[:DIFFERENTIABLE]


def _in_units(
    problem: Problem, row_grad: Tensor | None, exchange: Exchange | None
) -> tuple[Tensor, Tensor]:
    """Upstream gradients in a unit in which an fp16 workspace can hold dL, and that unit."""
    if row_grad is None:
        row_grad = problem.rows.new_ones(problem.shape[0], dtype=problem.wide)
    unit = row_grad.abs().max() / engine.FP16_LARGEST
    unit = unit if exchange is None else exchange.largest(unit)
    unit = torch.where(unit == 0, 1.0, unit)
    return row_grad / unit, unit


def _add(
    sums: engine.Sums, problem: Problem, row_loss: Tensor | None, row_grad: Tensor | None
) -> None:
    """Add all of the problem's matrix to the losses and to the gradients that are needed."""
    R, C = problem.shape
    grad_dtype = products.gradient_dtype(problem)
    parts = list(engine.blocks(R, C, problem.rows.device, 4 * _SPACES))
    size = parts[0][0].stop * parts[0][1].stop
    spaces = [problem.rows.new_empty(size, dtype=problem.wide) for _ in range(_SPACES)]
    for rows, cols in parts:
        block = problem.block(rows, cols)
        entries = block.shape[0] * block.shape[1]
        similarity, logits, *free = (space[:entries].view(block.shape) for space in spaces)
        products.similarities(block, similarity)
        torch.mul(similarity, problem.scale, out=logits)
        if block.bias is not None:
            logits += block.bias
        _negate_positives(logits, block.row_target)
        if row_loss is not None:
            row_loss[rows] += _softplus(logits, free).sum(1)
        if not any(sums.need.values()):
            continue
        grad = logits.sigmoid_()
        if row_grad is not None:
            grad *= row_grad[rows, None]
        _negate_positives(grad, block.row_target)
        rounded = grad.to(grad_dtype)
        if sums.need["rows"]:
            sums.rows.add(rows, rounded, block.cols, problem.precision)
        if sums.need["cols"]:
            sums.cols.add(cols, rounded.T, block.rows, problem.precision)
        if sums.need["scale"]:
            sums.scale += similarity.mul_(grad).sum(1).sum(dtype=torch.float64)
        if sums.need["bias"]:
            sums.bias[cols] += grad.sum(0)


def _softplus(logits: Tensor, spaces: Sequence[Tensor]) -> Tensor:
    """log(1 + exp(logits)), which on a CPU lies in one of the three spaces.

    torch's log1p takes ten times as long there as log. With w = 1 + e rounded, log(1 + e) is
    log(w) + (e - (w - 1)) / w to the last place, for w - 1 and its difference to e are exact.
    """
    if logits.device.type != "cpu":
        return reference.softplus(logits)
    e, w, lost = spaces
    torch.abs(logits, out=e).neg_().exp_()
    torch.add(e, 1, out=w)
    torch.sub(w, 1, out=lost).sub_(e).div_(w)
    w.log_().sub_(lost)
    return w.add_(torch.clamp(logits, min=0, out=lost))


def _negate_positives(matrix: Tensor, row_target: Tensor) -> None:
    """matrix[i, row_target_i] *= -1 where there is a target."""
    index = row_target.clamp(min=0)[:, None]
    values = matrix.gather(1, index)
    matrix.scatter_(1, index, torch.where(row_target[:, None] >= 0, -values, values))


def _run_losses(*args: Any) -> Tensor:
    *operands, precision = args
    with ops.no_autocast(operands[0]):
        problem = problem_of(*operands, precision=precision)
        row_loss, _ = evaluate(problem, None, [False] * DIFFERENTIABLE, losses=True)
    assert row_loss is not None
    return row_loss


def _run_gradients(*args: Any) -> tuple[Tensor, ...]:
    *operands, row_grad, needed, precision = args
    with ops.no_autocast(operands[0]):
        problem = problem_of(*operands, precision=precision)
        return evaluate(problem, row_grad, needed, losses=False)[1]


def _run_sum(*args: Any) -> tuple[Tensor, ...]:
    *operands, needed, precision = args
    with ops.no_autocast(operands[0]):
        problem = problem_of(*operands, precision=precision)
        row_loss, gradients = evaluate(problem, None, needed, losses=True, rounded=False)
    assert row_loss is not None
    return row_loss.sum(), *gradients


torch.library.impl("slipform::sigmoid_losses", "CompositeExplicitAutograd", _run_losses)
torch.library.impl("slipform::sigmoid_gradients", "CompositeExplicitAutograd", _run_gradients)
torch.library.impl("slipform::sigmoid_sum", "CompositeExplicitAutograd", _run_sum)


@torch.library.register_fake("slipform::sigmoid_losses")
def _fake_losses(rows: Tensor, *args: Any) -> Tensor:
    return rows.new_empty((rows.shape[0],), dtype=_wide(rows))


@torch.library.register_fake("slipform::sigmoid_gradients")
def _fake_gradients(*args: Any) -> tuple[Tensor, ...]:
    *operands, _, needed, _ = args
    return _fake_results(operands, needed, rounded=True)


@torch.library.register_fake("slipform::sigmoid_sum")
def _fake_sum(*args: Any) -> tuple[Tensor, ...]:
    *operands, needed, _ = args
    total = operands[0].new_empty((), dtype=_wide(operands[0]))
    return total, *_fake_results(operands, needed, rounded=False)


def _fake_results(operands: list[Any], needed: list[bool], *, rounded: bool) -> tuple[Tensor, ...]:
    new = operands[0].new_empty
    return tuple(
        new(operand.shape, dtype=operand.dtype if rounded else _wide(operand))
        if need
        else new((0,))
        for operand, need in zip(operands, needed, strict=False)
    )


def _wide(features: Tensor) -> torch.dtype:
    return torch.promote_types(features.dtype, torch.float32)


def _save_for_losses(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:OPERAND_COUNT])
    ctx.precision = inputs[-1]


def _losses_backward(ctx: Any, row_grad: Tensor) -> tuple[Tensor | None, ...]:
    needed = list(ctx.needs_input_grad[:DIFFERENTIABLE])
    gradients = torch.ops.slipform.sigmoid_gradients(
        *ctx.saved_tensors, row_grad, needed, ctx.precision
    )
    return *where_needed(needed, gradients), None, None


def _save_for_sum(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:OPERAND_COUNT], *output[1:])
    ctx.precision = inputs[-1]
    ctx.mark_non_differentiable(*output[1:])


def _sum_backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    needed = list(ctx.needs_input_grad[:DIFFERENTIABLE])
    operands, gradients = ctx.saved_tensors[:OPERAND_COUNT], ctx.saved_tensors[OPERAND_COUNT:]
    if torch.is_grad_enabled():
        # The operator where a graph is asked for: it refuses a double backward in clear words.
        row_grad = grad.expand(operands[0].shape[0])
        gradients = torch.ops.slipform.sigmoid_gradients(*operands, row_grad, needed, ctx.precision)
    else:
        gradients = scaled(gradients, grad, operands)
    return *where_needed(needed, gradients), None, None, None


def scaled(
    gradients: Sequence[Tensor], grad: Tensor, operands: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """Gradients of a sum times its upstream gradient, rounded to the operands' dtypes."""
    return tuple(
        gradient if operand is None else (gradient * grad).to(operand.dtype)
        for gradient, operand in zip(gradients, operands, strict=False)
    )


def where_needed(needed: list[bool], gradients: Sequence[Tensor]) -> list[Tensor | None]:
    return [g if need else None for need, g in zip(needed, gradients, strict=True)]


def _no_double_backward(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(
        "sigmoid_cross_entropy: double backward is not supported (got a gradient of a gradient); "
        'use backend="reference", which stores the matrix, for second derivatives'
    )


torch.library.register_autograd(
    "slipform::sigmoid_losses", _losses_backward, setup_context=_save_for_losses
)
torch.library.register_autograd("slipform::sigmoid_sum", _sum_backward, setup_context=_save_for_sum)
torch.library.register_autograd("slipform::sigmoid_gradients", _no_double_backward)
