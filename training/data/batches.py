"""Shuffled batches of sample numbers, with a position that can be saved and restored."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ShuffledBatches:
    """Endless batches of sample numbers: every epoch a new order of ``range(size)``.

    The order of an epoch depends on ``(seed, epoch)`` alone, so the position is two numbers, and a
    restored run goes on with exactly the batches that it would have had. Only whole batches are
    given; the ``left_out_per_epoch`` samples at the end of an epoch's order are left out of that
    epoch (others each time).

    Args:
        size: number of samples.
        batch_size: samples in a batch, at most ``size``.
        seed: 0 or more.

    Raises:
        ValueError: a number out of range.
    """

    def __init__(self, size: int, batch_size: int, *, seed: int = 0) -> None:
        if batch_size < 1 or size < batch_size:
            raise ValueError(
                f"batch_size must be from 1 to size, got batch_size {batch_size}, size {size}"
            )
        if seed < 0:
            raise ValueError(f"seed must be 0 or more, got {seed}")
        self.size = size
        self.batch_size = batch_size
        self.seed = seed
        self.step = 0
        self._order_epoch = -1
        self._order: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches in an epoch."""
        return self.size // self.batch_size

    @property
    def left_out_per_epoch(self) -> int:
        """Samples of each epoch that fill no whole batch."""
        return self.size % self.batch_size

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        return self.step // self.batches_per_epoch

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return self

    def __next__(self) -> NDArray[np.int64]:
        """The next batch: int64 ``[batch_size]``, all different."""
        epoch, number = divmod(self.step, self.batches_per_epoch)
        if epoch != self._order_epoch:
            self._order = epoch_order(self.size, seed=self.seed, epoch=epoch)
            self._order_epoch = epoch
        self.step += 1
        start = number * self.batch_size
        return self._order[start : start + self.batch_size].copy()

    def state_dict(self) -> dict[str, int]:
        """The position and what it belongs to, as plain integers."""
        return {
            "step": self.step,
            "size": self.size,
            "batch_size": self.batch_size,
            "seed": self.seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a saved position.

        Raises:
            ValueError: the position belongs to another size, batch size or seed, or a key is
                missing.
        """
        for name in ("size", "batch_size", "seed"):
            if state.get(name) != getattr(self, name):
                raise ValueError(
                    f"state must belong to {name} {getattr(self, name)}, got {state.get(name)}"
                )
        step = state.get("step")
        if not isinstance(step, int) or step < 0:
            raise ValueError(f"state must have a step of 0 or more, got {step!r}")
        self.step = step


def epoch_order(size: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of ``range(size)`` in an epoch: int64 ``[size]``, a function of its arguments."""
    # Raw 64-bit draws of a counter-based generator: numpy keeps these bits stable between
    # releases, which it does not promise for Generator.permutation.
    draws = np.random.Philox(key=[seed, epoch]).random_raw(size)
    return np.argsort(draws, kind="stable").astype(np.int64)


def spaced(
    order: NDArray[np.int64], groups: NDArray[np.int64], *, distance: int
) -> NDArray[np.int64]:
    """`order`, with samples of one group at least `distance` places apart as far as can be.

    A sample that comes too early waits until its turn; those for which the end comes first go to
    the front, if their group is not near it. Otherwise the order stays. Any `distance` places in a
    row so hold no two samples of a group, but for groups too large for that.

    Args:
        order: int64 [N], each of 0 to N - 1 once.
        groups: int64 [N], of each sample.
        distance: places.

    Returns:
        int64 [N], a function of the arguments alone.
    """
    drawn = groups[order]
    by_group = np.argsort(drawn, kind="stable")
    is_same = drawn[by_group][1:] == drawn[by_group][:-1]
    if not (is_same & (np.diff(by_group) < distance)).any():
        return order
    placed: list[int] = []
    first: dict[int, int] = {}
    free: dict[int, int] = {}  # the place from which on a group may come again
    waiting: dict[int, deque[int]] = {}
    turns: list[tuple[int, int]] = []  # (place, group) of groups that wait

    def place(sample: int, group: int) -> None:
        first.setdefault(group, len(placed))
        placed.append(sample)
        free[group] = len(placed) - 1 + distance

    def place_waiting() -> None:
        while turns and turns[0][0] <= len(placed):
            group = heapq.heappop(turns)[1]
            place(waiting[group].popleft(), group)
            if waiting[group]:
                heapq.heappush(turns, (free[group], group))
            else:
                del waiting[group]

    for sample, group in zip(order.tolist(), drawn.tolist(), strict=True):
        place_waiting()
        if group in waiting:
            waiting[group].append(sample)
        elif free.get(group, 0) > len(placed):
            heapq.heappush(turns, (free[group], group))
            waiting[group] = deque([sample])
        else:
            place(sample, group)
    place_waiting()
    front: list[int] = []
    for _, group in sorted(turns):
        if first[group] >= distance:
            front.append(waiting[group].popleft())
        placed += waiting[group]
    return np.array(front + placed, dtype=np.int64)
