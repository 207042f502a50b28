"""Is the present tree slower than the last release? The arithmetic, apart from the measuring.

A round has one timing of each step in each tree. What counts is the ratio of ratios,

    change = (ours / beside in the present tree) / (ours / beside in the release),

with open_clip's loss or the matrix product beside, so that whatever slows a whole process, or both
for a while, cancels. The change of a case is the median over all rounds; its interval is the
bootstrap's, which draws processes first and rounds within them, since two processes of the same
code differ by more than their rounds (memory layout, placement of threads).
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 2000
COVERAGE = 0.95
BESIDE = ("eager", "product")
SLOWER, UNCLEAR, FINE = "slower", "unclear", "fine"

Timing = dict[str, float]
# A round: what was timed in the present tree, and in the release.
Round = tuple[Timing, Timing]


@dataclass(frozen=True)
class Change:
    """How much larger a cost is now: 1.2 is a fifth more. low, high: of the interval."""

    value: float
    low: float
    high: float

    def verdict(self, tolerance: float) -> str:
        """SLOWER if the whole interval lies beyond the tolerance, UNCLEAR if the value does."""
        if self.low > 1 + tolerance:
            return SLOWER
        return UNCLEAR if self.value > 1 + tolerance else FINE


def change_in_time(processes: Sequence[Sequence[Round]], beside: str, *, seed: int = 0) -> Change:
    """The change of ours beside `beside`, from the rounds of each pair of processes."""
    changes = [
        [(now["ours"] / now[beside]) / (then["ours"] / then[beside]) for now, then in rounds]
        for rounds in processes
    ]
    draw = random.Random(seed)
    medians = sorted(
        statistics.median(
            value
            for rounds in draw.choices(changes, k=len(changes))
            for value in draw.choices(rounds, k=len(rounds))
        )
        for _ in range(RESAMPLES)
    )
    outside = round(RESAMPLES * (1 - COVERAGE) / 2)
    value = statistics.median(value for rounds in changes for value in rounds)
    return Change(value, medians[outside], medians[-1 - outside])


def change_in_memory(now: Sequence[int], then: Sequence[int]) -> Change:
    """The change of the extra bytes; the interval is the widest that the repetitions allow."""
    least, most = max(1, min(then)), max(1, max(then))
    value = statistics.median(now) / max(1.0, statistics.median(then))
    return Change(value, min(now) / most, max(now) / least)


def cost(processes: Sequence[Sequence[Round]], beside: str, *, tree: int) -> float:
    """Median of ours / `beside` in one tree, 0 the present and 1 the release."""
    timings = [pair[tree] for rounds in processes for pair in rounds]
    return statistics.median(timing["ours"] / timing[beside] for timing in timings)
