"""Retrieval of captions by images and of images by captions: recall and median rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .encoder import FeatureSource, ImageItem
from .retrieval_data import RetrievalSet
from .similarities import similarities

# Images and captions in a block of similarities: about 15 MB with what is computed from it.
_BLOCK = 1024


@dataclass(frozen=True)
class Direction:
    """Ranks of one direction's queries.

    ranks: int64 [Q], from 0: the candidates that are at least as similar as the query's own best
    one, its own left out. ties: queries with a candidate exactly as similar as that; they count
    against the model, so one that gives every pair the same similarity scores 0.
    """

    ranks: Tensor
    ties: int

    def recall(self, k: int) -> float:
        """Share of the queries whose own candidate is among the first k, 0 to 1."""
        return (self.ranks < k).double().mean().item()

    @property
    def median_rank(self) -> float:
        """From 1; the mean of the two middle ones if the queries are even in number."""
        return self.ranks.double().quantile(0.5).item() + 1

    def to_dict(self) -> dict[str, Any]:
        """Counts and figures for a json file."""
        recalls = {f"R@{k}": self.recall(k) for k in (1, 5, 10)}
        return {
            "queries": len(self.ranks),
            **recalls,
            "median_rank": self.median_rank,
            "ties": self.ties,
        }


@dataclass(frozen=True)
class Retrieval:
    """Both directions: an image's query is answered by any of its captions."""

    image_to_text: Direction
    text_to_image: Direction

    def table(self) -> str:
        """Recalls in percent, as lines of text."""
        lines = [
            f"{'direction':<14}{'R@1':>7}{'R@5':>7}{'R@10':>7}{'median':>8}{'queries':>9}{'ties':>6}"
        ]
        for name in ("image_to_text", "text_to_image"):
            one: Direction = getattr(self, name)
            recalls = "".join(f"{100 * one.recall(k):>7.2f}" for k in (1, 5, 10))
            lines.append(
                f"{name:<14}{recalls}{one.median_rank:>8.1f}{len(one.ranks):>9}{one.ties:>6}"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Counts and figures of both directions for a json file."""
        return {
            "image_to_text": self.image_to_text.to_dict(),
            "text_to_image": self.text_to_image.to_dict(),
        }


def evaluate_retrieval(data: RetrievalSet, source: FeatureSource, *, root: Path) -> Retrieval:
    """Retrieval on a set whose images lie under `root`; what `source` raises passes through."""
    images = source.images([ImageItem(root / name) for name in data.images])
    return retrieve(images, source.texts(data.captions), data.image_of)


@torch.no_grad()
def retrieve(images: Tensor, texts: Tensor, image_of: Sequence[int] | Tensor) -> Retrieval:
    """Ranks of both directions, without the matrix of all similarities.

    The convention is that of Karpathy & Fei-Fei 2015 (arXiv 1412.2306, section 4.2): an image's
    rank is that of its best caption. Memory beside the features is some 15 MB, for any sizes.

    Args:
        images: fp32 [N, D], unit norm. texts: fp32 [C, D], unit norm.
        image_of: [C], for each caption the number of its image.

    Raises:
        ValueError: shapes that do not fit, features that are not finite, an image without
            captions or a number that is no image's.
    """
    owner = torch.as_tensor(image_of, dtype=torch.int64)
    _check(images, texts, owner)
    best, own = _own_similarities(images, texts, owner)
    above = torch.zeros(len(images), dtype=torch.int64), torch.zeros(len(texts), dtype=torch.int64)
    tied = torch.zeros(len(images), dtype=torch.bool), torch.zeros(len(texts), dtype=torch.bool)
    for i in range(0, len(images), _BLOCK):
        for j in range(0, len(texts), _BLOCK):
            rows, cols = slice(i, i + _BLOCK), slice(j, j + _BLOCK)
            block = similarities(images[rows], texts[cols])
            inside = torch.nonzero((owner[cols] >= i) & (owner[cols] < i + len(block)))[:, 0]
            block[owner[cols][inside] - i, inside] = -torch.inf
            for side, own_part in ((0, best[rows, None]), (1, own[None, cols])):
                part = (rows, cols)[side]
                above[side][part] += (block >= own_part).sum(1 - side)
                tied[side][part] |= (block == own_part).any(1 - side)
    return Retrieval(*(Direction(above[side], int(tied[side].sum())) for side in (0, 1)))


def _own_similarities(images: Tensor, texts: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
    """[N] of each image with its best caption, [C] of each caption with its image."""
    parts = [
        (images[owner[at : at + _BLOCK]].double() * texts[at : at + _BLOCK].double()).sum(1)
        for at in range(0, len(texts), _BLOCK)
    ]
    own = torch.cat(parts).float()
    best = torch.full((len(images),), -torch.inf).scatter_reduce(0, owner, own, "amax")
    return best, own


def _check(images: Tensor, texts: Tensor, owner: Tensor) -> None:
    if images.dim() != 2 or texts.dim() != 2 or images.shape[1] != texts.shape[1]:
        raise ValueError(
            f"texts: got features {list(texts.shape)} and images {list(images.shape)}, "
            "expected [C, D] and [N, D]"
        )
    if owner.shape != texts.shape[:1]:
        raise ValueError(f"image_of: got {list(owner.shape)}, expected [{len(texts)}]")
    for name, features in (("images", images), ("texts", texts)):
        if not bool(torch.isfinite(features).all()):
            raise ValueError(f"{name}: got features that are not finite")
    if not torch.equal(owner.unique(), torch.arange(len(images))):
        raise ValueError(
            f"image_of: got {len(owner.unique())} images, expected each of {len(images)} to have "
            "a caption"
        )
