"""What all losses have: options, the ranks that share them, the reduction to a scalar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor, nn

from . import agreement
from .exchange import MODES
from .functional import two_way_cross_entropy
from .layouts import Layout
from .reduction import mean, mean_over_ranks
from .validation import check_options

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Loss(nn.Module):
    """Options that every loss has, and the reduction of both directions to a scalar.

    Where torch.distributed runs with several ranks, the loss is that of all ranks' samples together
    (distributed.py): every rank must call it, and its gradients are right once averaged over ranks,
    which DDP and FSDP do.

    Args:
        precision, backend: as in `two_way_cross_entropy`.
        group: the ranks; None is the default group.
        exchange: "gather" or "ring", as in `two_way_cross_entropy`; "none": each rank by itself.
    """

    key: str

    def __init__(
        self,
        *,
        precision: str | None = None,
        backend: str | None = None,
        group: ProcessGroup | None = None,
        exchange: str = "gather",
    ):
        super().__init__()
        check_options(precision, backend)
        if exchange not in (*MODES, "none"):
            expected = ", ".join((*MODES, "none"))
            raise ValueError(f"exchange: got {exchange!r}; expected one of {expected}")
        self.precision = precision
        self.backend = backend
        self.group = group
        self.exchange = exchange

    def ranks(self) -> ProcessGroup | None:
        """The process group that shares the loss, or None where this process is alone."""
        if self.exchange == "none" or not (dist.is_available() and dist.is_initialized()):
            return None
        group = self.group or dist.group.WORLD
        return group if dist.get_world_size(group) > 1 else None

    def _laid_out(self, *args: Any, **kwargs: Any) -> Any:
        """`layout`, telling other ranks where it raises an error."""
        with agreement.refusing(self.ranks(), agreement.device_of(*args)):
            return self.layout(*args, **kwargs)

    def layout(self, *args: Any, **kwargs: Any) -> Any:
        """Arguments for `two_way_cross_entropy`."""
        raise NotImplementedError

    def _reduced(self, layout: Layout, output_dict: bool) -> Any:
        loss = self._mean(layout)
        return {self.key: loss} if output_dict else loss

    def _mean(self, layout: Layout, *, local: bool = False) -> Tensor:
        group = self.ranks()
        exchange = self.exchange if group is not None else MODES[0]
        row_loss, col_loss = two_way_cross_entropy(
            **layout,
            precision=self.precision,
            backend=self.backend,
            group=group,
            exchange=exchange,
        )
        targets = layout.get("row_target"), layout.get("col_target")
        if group is None:
            return mean(row_loss, targets[0], col_loss, targets[1])
        return mean_over_ranks(row_loss, targets[0], col_loss, targets[1], group=group, local=local)


def check_rank(rank: int, world_size: int) -> None:
    """A loss with open_clip's constructor was told a rank that there is."""
    if not 0 <= rank < world_size:
        raise ValueError(
            f"rank: got {rank} with world_size {world_size}; expected 0 to {world_size - 1}"
        )


def check_ranks(group: ProcessGroup | None, rank: int, world_size: int) -> None:
    """A loss with open_clip's constructor was told what torch.distributed says."""
    actual = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    if actual != (rank, world_size):
        raise ValueError(
            f"world_size: got rank {rank} of {world_size}; expected those of "
            f"torch.distributed, here rank {actual[0]} of {actual[1]}"
            + ("" if group is not None else " (init_process_group was not called)")
        )
