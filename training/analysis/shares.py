"""Where the gradient goes against the batch size: arXiv 2604.13313, section 2."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipform_kernels import CementLoss, NegClipLoss
from slipform_training.data import Stream
from slipform_training.finetune import measured_shares

from .pairs import HardPairs


@dataclass(frozen=True)
class ShareRow:
    """Shares of one repetition: means over batches of means over anchors with hard captions.

    pull: 1 - p_+. hard, easy: p_hard and p_easy, which add up to the pull. hard_share,
    easy_share: their parts of the pull, which add up to 1. batches: how many were measured.
    """

    model: str
    batch_size: int
    margin: float
    repeat: int
    batches: int
    pull: float
    hard: float
    easy: float
    hard_share: float
    easy_share: float


def shares_by_batch(
    pairs: HardPairs,
    *,
    batch_sizes: Sequence[int],
    margins: Sequence[float],
    repeats: int,
    seed: int = 0,
) -> list[ShareRow]:
    """Gradient shares at each batch size, with each margin, in each repetition.

    A repetition draws as many samples as the largest batch has and cuts them into batches of every
    size, so its rows differ in nothing but the batch and the margin.

    margins: Cement's at concreteness 5, in cosine units; 0 is NegCLIP. Where the data have no
    concreteness, every hard caption gets the whole margin.

    Raises:
        ValueError: a batch size below 2 or above the number of samples; no anchor with a hard
            caption in any batch of a size.
    """
    largest = max(batch_sizes)
    if min(batch_sizes) < 2 or largest > len(pairs):
        raise ValueError(
            f"batch_sizes: got {list(batch_sizes)}, expected 2 to {len(pairs)}, the samples"
        )
    rows = []
    for repeat in range(repeats):
        order = torch.tensor(Stream(seed, "batches", repeat).shuffled(range(len(pairs))))
        for size in batch_sizes:
            for margin in margins:
                rows.append(_row(pairs, order[:largest], size, margin, repeat))
    return rows


def _row(pairs: HardPairs, order: Tensor, size: int, margin: float, repeat: int) -> ShareRow:
    found = [batch_shares(pairs, part, margin) for part in _cut(order, size)]
    found = [shares for shares in found if shares]
    if not found:
        raise ValueError(
            f"batch_sizes: got {size}, of which no batch of {pairs.label} has hard captions"
        )

    def mean(values: Iterator[float]) -> float:
        return math.fsum(values) / len(found)

    return ShareRow(
        model=pairs.label,
        batch_size=size,
        margin=margin,
        repeat=repeat,
        batches=len(found),
        pull=mean(one["share_pull"] for one in found),
        hard=mean(one["share_pull"] * one["share_hard"] for one in found),
        easy=mean(one["share_pull"] * one["share_easy"] for one in found),
        hard_share=mean(one["share_hard"] for one in found),
        easy_share=mean(one["share_easy"] for one in found),
    )


def _cut(order: Tensor, size: int) -> list[Tensor]:
    return [order[at : at + size] for at in range(0, len(order) - size + 1, size)]


def batch_shares(pairs: HardPairs, numbers: Tensor, margin: float) -> dict[str, float]:
    """The shares of one batch as `finetune.measured_shares` names them."""
    features = pairs.features(numbers)
    if margin == 0:
        return measured_shares(NegClipLoss(), features)
    features["concreteness"] = concreteness_of(pairs, numbers)
    return measured_shares(CementLoss(margin=margin), features)


def concreteness_of(pairs: HardPairs, numbers: Tensor) -> Tensor:
    """fp32 [n, K]; 5 everywhere, for the whole margin, where the data have none."""
    if pairs.concreteness is None:
        return torch.full(pairs.mask[numbers].shape, 5.0)
    return pairs.concreteness[numbers]
