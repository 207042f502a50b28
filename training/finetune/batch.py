"""Batches, and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Batch:
    """N samples, each with up to K hard captions; what a loss does not need may be None.

    images: float [N, 3, H, W]. texts: int64 [N, L] token ids. hard_texts: int64 [N, K, L].
    concreteness: float [N, K], 1 to 5, of the replaced words. hard_mask: bool [N, K], false where
    the sample has no such hard caption (its tokens are then ignored). hard_images: as images.
    word_mask: bool [N, L], the tokens that MACCO masks. patch_mask: bool [N, P], the patches that
    it masks, row by row of the grid.
    """

    images: Tensor
    texts: Tensor
    hard_texts: Tensor | None = None
    concreteness: Tensor | None = None
    hard_mask: Tensor | None = None
    hard_images: Tensor | None = None
    word_mask: Tensor | None = None
    patch_mask: Tensor | None = None

    def __len__(self) -> int:
        return self.images.shape[0]

    def to(self, device: torch.device) -> Batch:
        """The same batch on `device`."""
        held = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        return replace(self, **{name: getattr(self, name).to(device) for name in held})


class BatchSource(Protocol):
    """An endless stream of batches that can say where it is and continue from there.

    The state is plain values and tensors, so that a checkpoint can hold it.
    """

    batch_size: int

    def __next__(self) -> Batch: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class IndexSource(Protocol):
    """An endless stream of sample numbers with a position, as data.ShuffledBatches is."""

    batch_size: int
    step: int

    def __next__(self) -> NDArray[np.int64]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class MappedBatches:
    """The batches that `gather` makes from a stream of sample numbers.

    gather(indices, step): int64 [N] numbers and the batch's number from 0 -> Batch. Its random
    choices (which caption, which hard caption) have to follow from these two and a seed, so that
    the position of `order` is all there is to save.
    """

    def __init__(
        self, order: IndexSource, gather: Callable[[NDArray[np.int64], int], Batch]
    ) -> None:
        self.batch_size = order.batch_size
        self._order = order
        self._gather = gather

    def __iter__(self) -> MappedBatches:
        return self

    def __next__(self) -> Batch:
        step = self._order.step
        return self._gather(next(self._order), step)

    def state_dict(self) -> dict[str, Any]:
        """The position of the stream of numbers."""
        return self._order.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position; ValueError if it is of other data."""
        self._order.load_state_dict(dict(state))
