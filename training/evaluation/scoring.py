"""A few rules by which compositional suites are scored, and the counting.

A metric is a list of comparisons between cosines that must all hold, strictly. The smallest
difference is the item's margin: the item is correct above 0, and a tie at exactly 0, which is
wrong. So a model that gives everything the same features scores 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# Cosines nearer than this are near ties: fp32's rounding, and that of bf16's 8 bits, can turn them.
NEAR_TIE = {"fp32": 1e-6, "bf16": 2.0**-8}

# Pairs of features that are multiplied at a time; bounds the memory, in fp64.
_CHUNK = 8192

Cell = tuple[int, int]


@dataclass(frozen=True)
class Metric:
    """A name and the comparisons (row, column) > (row, column) of cosines that must all hold."""

    name: str
    comparisons: tuple[tuple[Cell, Cell], ...]


@dataclass(frozen=True)
class Rule:
    """How an item is scored.

    metrics: of an item's table of cosines. between_texts: whether the rows of that table are the
    item's texts, as the columns are; else they are its images.
    """

    name: str
    metrics: tuple[Metric, ...]
    between_texts: bool = False


def first_wins(options: int, name: str = "accuracy") -> Metric:
    """The image is nearer to its first text than to each of the others."""
    return Metric(name, tuple(((0, 0), (0, other)) for other in range(1, options)))


_TEXT = (((0, 0), (0, 1)), ((1, 1), (1, 0)))
_IMAGE = (((0, 0), (1, 0)), ((1, 1), (0, 1)))

# One image; the first text is true. The number of texts is the item's own.
CHOICE = Rule("choice", (first_wins(2),))

# One image, two true texts and a false one (SugarCrepe++'s ITT; Dumpala et al. 2024).
TWO_POSITIVES = Rule(
    "two_positives",
    (
        Metric("both", (((0, 0), (0, 2)), ((0, 1), (0, 2)))),
        Metric("first", (((0, 0), (0, 2)),)),
        Metric("second", (((0, 1), (0, 2)),)),
    ),
)

# The two true texts are nearer to each other than either is to the false one (SugarCrepe++'s TOT).
TEXT_ONLY = Rule(
    "text_only", (Metric("both", (((0, 1), (0, 2)), ((0, 1), (1, 2)))),), between_texts=True
)

# Two images and their texts (Winoground; Thrush et al. 2022, section 4).
CROSSED = Rule(
    "crossed", (Metric("text", _TEXT), Metric("image", _IMAGE), Metric("group", _TEXT + _IMAGE))
)


def metrics_of(rule: Rule, texts: int) -> tuple[Metric, ...]:
    """The rule's metrics for an item of so many texts."""
    return (first_wins(texts, rule.metrics[0].name),) if rule is CHOICE else rule.metrics


def margins(
    rule: Rule,
    rows: Tensor,
    columns: Tensor,
    row_of: Sequence[Sequence[int]],
    column_of: Sequence[Sequence[int]],
) -> dict[str, np.ndarray]:
    """The margin of every item by each metric.

    Args:
        rule: one of the rules above.
        rows, columns: unit features [n, D] and [m, D]: of the images and the texts, or, for a rule
            between texts, of the texts twice.
        row_of, column_of: for each item, the places of its rows and its columns.

    Returns:
        By metric an fp64 array [items]; the cosines are computed in fp64, so that equal features
        are equal in cosine, whatever their place.
    """
    found = {metric.name: np.full(len(column_of), np.nan) for metric in rule.metrics}
    shapes: dict[tuple[int, int], list[int]] = {}
    for item, (own_rows, own_columns) in enumerate(zip(row_of, column_of, strict=True)):
        shapes.setdefault((len(own_rows), len(own_columns)), []).append(item)
    for (height, width), items in shapes.items():
        chosen = metrics_of(rule, width)
        step = max(1, _CHUNK // (height * width))
        for start in range(0, len(items), step):
            part = items[start : start + step]
            left = rows[torch.tensor([row_of[item] for item in part])].double()
            right = columns[torch.tensor([column_of[item] for item in part])].double()
            cosines = (left.unsqueeze(2) * right.unsqueeze(1)).sum(-1).numpy()
            for metric in chosen:
                gaps = [
                    cosines[:, a, b] - cosines[:, c, d] for (a, b), (c, d) in metric.comparisons
                ]
                found[metric.name][part] = np.min(gaps, axis=0)
    return found


def group_margins(margin: np.ndarray, members: Sequence[Sequence[int]]) -> np.ndarray:
    """The margin of groups of items that must all be right: the least of the members' [groups]."""
    return np.array([margin[list(group)].min() for group in members], dtype=np.float64)


@dataclass(frozen=True)
class Count:
    """What a metric counts over some items.

    Attributes:
        items: items given, with those that could not be scored.
        scored: items scored.
        correct: items whose comparisons all hold.
        ties: items that fail by equal cosines alone.
        near_ties: items within rounding of a tie, the ties among them.
    """

    items: int
    scored: int
    correct: int
    ties: int
    near_ties: int

    @property
    def accuracy(self) -> float:
        """correct / scored, 0 to 1; nan if none was scored."""
        return self.correct / self.scored if self.scored else math.nan


def count(margin: np.ndarray, *, items: int, near: float) -> Count:
    """Counts the margins [scored] of a metric. near: distance from 0 that is a near tie."""
    return Count(
        items=items,
        scored=len(margin),
        correct=int((margin > 0).sum()),
        ties=int((margin == 0).sum()),
        near_ties=int((np.abs(margin) <= near).sum()),
    )


def micro(counts: Mapping[str, Count]) -> Count:
    """All subsets' items as one."""
    return Count(
        *(
            sum(getattr(one, field) for one in counts.values())
            for field in ("items", "scored", "correct", "ties", "near_ties")
        )
    )


def macro(counts: Mapping[str, Count], *, at_least: int = 1) -> float:
    """Unweighted mean of the subsets' accuracies; nan if one has nothing scored.

    at_least: subsets of fewer items are left out.
    """
    accuracies = [one.accuracy for one in counts.values() if one.items >= at_least]
    return sum(accuracies) / len(accuracies) if accuracies else math.nan
