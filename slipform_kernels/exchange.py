"""What ranks send each other for one loss: columns, two floats a column, and dY.

Every rank keeps its rows. Its columns (features, and what else belongs to a column) reach the other
ranks in one of two ways: gathered, all at once, or in a ring, one rank's after the other, so that
no rank holds more than three ranks' columns. Requests are made early and awaited late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

MODES = ("gather", "ring")

Columns = dict[str, Tensor]  # [n, ...] each: what belongs to n columns
# (columns of other ranks, the range of their positions among all columns in the order of the ranks)
Piece = tuple[Columns, slice]


class Exchange:
    """The communication of one loss. `counts` are the columns of every rank of `group`."""

    def __init__(self, group: dist.ProcessGroup, counts: list[int], mode: str):
        self.group = group
        self.counts = counts
        self.mode = mode
        self.rank = dist.get_rank(group)
        self.size = len(counts)
        self.starts = [sum(counts[:rank]) for rank in range(self.size)]
        self.kept: list[Piece] | None = None

    @property
    def total(self) -> int:
        """Columns of all ranks."""
        return sum(self.counts)

    def of(self, rank: int) -> slice:
        """Positions of a rank's columns among all."""
        return slice(self.starts[rank], self.starts[rank] + self.counts[rank])

    def pieces(self, own: Columns) -> Iterator[Piece]:
        """The columns of all other ranks; what is on its way is awaited when it is asked for.

        Gathered columns are kept for the second time, which is the backward's, and let go after it.
        """
        if self.mode == "ring":
            return self._passed_on(self._pass_on(own, 1))
        if self.kept is not None:
            return iter(self.kept)
        return self._unpacked({name: self._start_gather(value) for name, value in own.items()})

    def _unpacked(self, gathered: dict[str, Callable[[], Tensor]]) -> Iterator[Piece]:
        arrived = {name: wait() for name, wait in gathered.items()}
        height = max(self.counts)
        self.kept = []
        for first, last in self._runs():
            place = slice(self.starts[first], self.of(last - 1).stop)
            start = first * height
            stop = start + place.stop - place.start
            self.kept.append(({n: value[start:stop] for n, value in arrived.items()}, place))
        yield from self.kept

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Ranges of other ranks whose columns lie together, without padding between them."""
        even = len(set(self.counts)) == 1
        for first, last in ((0, self.rank), (self.rank + 1, self.size)):
            if even and first < last:
                yield first, last
            elif not even:
                yield from ((rank, rank + 1) for rank in range(first, last))

    def _start_gather(self, value: Tensor) -> Callable[[], Tensor]:
        """[W * max(counts), ...], a rank's columns at multiples of max(counts)."""
        height = max(self.counts)
        padded = value.contiguous()
        if len(value) < height:
            padded = value.new_zeros((height, *value.shape[1:]))
            padded[: len(value)] = value
        out = value.new_empty((self.size * height, *value.shape[1:]))
        with explained("gathering columns"):
            work = all_gather(out, padded, group=self.group, async_op=True)
        on_its_way = [padded]

        def wait() -> Tensor:
            with explained("gathering columns"):
                work.wait()
            on_its_way.clear()
            return out

        return wait

    def _pass_on(self, held: Columns, step: int) -> Callable[[], Columns]:
        """Send what is held, receive the columns of the rank that is `step` further on."""
        if step == self.size:
            return dict
        count = self.counts[(self.rank + step) % self.size]
        coming = {name: v.new_empty((count, *v.shape[1:])) for name, v in held.items()}
        wait = self._shift(list(held.values()), list(coming.values()), "passing columns on")

        def arrived() -> Columns:
            wait()
            return coming

        return arrived

    def _passed_on(self, arrived: Callable[[], Columns]) -> Iterator[Piece]:
        for step in range(1, self.size):
            held = arrived()
            arrived = self._pass_on(held, step + 1)
            yield held, self.of((self.rank + step) % self.size)

    def _shift(self, leaving: list[Tensor], coming: list[Tensor], what: str) -> Callable[[], None]:
        """Send to the rank before this one, receive from the one after."""
        before, after = (
            dist.get_global_rank(self.group, (self.rank + step) % self.size) for step in (-1, 1)
        )
        sends = [
            dist.P2POp(dist.isend, value.contiguous(), before, self.group) for value in leaving
        ]
        receives = [dist.P2POp(dist.irecv, value, after, self.group) for value in coming]
        on_its_way = [*sends, *receives]
        with explained(what):
            works = dist.batch_isend_irecv(on_its_way)

        def wait() -> None:
            with explained(what):
                for work in works:
                    work.wait()
            on_its_way.clear()

        return wait

    def everyones(self, own: Tensor) -> Tensor:
        """[total, ...] in the order of the ranks, from every rank's [n, ...]; for small tensors."""
        arrived, height = self._start_gather(own)(), max(self.counts)
        parts = [arrived[r * height : r * height + n] for r, n in enumerate(self.counts)]
        return torch.cat(parts)

    def to_owners(self, partial: Tensor) -> Tensor:
        """[W, n]: every rank's share in this rank's columns, from [total] on every rank."""
        own = self.counts[self.rank]
        out = partial.new_empty(self.size * own)
        with explained("merging the columns' sums"):
            dist.all_to_all_single(
                out, partial.contiguous(), [own] * self.size, self.counts, group=self.group
            )
        return out.view(self.size, own)

    def largest(self, value: Tensor) -> Tensor:
        """The greatest of all ranks' values."""
        value = value.clone()
        with explained("comparing numbers"):
            dist.all_reduce(value, dist.ReduceOp.MAX, group=self.group)
        return value

    def is_one_number(self, value: Tensor) -> bool:
        """Whether all ranks have the same value, 0-d; waits for it."""
        high, minus_low = self.largest(torch.stack([value, -value])).tolist()
        return high == -minus_low

    def forget(self) -> None:
        """Free gathered columns: there will probably be no second time."""
        self.kept = None

    def summed_at_owners(self, own: Tensor) -> Sum:
        """Collects gradients of columns, `own` and those of the pieces, and returns their sums."""
        return _Scattered(self, own) if self.mode == "gather" else _Carried(self, own)


