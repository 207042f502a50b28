"""Evaluations beside one another, with paired bootstrap intervals for the differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slipform_training.evaluation.results import Results, percent


@dataclass(frozen=True)
class Difference:
    """A metric of two evaluations, on the items that both have.

    Attributes:
        suite, metric: which.
        mean: "micro" over items, or "macro" over subsets.
        matched: items that both scored.
        unmatched: items that one of them alone scored; they are in no figure here.
        first, second: the accuracies on the matched items, 0 to 1.
        low, high: the interval of second - first.
    """

    suite: str
    metric: str
    mean: str
    matched: int
    unmatched: int
    first: float
    second: float
    low: float
    high: float


def compare(
    first: Results,
    second: Results,
    *,
    seed: int = 0,
    resamples: int = 10_000,
    level: float = 0.95,
) -> list[Difference]:
    """The differences of all metrics that both have.

    Items are resampled with replacement, in pairs: within each subset for the macro mean, over all
    for the micro mean. The interval is between the quantiles (1 - level) / 2 and (1 + level) / 2
    (Efron and Tibshirani 1993, chapter 13). Items count as independent, though several may share
    an image.

    Raises ValueError where no metric is in both, or resamples is below 1.
    """
    if resamples < 1:
        raise ValueError(f"resamples: got {resamples}, expected 1 or more")
    tables = [_by_metric(results) for results in (first, second)]
    found = []
    for place in tables[0]:
        if place not in tables[1]:
            continue
        one, other = tables[0][place], tables[1][place]
        matched = [key for key in one if key in other]
        unmatched = len(one) + len(other) - 2 * len(matched)
        if not matched:
            continue
        subsets: dict[str, list[tuple[bool, bool]]] = {}
        for key in matched:
            subsets.setdefault(key[0], []).append((one[key] > 0, other[key] > 0))
        pairs = [np.array(rows) for rows in subsets.values()]
        for mean, parts in (("micro", [np.concatenate(pairs)]), ("macro", pairs)):
            draw = np.random.default_rng(seed)
            low, high = _interval(parts, draw, resamples, level)
            left, right = np.mean([part.mean(axis=0) for part in parts], axis=0)
            found.append(
                Difference(
                    *place, mean, len(matched), unmatched, float(left), float(right), low, high
                )
            )
    if not found:
        raise ValueError(f"{first.path} and {second.path} have no scored item in common")
    return found


def comparison_table(
    results: Sequence[Results], differences: Mapping[str, Sequence[Difference]]
) -> str:
    """Markdown: for every later evaluation its differences to the first, in points."""
    first = results[0]
    lines = []
    for number, other in enumerate(results[1:]):
        lines += [] if number == 0 else [""]
        lines += [
            f"A: {_title(first)}  ",
            f"B: {_title(other)}",
            "",
            "| suite | metric | mean | A | B | B - A | 95% interval | items | unmatched |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {one.suite} | {one.metric} | {one.mean} | {percent(one.first)} "
            f"| {percent(one.second)} | {100 * (one.second - one.first):+.2f} "
            f"| {100 * one.low:+.2f} to {100 * one.high:+.2f} | {one.matched} | {one.unmatched} |"
            for one in differences[str(other.path)]
        ]
    return "\n".join(lines)


def _interval(
    parts: Sequence[np.ndarray], draw: np.random.Generator, resamples: int, level: float
) -> tuple[float, float]:
    """Of the mean over parts of the mean of second - first; parts are bool [items, 2].

    A pair's difference is -1, 0 or 1, so a resample is a draw from the multinomial of these three.
    """
    total = np.zeros(resamples)
    for part in parts:
        gain = part[:, 1].astype(int) - part[:, 0]
        counts = np.array([(gain == value).sum() for value in (-1, 0, 1)])
        drawn = draw.multinomial(len(gain), counts / len(gain), size=resamples)
        total += (drawn[:, 2] - drawn[:, 0]) / len(gain)
    low, high = np.quantile(total / len(parts), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _by_metric(results: Results) -> dict[tuple[str, str], dict[tuple[str, str], float]]:
    """The margins by (suite, metric), then by (subset, id)."""
    tables: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for (suite, metric, subset, key), margin in results.margins.items():
        tables.setdefault((suite, metric), {})[(subset, key)] = margin
    return tables


def _title(results: Results) -> str:
    model = results.content["model"]
    return f"{results.path.name}: {model['name']}, {model['weights']}, {model['precision']}"
