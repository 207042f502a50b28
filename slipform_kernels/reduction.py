"""From unreduced losses to the scalar that is trained on, in one process or over many ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def mean(
    row_loss: Tensor, row_target: Tensor | None, col_loss: Tensor, col_target: Tensor | None
) -> Tensor:
    """Mean of the means over the anchors among the rows and over those among the columns."""
    return (_anchor_mean(row_loss, row_target) + _anchor_mean(col_loss, col_target)) / 2


def _anchor_mean(loss: Tensor, target: Tensor | None) -> Tensor:
    return loss.mean() if target is None else loss.sum() / anchors(len(loss), target)


def anchors(size: int, target: Tensor | None) -> Tensor | int:
    """How many of `size` have a target, at least 1: what their losses' mean divides by."""
    return size if target is None else (target >= 0).sum().clamp(min=1)


@torch.compiler.disable
def mean_over_ranks(
    row_loss: Tensor,
    row_target: Tensor | None,
    col_loss: Tensor,
    col_target: Tensor | None,
    *,
    group: ProcessGroup,
    local: bool = False,
) -> Tensor:
    """`mean` over the anchors of all ranks; for parameter gradients that are averaged over ranks.

    The value is the same on every rank, or with `local` the mean over this rank's anchors. The
    gradient is W times this rank's part of the whole mean's, so that the average which DDP and FSDP
    take is the whole mean's, also where ranks have different numbers of anchors.
    """
    own = [
        row_loss.sum(), _anchors(row_loss, row_target), col_loss.sum(),
        _anchors(col_loss, col_target),
    ]  # fmt: skip
    totals = torch.stack([value.detach().to(row_loss.dtype) for value in own])
    own_value = _mean_of(*totals.unbind())
    dist.all_reduce(totals, group=group)
    _, row_count, _, col_count = totals.unbind()
    share = dist.get_world_size(group) * _mean_of(own[0], row_count, own[2], col_count)
    return _Valued.apply(share, own_value if local else _mean_of(*totals.unbind()))


@torch.compiler.disable
def own_mean_over_ranks(total: Tensor, count: int, *, group: ProcessGroup) -> Tensor:
    """Mean over this rank's `count` anchors from their sum, with gradients as in `mean_over_ranks`.

    They are W times this rank's part of the gradient of the mean over the anchors of all ranks.
    """
    everyones = torch.full((), count, dtype=total.dtype, device=total.device)
    dist.all_reduce(everyones, group=group)
    share = dist.get_world_size(group) / everyones * total
    return _Valued.apply(share, total.detach() / count)


def scaled_gradient(features: Tensor, factor: float) -> Tensor:
    """The features, whose gradient will be multiplied by `factor`."""
    return _ScaledGradient.apply(features, factor)


def _mean_of(row_sum: Tensor, row_count: Tensor, col_sum: Tensor, col_count: Tensor) -> Tensor:
    return (row_sum / row_count.clamp(min=1) + col_sum / col_count.clamp(min=1)) / 2


def _anchors(loss: Tensor, target: Tensor | None) -> Tensor:
    """Their number, 0-d."""
    if target is None:
        return torch.full((), len(loss), device=loss.device)
    return (target >= 0).sum()


class _Valued(torch.autograd.Function):
    """One tensor's gradient with another one's value."""

    @staticmethod
    def forward(ctx: Any, of_gradient: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.factor, None