class Sum:
    """Gradients of columns on their way to the rank that owns the columns."""

    def part(self, place: slice) -> Tensor:
        """Where to write the gradient [n, ...] of a piece's columns."""
        raise NotImplementedError

    def send(self, place: slice) -> None:
        """The piece at `place` is written."""

    def result(self) -> Tensor:
        """Sum over all ranks for this rank's columns, [n, ...]."""
        raise NotImplementedError


class _Scattered(Sum):
    """One reduce-scatter when everything is written."""

    def __init__(self, exchange: Exchange, own: Tensor):
        self.exchange = exchange
        self.height = max(exchange.counts)
        self.buffer = own.new_zeros((exchange.size * self.height, *own.shape[1:]))
        self.own = own

    def part(self, place: slice) -> Tensor:
        start = self.exchange.starts.index(place.start) * self.height
        return self.buffer[start : start + place.stop - place.start]

    def result(self) -> Tensor:
        exchange = self.exchange
        self.part(exchange.of(exchange.rank)).copy_(self.own)
        out = self.buffer.new_empty((self.height, *self.buffer.shape[1:]))
        with explained("summing the columns' gradients"):
            _reduce_scatter(out, self.buffer, group=exchange.group)
        return out[: len(self.own)]


class _Carried(Sum):
    """Each piece's gradient follows its columns round the ring, every rank adding its share."""

    def __init__(self, exchange: Exchange, own: Tensor):
        self.exchange = exchange
        self.current = own
        self.step = 0
        self._start(own)

    def _start(self, leaving: Tensor) -> None:
        """Send what is complete for this rank, receive the sum of the columns of the next step."""
        exchange = self.exchange
        self.step += 1
        owner = (exchange.rank + self.step) % exchange.size
        self.coming = leaving.new_empty((exchange.counts[owner], *leaving.shape[1:]))
        self.leaving = leaving  # kept until it is sent
        self.wait = exchange._shift([leaving], [self.coming], "summing the columns' gradients")

    def part(self, place: slice) -> Tensor:
        self.current = self.coming.new_empty((place.stop - place.start, *self.coming.shape[1:]))
        return self.current

    def send(self, place: slice) -> None:
        self.wait()
        self._start(self.current.add_(self.coming))

    def result(self) -> Tensor:
        self.wait()
        return self.coming


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Name what was going on when the communication failed."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"{what} between ranks failed: a rank has died, left the loss out, or passed the "
            f"process group's timeout ({error})"
        ) from error


def all_gather(out: Tensor, value: Tensor, **options: Any) -> Any:
    run = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return run(out, value, **options)


def _reduce_scatter(out: Tensor, value: Tensor, **options: Any) -> Any:
    run = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return run(out, value, **options)
