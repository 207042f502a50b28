"""The eager path: one autograd node around the engine, without the dispatcher's overhead.

It computes what the operators of `ops.py` and the composition in `functional.py` compute. Those
serve wherever tensors are traced, faked, wrapped or watched; this serves plain tensors, where at
small batches a third of the time would go into dispatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import ops, reduction


def applies(rows: Tensor) -> bool:
    """Whether `rows` is a plain tensor in eager mode."""
    return (
        not torch.compiler.is_compiling()
        and rows.device.type != "meta"
        and type(rows) in (Tensor, torch.nn.Parameter)
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch._C._are_functorch_transforms_active()
    )


def losses(*operands: Any) -> tuple[Tensor, Tensor]:
    """row_loss [R] and col_loss [C]; takes the arguments of slipform::statistics."""
    return _TwoWayCrossEntropy.apply(*operands)


def mean(*operands: Any) -> Tensor:
    """`reduction.mean` of both, 0-d."""
    return _Mean.apply(*operands)


class _TwoWayCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor]:
        of_rows, of_cols = _statistics(ctx, args)
        return ops.positive_loss(*of_rows), ops.positive_loss(*of_cols)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, grads, (1.0, 1.0))


class _Mean(torch.autograd.Function):
    """The mean in the same node: at small batches each further one is felt."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        of_rows, of_cols = _statistics(ctx, args)
        counts = [reduction.anchors(len(rest), target) for rest, _, target in (of_rows, of_cols)]
        ctx.factors = [0.5 / count for count in counts]
        return ops.mean_loss(of_rows, of_cols, counts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, (grads[0], grads[0]), ctx.factors)


def _statistics(ctx: Any, args: tuple[Any, ...]) -> tuple[ops.Anchors, ops.Anchors]:
    """Those of the rows and of the columns; keeps what the gradients need."""
    row_rest, row_positive, col_rest, col_positive, cache = ops.run_statistics(*args)
    ctx.save_for_backward(
        *args[: ops.OPERAND_COUNT], row_rest, row_positive, col_rest, col_positive, cache
    )
    ctx.precision, ctx.backend = args[ops.OPERAND_COUNT :]
    return (row_rest, row_positive, args[4]), (col_rest, col_positive, args[5])


def _gradients(
    ctx: Any, grads: tuple[Tensor, ...], factors: Sequence[float | Tensor]
) -> tuple[Tensor | None, ...]:
    """Gradients of all arguments, from those of the row and column losses and their factors."""
    *operands, row_rest, row_positive, col_rest, col_positive, cache = ctx.saved_tensors
    row_target, col_target = operands[4:6]
    row_pulls = ops.pulls(grads[0], row_rest, row_positive, row_target, factors[0])
    col_pulls = ops.pulls(grads[1], col_rest, col_positive, col_target, factors[1])
    # The operator where a graph is asked for: it refuses a double backward in clear words.
    run = torch.ops.slipform.gradients if torch.is_grad_enabled() else ops.run_gradients
    return ops.input_gradients(
        run, ctx.needs_input_grad, operands, row_rest, *row_pulls, col_rest, *col_pulls, cache,
        ctx.precision, ctx.backend,
    )  # fmt: skip
