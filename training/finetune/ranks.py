"""What the training loop asks of torch.distributed; alone, every answer is immediate."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world() -> tuple[int, int]:
    """(rank, number of ranks) of the default process group; (0, 1) without one."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def on_any_rank(flag: bool, device: torch.device) -> bool:
    """Whether `flag` is true on some rank. Every rank must ask."""
    if world()[1] == 1:
        return flag
    raised = torch.tensor(float(flag), device=device)
    dist.all_reduce(raised, op=dist.ReduceOp.MAX)
    return bool(raised.item())


def of_all_ranks(value: Any) -> list[Any]:
    """`value` of every rank, in order, on every rank; plain values, which are pickled."""
    size = world()[1]
    if size == 1:
        return [value]
    values: list[Any] = [None] * size
    dist.all_gather_object(values, value)
    return values


def mean_over_ranks(sums: Tensor, counts: Tensor, *, group: dist.ProcessGroup | None) -> Tensor:
    """Means [k] over the group's ranks of what sums and counts [k] are this rank's part of.

    0 where the count is 0 on all ranks. The value is the same on every rank; the gradient is W
    times this rank's part of the mean's, since DDP averages gradients over W ranks. So ranks may
    have different counts, or none.
    """
    if group is None:
        return sums / counts.clamp(min=1)
    totals = torch.stack([sums.detach(), counts.to(sums.dtype)])
    dist.all_reduce(totals, group=group)
    everyones = totals[1].clamp(min=1)
    share = dist.get_world_size(group) * sums / everyones
    return share + (totals[0] / everyones - share).detach()


def joined(value: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The tensors [N, ...] of the group's ranks, which are of one shape, as one [W N, ...]."""
    if group is None:
        return value
    parts = [torch.empty_like(value) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, value.contiguous(), group=group)
    return torch.cat(parts)
