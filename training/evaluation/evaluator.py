"""Scores a model on test pairs: does the image rank the true caption above the false one?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from slipform_training.evaluation.encoder import unit_rows
from slipform_training.evaluation.sugarcrepe import Pair

Encoder = Callable[[Sequence[Any]], torch.Tensor]


@dataclass(frozen=True)
class PairScore:
    """A pair's two cosines; correct only if the true caption's is strictly greater."""

    category: str
    id: str
    positive: float
    negative: float

    @property
    def correct(self) -> bool:
        """Whether the true caption wins; a tie is no win."""
        return self.positive > self.negative

    @property
    def tie(self) -> bool:
        """Whether the two cosines are the same number."""
        return self.positive == self.negative


@dataclass(frozen=True)
class CategoryScore:
    """Counts of one category.

    Attributes:
        pairs: pairs given.
        scored: pairs whose image was found; the rest are missing.
        correct: pairs in which the true caption's cosine is strictly greater.
        ties: pairs with equal cosines, which count as wrong.
    """

    pairs: int
    scored: int
    correct: int
    ties: int

    @property
    def accuracy(self) -> float:
        """correct / scored, 0 to 1; nan if none was scored. Chance is 0.5."""
        return self.correct / self.scored if self.scored else math.nan


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model.

    Attributes:
        categories: counts by category, in the order of the pairs.
        missing: sorted names of the images that were not found.
        scores: the scored pairs, in the order of the pairs.
    """

    categories: dict[str, CategoryScore]
    missing: tuple[str, ...] = ()
    scores: tuple[PairScore, ...] = field(default=(), repr=False)

    @property
    def micro(self) -> float:
        """Accuracy over all scored pairs; nan if none was scored."""
        scored = sum(score.scored for score in self.categories.values())
        correct = sum(score.correct for score in self.categories.values())
        return correct / scored if scored else math.nan

    @property
    def macro(self) -> float:
        """Unweighted mean of the categories' accuracies; nan if one has none scored."""
        accuracies = [score.accuracy for score in self.categories.values()]
        return sum(accuracies) / len(accuracies) if accuracies else math.nan

    @property
    def ties(self) -> int:
        """Ties in all categories."""
        return sum(score.ties for score in self.categories.values())

    def table(self) -> str:
        """Accuracies in percent and counts as lines of text, missing images below."""
        lines = [f"{'category':<14}{'accuracy':>9}{'scored':>8}{'ties':>6}{'missing':>9}"]
        for name, score in self.categories.items():
            lines.append(
                f"{name:<14}{100 * score.accuracy:>9.2f}{score.scored:>8}{score.ties:>6}"
                f"{score.pairs - score.scored:>9}"
            )
        lines.append(f"{'micro mean':<14}{100 * self.micro:>9.2f}")
        lines.append(f"{'macro mean':<14}{100 * self.macro:>9.2f}")
        if self.missing:
            lines.append(f"missing images: {len(self.missing)}")
            lines += [f"  {name}" for name in self.missing]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Counts and accuracies for a json file; nan becomes None. Without the single pairs."""
        return {
            "categories": {
                name: {
                    "pairs": score.pairs,
                    "scored": score.scored,
                    "correct": score.correct,
                    "ties": score.ties,
                    "accuracy": _or_none(score.accuracy),
                }
                for name, score in self.categories.items()
            },
            "micro": _or_none(self.micro),
            "macro": _or_none(self.macro),
            "missing": list(self.missing),
        }


def open_image_folder(root: str | Path) -> Callable[[str], Image.Image]:
    """A loader of images by name from a folder, as PIL images in RGB.

    The loader raises FileNotFoundError where there is no such file.
    """
    folder = Path(root)

    def load(filename: str) -> Image.Image:
        with Image.open(folder / filename) as image:
            return image.convert("RGB")

    return load


@torch.no_grad()
def evaluate_pairs(
    pairs: Sequence[Pair],
    encode_images: Encoder,
    encode_texts: Encoder,
    *,
    load_image: Callable[[str], Any],
    batch_size: int = 256,
) -> Evaluation:
    """Scores a model on test pairs by SugarCrepe's rule (arXiv 2306.14610).

    A pair is correct if cos(image, caption) > cos(image, negative_caption), strictly. Each image
    and each text is encoded once, in batches; equal texts so have equal features, and a pair of
    equal captions is a tie. Cosines are computed in float32.

    Args:
        pairs: the pairs; the categories are reported in the order in which they come.
        encode_images: from a list of what load_image returns to features ``[B, D]``.
        encode_texts: from a list of texts to features ``[B, D]``. Neither need be normalised.
        load_image: from a file name to an image; FileNotFoundError makes the image missing: its
            pairs are not scored, and its name is reported.
        batch_size: images or texts encoded at a time.

    Raises:
        ValueError: batch_size below 1; features of a wrong shape, or not finite, or zero.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be 1 or more, got {batch_size}")
    images, missing = _encode_images(
        list(dict.fromkeys(pair.filename for pair in pairs)), encode_images, load_image, batch_size
    )
    found = [pair for pair in pairs if pair.filename in images]
    texts = _encode_texts(
        list(dict.fromkeys(t for pair in found for t in (pair.caption, pair.negative_caption))),
        encode_texts,
        batch_size,
    )
    scores = tuple(
        PairScore(
            pair.category,
            pair.id,
            positive=_cosine(images[pair.filename], texts[pair.caption]),
            negative=_cosine(images[pair.filename], texts[pair.negative_caption]),
        )
        for pair in found
    )
    categories = {}
    for name in dict.fromkeys(pair.category for pair in pairs):
        own = [score for score in scores if score.category == name]
        categories[name] = CategoryScore(
            pairs=sum(pair.category == name for pair in pairs),
            scored=len(own),
            correct=sum(score.correct for score in own),
            ties=sum(score.tie for score in own),
        )
    return Evaluation(categories=categories, missing=tuple(sorted(missing)), scores=scores)


def _encode_images(
    names: list[str], encode: Encoder, load: Callable[[str], Any], batch_size: int
) -> tuple[dict[str, torch.Tensor], list[str]]:
    features: dict[str, torch.Tensor] = {}
    missing = []
    waiting: list[tuple[str, Any]] = []
    for number, name in enumerate(names, start=1):
        try:
            waiting.append((name, load(name)))
        except FileNotFoundError:
            missing.append(name)
        if waiting and (len(waiting) == batch_size or number == len(names)):
            rows = unit_rows(encode([image for _, image in waiting]), len(waiting), "encode_images")
            features.update(zip([name for name, _ in waiting], rows, strict=True))
            waiting = []
    return features, missing


def _encode_texts(texts: list[str], encode: Encoder, batch_size: int) -> dict[str, torch.Tensor]:
    features: dict[str, torch.Tensor] = {}
    for start in range(0, len(texts), batch_size):
        batch = texts[start : start + batch_size]
        features.update(
            zip(batch, unit_rows(encode(batch), len(batch), "encode_texts"), strict=True)
        )
    return features


def _cosine(image: torch.Tensor, text: torch.Tensor) -> float:
    if image.shape != text.shape:
        raise ValueError(
            "encode_images and encode_texts must return features of one size, "
            f"got {image.shape[0]} and {text.shape[0]}"
        )
    return float(image @ text)


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
