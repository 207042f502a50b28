"""Average precision of multi-label scores, non-interpolated and VOC's 11-point form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class MeanPrecision:
    """Average precisions of C classes, 0 to 1.

    average_precision: non-interpolated, as scikit-learn's average_precision_score.
    voc11: PASCAL VOC's 11-point interpolation; the two are not comparable.
    Both are nan for the classes in without_positives, which the means leave out.
    """

    average_precision: tuple[float, ...]
    voc11: tuple[float, ...]
    without_positives: tuple[int, ...]

    @property
    def mean(self) -> float:
        """mAP, non-interpolated; nan if no class has positives."""
        return _mean(self.average_precision)

    @property
    def voc11_mean(self) -> float:
        """mAP of the 11-point form; nan if no class has positives."""
        return _mean(self.voc11)

    def to_dict(self) -> dict[str, Any]:
        """For a json file; nan becomes None."""
        return {
            "mAP": _or_none(self.mean),
            "mAP_voc11": _or_none(self.voc11_mean),
            "average_precision": [_or_none(value) for value in self.average_precision],
            "average_precision_voc11": [_or_none(value) for value in self.voc11],
            "classes_without_positives": list(self.without_positives),
        }


def mean_precision(scores: Tensor, targets: Tensor) -> MeanPrecision:
    """Average precisions of each class.

    Args:
        scores: [N, C], higher is surer; any floating type.
        targets: bool [N, C], whether image n shows class c.

    Raises:
        ValueError: shapes that differ, targets that are not bool, scores that are not finite.
    """
    if scores.shape != targets.shape or scores.dim() != 2:
        raise ValueError(
            f"targets: got {list(targets.shape)}, expected [N, C] as scores, {list(scores.shape)}"
        )
    if targets.dtype != torch.bool:
        raise ValueError(f"targets: got dtype {targets.dtype}, expected bool")
    if not bool(torch.isfinite(scores).all()):
        raise ValueError("scores: got values that are not finite")
    plain, voc, missing = [], [], []
    for number, (score, target) in enumerate(zip(scores.T, targets.T, strict=True)):
        if not bool(target.any()):
            missing.append(number)
        plain.append(average_precision(score, target))
        voc.append(voc11_precision(score, target))
    return MeanPrecision(tuple(plain), tuple(voc), tuple(missing))


def average_precision(scores: Tensor, targets: Tensor) -> float:
    """Sum over thresholds of (recall - recall before) * precision; nan without positives.

    Equal scores share a threshold, so their order does not matter. scores [N]; targets bool [N].
    """
    hits, found = _at_thresholds(scores, targets)
    if not len(hits) or hits[-1] == 0:
        return math.nan
    steps = torch.diff(hits, prepend=hits.new_zeros(1)).double()
    return (steps * hits / found).sum().item() / hits[-1].item()


def voc11_precision(scores: Tensor, targets: Tensor) -> float:
    """Mean over recalls 0, 0.1, ..., 1 of the highest precision at that recall or more.

    PASCAL VOC until 2009 (Everingham et al. 2010, section 4.2). nan without positives. scores [N];
    targets bool [N].
    """
    hits, found = _at_thresholds(scores, targets)
    if not len(hits) or hits[-1] == 0:
        return math.nan
    precision = hits.double() / found
    # 10 hits >= k positives: in whole numbers, since 3 of 10 is not 0.3 in floating point.
    reached = [precision[10 * hits >= k * hits[-1]].max().item() for k in range(11)]
    return sum(reached) / len(reached)


def _at_thresholds(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """int64 [T] each, for every different score, highest first: positives and all at or above."""
    order = scores.argsort(descending=True)
    ranked = scores[order]
    last = torch.ones(len(scores), dtype=torch.bool)
    last[:-1] = ranked[1:] != ranked[:-1]
    places = torch.nonzero(last)[:, 0]
    return targets[order].cumsum(0)[places], places + 1


def _mean(values: tuple[float, ...]) -> float:
    counted = [value for value in values if not math.isnan(value)]
    return sum(counted) / len(counted) if counted else math.nan


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
