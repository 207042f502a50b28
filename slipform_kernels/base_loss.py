"""What all losses have: options, the ranks that share them, the reduction to a scalar."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor, nn

from . import agreement
from .exchange import MODES
from .functional import mean_two_way_cross_entropy, two_way_cross_entropy
from .layouts import Layout
from .reduction import mean_over_ranks
from .validation import check_options

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Loss(nn.Module):
    """Options that every loss has, and the reduction of both directions to a scalar.

    Where torch.distributed runs with several ranks, the loss is that of all ranks' samples together
    (distributed.py): every rank must call it, and its gradients are right once averaged over ranks,
    which DDP and FSDP do. `ClipLoss` and `SigLipLoss` must be told rank and world_size for that, as
    open_clip's.

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
        if dist.get_rank(group) < 0:
            raise ValueError(
                f"group: got one without this process, rank {dist.get_rank()}; expected one of its "
                'own, or exchange="none"'
            )
        return group if dist.get_world_size(group) > 1 else None

    def _laid_out(self, *args: Any, **kwargs: Any) -> Any:
        """`layout`, telling other ranks where it raises an error."""
        group = self.ranks()
        with agreement.refusing(group, agreement.device_of(*args)):
            self._check_ranks(group)
            return self.layout(*args, **kwargs)

    def _check_ranks(self, group: ProcessGroup | None) -> None:
        """For losses that are told their ranks: raise ValueError where they do not fit."""

    def layout(self, *args: Any, **kwargs: Any) -> Any:
        """Arguments for `two_way_cross_entropy`."""
        raise NotImplementedError

    def _reduced(self, layout: Layout, output_dict: bool) -> Any:
        loss = self._mean(layout)
        return {self.key: loss} if output_dict else loss

    def _mean(self, layout: Layout, *, local: bool = False) -> Tensor:
        group = self.ranks()
        options: dict[str, Any] = {"precision": self.precision, "backend": self.backend}
        if group is None:
            return mean_two_way_cross_entropy(**layout, **options)
        row_loss, col_loss = two_way_cross_entropy(
            **layout, **options, group=group, exchange=self.exchange
        )
        targets = layout.get("row_target"), layout.get("col_target")
        return mean_over_ranks(row_loss, targets[0], col_loss, targets[1], group=group, local=local)


class RankedLoss(Loss):
    """A loss that is told its rank and world_size, as open_clip's are."""

    rank: int
    world_size: int

    def set_ranks(self, rank: int, world_size: int) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(
                f"rank: got {rank} with world_size {world_size}; expected 0 to {world_size - 1}"
            )
        self.rank, self.world_size = rank, world_size

    def ranks(self) -> ProcessGroup | None:
        """The process group of `world_size` ranks, or None for a world_size of 1."""
        return None if self.world_size == 1 else super().ranks()

    def _check_ranks(self, group: ProcessGroup | None) -> None:
        if self.exchange == "none":
            return
        actual = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        if actual != (self.rank, self.world_size):
            raise ValueError(
                f"world_size: got rank {self.rank} of {self.world_size}; expected those of "
                f"torch.distributed, here rank {actual[0]} of {actual[1]}"
                + ("" if group is not None else " (init_process_group was not called)")
            )
        everyone = super().ranks() if group is None else None
        if everyone is None:
            return
        text = (
            f"world_size: got 1 where torch.distributed has {dist.get_world_size(everyone)} ranks; "
            "expected rank=torch.distributed.get_rank(), world_size=torch.distributed."
            'get_world_size(), or exchange="none" for a loss of this rank\'s samples alone'
        )
        if self._asks_for_ranks():
            raise ValueError(text)
        _warn_of_one_rank(type(self).__name__, text)

    def _asks_for_ranks(self) -> bool:
        """Whether an option was given that has a meaning over several ranks only."""
        return self.group is not None or self.exchange == "ring"


@functools.cache
def _warn_of_one_rank(name: str, text: str) -> None:
    warnings.warn(f"{name}: {text}; this one is of this rank's samples alone", stacklevel=5)
