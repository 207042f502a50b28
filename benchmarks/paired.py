"""Two things side by side: each timed run of a peer has a run of the baseline next to it.

pytest-benchmark runs one benchmark after another, minutes apart on a machine whose clock and
neighbours change. So the baseline, and a matrix product, run again in the set-up of every round of
every peer, and what is reported are medians of the ratios within a round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

WARM_UP = 2


class Step(Protocol):
    """Something to time, with what must not be timed kept apart."""

    def prepare(self) -> None:
        """Before a run."""

    def run(self) -> None:
        """The timed part, complete when it returns."""

    def release(self) -> None:
        """After a run: let go of its results."""


class Pairing:
    """A peer's rounds, each beside the same round's run of every step of `beside`.

    `clock` gives seconds.
    """

    def __init__(
        self,
        peer: Step,
        beside: Mapping[str, Step],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.peer = peer
        self.beside = beside
        self.clock = clock
        self.times: dict[str, list[float]] = {name: [] for name in beside}

    def setup(self) -> None:
        """Time every other step once, and make the peer ready. Runs before each of its runs."""
        self.peer.release()
        for name, step in self.beside.items():
            step.prepare()
            start = self.clock()
            step.run()
            self.times[name].append(self.clock() - start)
            step.release()
        self.peer.prepare()

    def measure(self, benchmark: Any, rounds: int) -> list[float]:
        """Seconds of each round of the peer, by pytest-benchmark; `times` is then beside them."""
        benchmark.pedantic(self.peer.run, setup=self.setup, rounds=rounds, warmup_rounds=WARM_UP)
        self.peer.release()
        self.times = {name: values[WARM_UP:] for name, values in self.times.items()}
        return list(benchmark.stats.stats.data)


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Median over rounds of the ratio within a round."""
    return statistics.median(_ratios(numerators, denominators))


def ratio_iqr(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Distance of the quartiles of those ratios (inclusive method); 0 of a single round."""
    ratios = _ratios(numerators, denominators)
    if len(ratios) == 1:
        return 0.0
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return high - low


def _ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(numerators, denominators, strict=True)]
