"""SigLIP's sigmoid loss (Zhai et al. 2023, arXiv 2303.15343, equation 1).

    loss_i = sum_j -log sigmoid(z_ij L_ij)        L_ij = scale * <rows_i, cols_j> + bias_j

with z_ij = 1 where column j is the row's positive and -1 elsewhere. With u_ij = -z_ij L_ij,

    loss_i = sum_j softplus(u_ij)                 dL_ij = -g_i z_ij sigmoid(u_ij)

for the upstream gradients g. Both keep their relative precision however far a pair is separated.

There is no normaliser, so no statistics have to be complete before a gradient can be computed: one
pass over the blocks of the matrix gives the loss and the gradients, for 3 U where U = 2 R C D: the
similarities and two products. A softmax takes 4 U. That needs g in forward, before it is known:

- reduction="sum": g is one number for all rows. Forward computes the gradients for g = 1, in fp32,
  and keeps them, 4 (R + C) D bytes; backward multiplies them by g.
- reduction="none": g may be anything. Forward computes the losses, U, and backward makes the pass
  with the true g, 3 U.

Over ranks, forward of a sum already exchanges dY, and backward only asks whether g is one number
for all ranks too. Where it is not, the pass is made again with every rank's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import agreement, dispatch, ops, reference
from .exchange import MODES, Exchange
from .sigmoid_ops import (
    DIFFERENTIABLE,
    OPERAND_COUNT,
    evaluate,
    problem_of,
    scaled,
    where_needed,
)
from .validation import validate_rows

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

REDUCTIONS = ("none", "sum")


def sigmoid_cross_entropy(
    rows: Tensor,
    cols: Tensor,
    scale: Tensor | float,
    bias: Tensor | float | None = None,
    *,
    row_target: Tensor | None = None,
    reduction: str = "none",
    precision: str | None = None,
    backend: str | None = None,
    group: ProcessGroup | None = None,
    exchange: str = "gather",
) -> Tensor:
    """Sum over each row's columns of -log sigmoid(z_ij L_ij), over a matrix that is never stored.

    Args:
        rows, cols, scale, bias, precision, group, exchange: as in `two_way_cross_entropy`. fp64 is
            computed in blocks as well.
        row_target: int64 [R], the column of the row's positive, or -1: all columns are negatives.
            Default, where R = C: the diagonal. Over ranks all others' columns are negatives.
        reduction: "none", or "sum" over the rows, for three quarters of the work.
        backend: None or "torch"; "reference" stores the matrix, for second derivatives.

    Returns:
        [R], or [] with reduction="sum": over ranks, the sum over the rank's own rows. fp32, or fp64
        for fp64 features.

    Raises:
        TypeError, ValueError, RuntimeError: as `two_way_cross_entropy`.
    """
    over_ranks = group is not None and group.size() > 1
    with agreement.refusing(group, agreement.device_of(rows, cols)):
        for name, value, choices in (
            ("exchange", exchange, MODES),
            ("reduction", reduction, REDUCTIONS),
        ):
            if value not in choices:
                raise ValueError(f"{name}: got {value!r}; expected one of {', '.join(choices)}")
        args = validate_rows(rows, cols, scale, bias, row_target, precision, backend)
        stored = _wants_reference(backend, over_ranks)
    operands = args.rows, args.cols, args.scale, args.bias, row_target
    if group is not None and over_ranks:
        return _over_ranks(group, exchange, reduction, *operands, args.precision)
    if stored:
        losses = _reference(*operands)
        return losses.sum() if reduction == "sum" else losses
    if reduction == "sum":
        needed = _require_grad(operands)
        return torch.ops.slipform.sigmoid_sum(*operands, needed, args.precision)[0]
    return torch.ops.slipform.sigmoid_losses(*operands, args.precision)


def _wants_reference(backend: str | None, over_ranks: bool) -> bool:
    """Whether the definition, with a stored matrix, is asked for by argument or environment."""
    forced = backend or dispatch.override()
    if forced in (None, "torch"):
        return False
    if forced == "reference" and not over_ranks:
        return True
    source = "backend" if backend is not None else dispatch.OVERRIDE
    raise RuntimeError(
        f"{source}: got {forced!r}, which is not available: the sigmoid loss is computed in torch "
        "operations; expected 'torch', none, or in one process 'reference'"
    )


def _reference(
    rows: Tensor, cols: Tensor, scale: Tensor, bias: Tensor | None, row_target: Tensor | None
) -> Tensor:
    ops.check_ranges(rows.shape[0], cols.shape[0], row_target, None, None)
    if row_target is None:
        row_target = torch.arange(rows.shape[0], device=rows.device)
    return reference.sigmoid_cross_entropy(rows, cols, scale, bias=bias, row_target=row_target)


def _require_grad(operands: Sequence[Tensor | None]) -> list[bool]:
    enabled = torch.is_grad_enabled()
    return [enabled and t is not None and t.requires_grad for t in operands[:DIFFERENTIABLE]]


@torch.compiler.disable
def _over_ranks(group: ProcessGroup, mode: str, reduction: str, *args: Any) -> Tensor:
    """Losses of this rank's rows, or their sum; see `distributed` for what goes over the wire."""
    *operands, precision = args
    summed = reduction == "sum"
    with agreement.refusing(group, operands[0].device):
        own = problem_of(*operands, precision=precision)
        needed = _require_grad(operands)
        terms = agreement.terms_of(own, mode, [*needed, False], agreement.LOSSES[1 + summed])
    exchange = agreement.agree(group, terms, own.rows.device)
    return _OverRanks.apply(exchange, summed, needed, *operands, precision)


class _OverRanks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, exchange: Exchange, summed: bool, needed: list[bool], *args: Any
    ) -> Tensor:
        *operands, precision = args
        now = needed if summed else [False] * DIFFERENTIABLE
        with ops.no_autocast(operands[0]):
            own = problem_of(*operands, precision=precision)
            row_loss, gradients = evaluate(
                own, None, now, losses=True, rounded=False, exchange=exchange
            )
        assert row_loss is not None
        if summed:
            exchange.forget()
        ctx.save_for_backward(*operands, *gradients)
        ctx.exchange, ctx.summed, ctx.precision = exchange, summed, precision
        return row_loss.sum() if summed else row_loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "sigmoid_cross_entropy: double backward is not supported over several ranks"
            )
        (grad,) = grads
        operands, gradients = ctx.saved_tensors[:OPERAND_COUNT], ctx.saved_tensors[OPERAND_COUNT:]
        needed = list(ctx.needs_input_grad[3 : 3 + DIFFERENTIABLE])
        if ctx.summed and ctx.exchange.is_one_number(grad):
            gradients = scaled(gradients, grad, operands)
        else:
            with ops.no_autocast(operands[0]):
                own = problem_of(*operands, precision=ctx.precision)
                row_grad = grad.expand(len(own.rows))
                _, gradients = evaluate(own, row_grad, needed, losses=False, exchange=ctx.exchange)
        return None, None, None, *where_needed(needed, gradients), None, None
