"""The margin's effect on the ratio p_hard / p_easy, against theory: a factor exp(scale margin)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipform_kernels import CementLoss, GradientShares, gradient_shares
from slipform_training.data import Stream

from .pairs import HardPairs

# Both are differences of fp32 numbers near the pull: a smaller part of it is mostly rounding.
_RESOLVED = 1e-4


@dataclass(frozen=True)
class MarginRow:
    """A batch with the same margin on every hard caption, compared with none.

    theory: exp(scale margin), the factor on every anchor's p_hard / p_easy. median, low, high: of
    the anchors' measured factors, and their 5th and 95th percentiles; nan if no anchor's could be
    resolved in fp32. resolved, anchors: how many could, of those with hard captions. of_means: the
    factor on the ratio of the batch's mean shares, for which no such rule holds. hard_share: of
    the batch's pull.
    """

    model: str
    batch_size: int
    margin: float
    theory: float
    median: float
    low: float
    high: float
    resolved: int
    anchors: int
    of_means: float
    hard_share: float


def margin_effect(
    pairs: HardPairs, *, batch_sizes: Sequence[int], margins: Sequence[float], seed: int = 0
) -> list[MarginRow]:
    """A row for each batch size and each margin (cosine units, constant); 0 is always measured.

    Raises ValueError for a batch size above the number of samples.
    """
    order = torch.tensor(Stream(seed, "batches", 0).shuffled(range(len(pairs))))
    rows = []
    for size in batch_sizes:
        if size > len(pairs):
            raise ValueError(f"batch_sizes: got {size}, expected at most {len(pairs)}, the samples")
        numbers = order[:size]
        anchors = pairs.mask[numbers].any(1)
        without = _shares(pairs, numbers, 0.0)
        for margin in margins:
            found = _shares(pairs, numbers, margin)
            rows.append(_compare(pairs, size, margin, anchors, without, found))
    return rows


def _shares(pairs: HardPairs, numbers: Tensor, margin: float) -> GradientShares:
    whole = torch.full(pairs.mask[numbers].shape, 5.0)  # so that every margin is `margin`
    layout = CementLoss(margin=margin).layout(**pairs.features(numbers), concreteness=whole)
    return gradient_shares(**layout)


def _compare(
    pairs: HardPairs,
    size: int,
    margin: float,
    anchors: Tensor,
    without: GradientShares,
    found: GradientShares,
) -> MarginRow:
    resolved = anchors.clone()
    for shares in (without, found):
        for part in (shares.hard, shares.easy):
            resolved &= part > _RESOLVED * shares.positive
    factors = (found.hard * without.easy / (found.easy * without.hard))[resolved].double()
    marks = torch.tensor([0.5, 0.05, 0.95], dtype=torch.float64)
    median, low, high = factors.quantile(marks).tolist() if len(factors) else 3 * (math.nan,)
    hard, easy = found.hard[anchors].sum(), found.easy[anchors].sum()
    before = without.hard[anchors].sum() / without.easy[anchors].sum()
    return MarginRow(
        model=pairs.label,
        batch_size=size,
        margin=margin,
        theory=math.exp(pairs.scale * margin),
        median=median,
        low=low,
        high=high,
        resolved=int(resolved.sum()),
        anchors=int(anchors.sum()),
        of_means=(hard / easy / before).item(),
        hard_share=(hard / (hard + easy)).item(),
    )
