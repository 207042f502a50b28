"""The eager path: one autograd node around the engine, without the dispatcher's overhead.

It computes what the operators of `ops.py` and the composition in `functional.py` compute. Those
serve wherever tensors are traced, faked, wrapped or watched; this serves plain tensors, where at
small batches a third of the time would go into dispatch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import ops, reference


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


class _TwoWayCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor]:
        row_rest, row_positive, col_rest, col_positive, cache = ops.run_statistics(*args)
        ctx.save_for_backward(
            *args[: ops.OPERAND_COUNT], row_rest, row_positive, col_rest, col_positive, cache
        )
        ctx.precision, ctx.backend = args[ops.OPERAND_COUNT :]
        row_target, col_target = args[4:6]
        return (
            reference.positive_loss(row_rest, row_positive, row_target),
            reference.positive_loss(col_rest, col_positive, col_target),
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *operands, row_rest, row_positive, col_rest, col_positive, cache = ctx.saved_tensors
        row_target, col_target = operands[4:6]
        row_pull = ops.pull(grads[0], row_rest, row_positive, row_target)
        col_pull = ops.pull(grads[1], col_rest, col_positive, col_target)
        # The operator where a graph is asked for: it refuses a double backward in clear words.
        run = torch.ops.slipform.gradients if torch.is_grad_enabled() else ops.run_gradients
        return ops.input_gradients(
            run, ctx.needs_input_grad, operands, row_rest, row_pull, -row_pull, col_rest, col_pull,
            -col_pull, cache, ctx.precision, ctx.backend,
        )  # fmt: skip
