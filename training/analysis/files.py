"""Files of captions and hard captions, as `slipform train` reads them, as data of an analysis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader

from slipform_training.data import Stream
from slipform_training.finetune import Batch
from slipform_training.train.config import TrainConfig
from slipform_training.train.material import Group, Loaded, Material
from slipform_training.train.model import ModelParts
from slipform_training.train.samples import SampleError, Samples, read_samples

from .pairs import HardPairs, encode_pairs


@dataclass
class SampleChoice:
    """Samples of a file for an analysis: one row an image, so that no easy negative is a positive.

    numbers: of the samples taken. rated: whether each hard caption has a concreteness; then rows
    without are among the left out. left_out: rows by reason. failures: of images, once encoded.
    """

    samples: Samples
    numbers: list[int]
    rated: bool
    left_out: Counter[str]
    failures: list[SampleError] = field(default_factory=list)

    def report(self) -> dict[str, object]:
        """Counts and names for a json file."""
        return {
            "samples": len(self.numbers) - len(self.failures),
            "rated": self.rated,
            "left_out": dict(self.left_out),
            "failures": [str(error) for error in self.failures],
        }


def choose_samples(config: TrainConfig, *, count: int, seed: int = 0) -> SampleChoice:
    """Up to `count` samples of config.data, drawn with `seed`; config.loss is "negclip".

    Raises what `read_samples` raises.
    """
    samples = read_samples(config)
    left_out = Counter(error.kind for error in samples.left_out)
    found = [samples[number] for number in range(len(samples))]
    with_hard = [sample for sample in found if sample.hard_captions]
    rated = any(sample.concreteness for sample in with_hard)
    seen: set[tuple[object, ...]] = set()
    numbers: list[int] = []
    for number in Stream(seed, "samples").shuffled(range(len(found))):
        sample = found[number]
        key = (sample.image, *sample.span)
        if rated and sample.hard_captions and not sample.concreteness:
            left_out["no concreteness"] += 1
        elif key in seen:
            left_out["another caption of an image"] += 1
        elif len(numbers) < count:
            numbers.append(number)
            seen.add(key)
        else:
            left_out["more than asked for"] += 1
    return SampleChoice(samples, numbers, rated, left_out)


def file_subject(
    label: str,
    parts: ModelParts,
    choice: SampleChoice,
    config: TrainConfig,
    *,
    device: str,
    progress: Callable[[int], None] = lambda samples: None,
) -> HardPairs:
    """The model's features of the chosen samples, in config.batch_size at a time.

    Samples that cannot be loaded are raised, or with config.on_error "skip" kept in
    choice.failures.

    Raises:
        SampleError: an image that cannot be read, without "skip".
        ValueError: no sample could be loaded.
    """
    material = Material(choice.samples, config, transform=parts.prepare, tokenizer=parts.tokenizer)
    failures: list[SampleError] = []
    pairs = encode_pairs(
        label,
        parts.model,
        _batches(material, choice.numbers, config, failures),
        rated=choice.rated,
        device=device,
        progress=progress,
    )
    choice.failures = failures
    return pairs


def _batches(
    material: Material, numbers: list[int], config: TrainConfig, failures: list[SampleError]
) -> Iterator[Batch]:
    size = config.batch_size
    groups = [Group(0, at, numbers[at : at + size]) for at in range(0, len(numbers), size)]
    loader: DataLoader[Loaded] = DataLoader(
        material,
        batch_size=None,
        sampler=groups,
        num_workers=config.workers,
        collate_fn=_as_it_is,
        generator=torch.Generator(),
    )
    for loaded in loader:
        failed = [error for _, error in loaded.failures]
        if failed and config.on_error == "raise":
            raise failed[0]
        failures += failed
        if loaded.places:
            names = ("images", "texts", "hard_texts", "hard_mask", "concreteness")
            yield Batch(**{name: loaded.tensors[name] for name in names})
    if len(failures) == len(numbers):
        raise ValueError(f"data: none of {len(numbers)} samples could be loaded; {failures[0]}")


def _as_it_is(loaded: Any) -> Any:
    return loaded
