"""A suite's items scored with features: counts by metric and subset, and every margin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipform_training.evaluation.encoder import FeatureSource
from slipform_training.evaluation.missing import FoundImages, find_images
from slipform_training.evaluation.scoring import Count, count, group_margins, margins
from slipform_training.evaluation.suites import ImageRoots, Suite, SuiteItem


@dataclass(frozen=True)
class SuiteScores:
    """Columns subset, id, metric and margin, a row each scored item and metric; and the counts.

    incomplete_groups: groups that are not scored, by kind: members missing, or more than there
    should be.
    """

    counts: dict[str, dict[str, Count]]
    subset: list[str]
    id: list[str]
    metric: list[str]
    margin: np.ndarray
    missing: tuple[str, ...]
    unreadable: dict[str, str]
    incomplete_groups: dict[str, int]


def score_suite(
    suite: Suite,
    items: Sequence[SuiteItem],
    source: FeatureSource,
    *,
    roots: ImageRoots,
    missing: str,
    near_tie: float,
) -> SuiteScores:
    """Score the items whose images are all there.

    Args:
        suite: how they are scored.
        items: what its reader gave.
        source: encodes each image and text once.
        roots, missing: see missing.find_images, whose errors come from here.
        near_tie: distance of two cosines that counts as a near tie.

    Raises:
        ValueError: two items of a subset have one id.
    """
    _check_ids(items)
    found = None
    scored = list(items)
    if not suite.rule.between_texts:
        wanted = (image for item in items for image in item.images)
        found = find_images(wanted, roots, source, policy=missing, who=suite.name)
        scored = [item for item in items if all(image in found.place for image in item.images)]
    by_metric = _margins(suite, scored, source, found)
    counts: dict[str, dict[str, Count]] = {}
    columns: tuple[list[str], list[str], list[str]] = ([], [], [])
    all_margins = []
    incomplete = {}
    subsets = list(dict.fromkeys(item.subset for item in items))
    given = Counter(item.subset for item in items)
    own = np.array([item.subset for item in scored], dtype=object)
    for metric, margin in by_metric.items():
        counts[metric] = {
            name: count(margin[own == name], items=given[name], near=near_tie) for name in subsets
        }
        _extend(columns, [item.subset for item in scored], [item.id for item in scored], metric)
        all_margins.append(margin)
    for kind, size in suite.groups.items():
        whole = _groups(items, kind)
        members = _groups(scored, kind)
        kept = {key: rows for key, rows in members.items() if len(rows) == size}
        incomplete[kind] = len(whole) - len(kept)
        margin = group_margins(by_metric[suite.headline], list(kept.values()))
        place = np.array([subset for subset, _ in kept], dtype=object)
        totals = Counter(subset for subset, _ in whole)
        counts[kind] = {
            name: count(margin[place == name], items=totals[name], near=near_tie)
            for name in subsets
            if totals[name]
        }
        _extend(columns, [subset for subset, _ in kept], [key for _, key in kept], kind)
        all_margins.append(margin)
    return SuiteScores(
        counts,
        *columns,
        margin=np.concatenate(all_margins),
        missing=found.missing if found else (),
        unreadable=found.unreadable if found else {},
        incomplete_groups=incomplete,
    )


def _margins(
    suite: Suite, items: Sequence[SuiteItem], source: FeatureSource, found: FoundImages | None
) -> dict[str, np.ndarray]:
    place = {
        text: number
        for number, text in enumerate(dict.fromkeys(text for item in items for text in item.texts))
    }
    texts = source.texts(list(place))
    text_rows = [[place[text] for text in item.texts] for item in items]
    if found is None:
        return margins(suite.rule, texts, texts, text_rows, text_rows)
    image_rows = [[found.place[image] for image in item.images] for item in items]
    return margins(suite.rule, found.features, texts, image_rows, text_rows)


def _groups(items: Sequence[SuiteItem], kind: str) -> dict[tuple[str, str], list[int]]:
    """Places of the members of each group, by subset and name."""
    groups: dict[tuple[str, str], list[int]] = {}
    for number, item in enumerate(items):
        if kind in item.groups:
            groups.setdefault((item.subset, item.groups[kind]), []).append(number)
    return groups


def _extend(
    columns: tuple[list[str], list[str], list[str]],
    subset: list[str],
    ids: list[str],
    metric: str,
) -> None:
    for column, values in zip(columns, (subset, ids, [metric] * len(ids)), strict=True):
        column.extend(values)


def _check_ids(items: Sequence[SuiteItem]) -> None:
    twice = [
        key for key, number in Counter((one.subset, one.id) for one in items).items() if number > 1
    ]
    if twice:
        raise ValueError(f"annotations: {twice[0][0]} has the id {twice[0][1]!r} more than once")
