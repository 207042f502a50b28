"""From sample numbers to tensors: what a loading process does, alike in every process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from slipform_training.data import Stream
from slipform_training.macco.masks import ConceptMasks
from slipform_training.macco.rows import Concepts

from .config import HARD_LOSSES, TrainConfig
from .images import load_image
from .samples import Sample, SampleError, Samples


class Group(NamedTuple):
    """A request for samples: numbers at consecutive places of an epoch's order."""

    epoch: int
    start: int
    numbers: list[int]


@dataclass(frozen=True)
class Loaded:
    """The samples of a group that could be loaded, and the others.

    places: of each loaded sample in the epoch's order. tensors: fields of a Batch, and counts, [n]
    each: "cut" and "same", captions that were cut to the context length, and hard captions that
    were left out since they are the caption itself after that, and those of macco.masks.COUNTED;
    "group" [n], of the image. failures: place and error. examples: what was counted, and where.
    """

    epoch: int
    places: list[int]
    tensors: dict[str, Tensor]
    failures: list[tuple[int, SampleError]]
    examples: list[tuple[str, str]] = field(default_factory=list)


class Material(Dataset[Loaded]):
    """Loads groups of samples. What is random follows from (seed, epoch, sample number) alone.

    transform: PIL image -> float [3, H, W]. tokenizer: texts -> int64 [n, L], as open_clip's.
    masks: takes the place of `transform` for images with concepts, and masks these.
    """

    def __init__(
        self,
        samples: Samples,
        config: TrainConfig,
        *,
        transform: Callable[[Any], Tensor],
        tokenizer: Callable[[list[str]], Tensor],
        masks: ConceptMasks | None = None,
    ) -> None:
        self.samples = samples
        self._root = Path(config.images)
        self._seed = config.seed
        self._hard = config.hard_captions if config.loss in HARD_LOSSES else 0
        self._hard_images = config.loss == "triplet" or config.hard_images
        self._hard_mask = config.loss != "triplet"  # which takes no mask
        self._transform = transform
        self._tokenizer = tokenizer
        self._masks = masks

    def __getitem__(self, group: Group) -> Loaded:
        places, rows, failures = [], [], []
        examples: list[tuple[str, str]] = []
        for place, number in enumerate(group.numbers, start=group.start):
            try:
                rows.append(self._row(group.epoch, number, examples))
                places.append(place)
            except SampleError as error:
                failures.append((place, error))
        names = rows[0] if rows else ()
        tensors = {name: torch.stack([row[name] for row in rows]) for name in names}
        return Loaded(group.epoch, places, tensors, failures, examples)

    def _row(self, epoch: int, number: int, examples: list[tuple[str, str]]) -> dict[str, Tensor]:
        sample = self.samples[number]
        key = (epoch, number)
        if self._masks is None:
            row = {"images": self._pixels(sample.image, sample, sample.span, "augment", *key)}
        else:
            row = self._masked(sample, *key, examples)
        choice = Stream(self._seed, "caption", epoch, number)
        caption = choice.choice(sample.captions)
        chosen: list[int] = []
        if self._hard:
            order = Stream(self._seed, "hard caption", epoch, number).shuffled(
                range(len(sample.hard_captions))
            )
            chosen = sorted(order[: self._hard])
        if self._hard_images and not sample.hard_images:
            chosen = []
        row["group"] = torch.tensor(self.samples.groups[number])
        row.update(self._texts(caption, sample, chosen))
        if self._hard_images and chosen:
            hard = sample.hard_images[chosen[0]]
            row["hard_images"] = self._pixels(hard, sample, (), "augment hard", *key)
        elif self._hard_images:
            row["hard_images"] = row["images"]  # masked
        return row

    def _texts(self, caption: str, sample: Sample, chosen: Sequence[int]) -> dict[str, Tensor]:
        texts = [caption, *(sample.hard_captions[i] for i in chosen)]
        tokens = self._tokenizer(texts)
        cut = sum(
            is_cut(self._tokenizer, text, row) for text, row in zip(texts, tokens, strict=True)
        )
        row = {"texts": tokens[0], "cut": torch.tensor(cut), "same": torch.tensor(0)}
        if not self._hard:
            return row
        missing = self._hard - len(chosen)
        rating = [sample.concreteness[i] if sample.concreteness else 1.0 for i in chosen]
        differs = (tokens[1:] != tokens[0]).any(1)
        row["hard_texts"] = torch.cat([tokens[1:], tokens[:1].expand(missing, -1)])
        if self._hard_mask:
            row["hard_mask"] = torch.cat([differs, torch.zeros(missing, dtype=torch.bool)])
            row["same"] = (~differs).sum()
        elif not bool(differs.all()):
            raise SampleError(
                "same hard caption", sample.where, "the caption itself at the context length"
            )
        row["concreteness"] = torch.tensor(rating + missing * [1.0], dtype=torch.float32)
        return row

    def _masked(
        self, sample: Sample, epoch: int, number: int, examples: list[tuple[str, str]]
    ) -> dict[str, Tensor]:
        """The image, and what is masked of it and of its caption."""
        assert self._masks is not None
        crop = self._masks.crop
        pixels, part = self._transformed(
            crop, sample.image, sample, sample.span, "augment", epoch, number
        )
        try:
            found, told = self._masks.of(
                sample.captions[0],
                Concepts.of_plain(sample.concepts or {}),
                part,
                Stream(self._seed, "mask", epoch, number),
            )
        except ValueError as error:
            raise SampleError("broken box", sample.where, str(error)) from error
        examples += [(kind, f"{text} ({sample.where})") for kind, text in told]
        return {"images": pixels, **found}

    def _pixels(self, name: str, sample: Sample, span: Sequence[int], *key: str | int) -> Tensor:
        return self._transformed(self._transform, name, sample, span, *key)

    def _transformed(
        self,
        transform: Callable[[Any], Any],
        name: str,
        sample: Sample,
        span: Sequence[int],
        *key: str | int,
    ) -> Any:
        try:
            image = load_image(self._root / name, span)
        except SampleError as error:
            raise SampleError(error.kind, error.where, f"{error.detail}; {sample.where}") from error
        with _seeded(Stream(self._seed, *key).below(2**53)):
            return transform(image)


def is_cut(tokenizer: Any, text: str, tokens: Tensor) -> bool:
    """Whether `text` has more tokens than the context holds."""
    if int(tokens[-1]) == 0:  # padding: there was room
        return False
    if hasattr(tokenizer, "encode"):
        return len(tokenizer.encode(text)) + 2 > len(tokens)
    inner = getattr(tokenizer, "tokenizer", None)  # a Hugging Face tokenizer in open_clip's
    return inner is not None and len(inner(text).input_ids) > len(tokens)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators that transforms draw from, and put them back afterwards."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs too
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
