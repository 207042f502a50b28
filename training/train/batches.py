"""Full batches of samples that could be loaded, with a position that can be saved."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from slipform_training.data import epoch_order, spaced
from slipform_training.finetune import Batch
from slipform_training.macco.masks import COUNTED

from .material import Group, Loaded, Material
from .samples import SampleError

# What of each kind is named in the report, apart from its number.
_EXAMPLES = 3


class SkipLog:
    """One json line for every sample that was skipped: epoch, what is wrong, where, details."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep(self, lines: int) -> None:
        """Drop all but the first `lines`, which is what a run knows of when it resumes."""
        if not self.path.exists():
            return
        kept = self.path.read_text(encoding="utf-8").splitlines(keepends=True)[:lines]
        temporary = self.path.with_name(self.path.name + ".tmp")
        temporary.write_text("".join(kept), encoding="utf-8")
        os.replace(temporary, self.path)

    def write(self, epoch: int, error: SampleError) -> None:
        """Append one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        record = {"epoch": epoch, "kind": error.kind, "where": error.where, "detail": error.detail}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


class ImageTextBatches:
    """An endless stream of batches, for one of `ranks` processes.

    Every epoch has a new order of all samples; rank r takes places r, r + ranks, ... of it. Samples
    of one image, which are no negatives of each other, stand at least ranks * batch_size places
    apart where that is possible, and else are counted. A
    sample that cannot be loaded is an error, or with `skip` is counted, logged and replaced by the
    next one, so that batches stay full. Samples at the end of an epoch that fill no batch are left
    out of it. The number of worker processes does not change the batches.

    Raises:
        ValueError: fewer samples than a batch; with skip, fewer usable ones.
        SampleError: a sample that cannot be loaded, without skip.
    """

    def __init__(
        self,
        material: Material,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        ranks: int = 1,
        skip: SkipLog | None = None,
        workers: int = 0,
    ) -> None:
        self.batch_size = batch_size
        self._material = material
        self._seed = seed
        self._rank, self._ranks = rank, ranks
        self._skip = skip
        self._workers = workers
        self.size = len(material.samples) // ranks  # samples of this rank in an epoch
        if self.size < batch_size:
            raise ValueError(
                f"batch_size: got {batch_size}, expected at most {self.size}, the samples "
                f"({len(material.samples)}) for each of {ranks} processes"
            )
        self._epoch, self._place = 0, 0
        self.skipped: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self._loaded: Iterator[Loaded] | None = None
        self._ready: list[tuple[list[int], dict[str, Tensor]]] = []
        self._failures: list[tuple[int, SampleError]] = []

    @property
    def batches_per_epoch(self) -> int:
        """Batches of an epoch in which every sample can be loaded."""
        return self.size // self.batch_size

    def __iter__(self) -> ImageTextBatches:
        return self

    def __next__(self) -> Batch:
        """The next batch of batch_size different samples."""
        if self._loaded is None:
            if self._skip is not None:
                self._skip.keep(self.skipped.total())
            self._loaded = self._load()
        while sum(len(places) for places, _ in self._ready) < self.batch_size:
            self._take(next(self._loaded))
        tensors = self._first(self.batch_size)
        self._count_failures(before=self._place)
        for name in ("cut", "same", *COUNTED):
            if name in tensors:
                self.counts[name] += int(tensors.pop(name).sum())
        groups = tensors.pop("group")
        if (twice := len(groups) - len(groups.unique())) > 0:
            self.counts["twice"] += twice
        return Batch(**tensors)

    def _first(self, count: int) -> dict[str, Tensor]:
        """Take the first `count` samples of those that are ready."""
        parts: list[dict[str, Tensor]] = []
        while count:
            places, tensors = self._ready.pop(0)
            taken = min(count, len(places))
            if taken < len(places):
                rest = {name: value[taken:] for name, value in tensors.items()}
                self._ready.insert(0, (places[taken:], rest))
            parts.append({name: value[:taken] for name, value in tensors.items()})
            self._place = places[taken - 1] + 1
            count -= taken
        if len(parts) == 1:
            return parts[0]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _take(self, loaded: Loaded) -> None:
        """Put what was loaded behind what is ready; a new epoch drops what is left of the old."""
        if loaded.epoch != self._epoch:
            self._count_failures(before=self.size)
            if self._place == 0:
                raise ValueError(
                    f"data: got {sum(len(places) for places, _ in self._ready)} usable samples "
                    f"for this process in epoch {self._epoch}, expected batch_size = "
                    f"{self.batch_size}; {self.report()}"
                )
            self._ready = []
            self._epoch, self._place = loaded.epoch, 0
        if loaded.failures and self._skip is None:
            raise loaded.failures[0][1]
        self._failures += loaded.failures
        for kind, text in loaded.examples:
            kept = self.examples.setdefault(kind, [])
            if len(kept) < _EXAMPLES and text not in kept:
                kept.append(text)
        if loaded.places:
            self._ready.append((loaded.places, loaded.tensors))

    def _count_failures(self, *, before: int) -> None:
        """Count and log failures at places that are behind us: those ahead come again on resume."""
        assert self._skip is not None or not self._failures
        while self._failures and self._failures[0][0] < before:
            _, error = self._failures.pop(0)
            self.skipped[error.kind] += 1
            self._skip.write(self._epoch, error)  # type: ignore[union-attr]

    def _load(self) -> Iterator[Loaded]:
        loader: DataLoader[Loaded] = DataLoader(
            self._material,
            batch_size=None,
            sampler=self._groups(self._epoch, self._place),
            num_workers=self._workers,
            collate_fn=as_it_is,
            # Else it draws its workers' seeds from the generator that training draws from.
            generator=torch.Generator(),
        )
        return iter(loader)

    def _groups(self, epoch: int, place: int) -> Iterator[Group]:
        """Groups of a batch's size, from a place of an epoch on, without end."""
        while True:
            samples = self._material.samples
            order = spaced(
                epoch_order(len(samples), seed=self._seed, epoch=epoch),
                samples.groups,
                distance=self.batch_size * self._ranks,
            )
            own = order[self._rank :: self._ranks][: self.size].tolist()
            while place < self.size:
                numbers = own[place : place + self.batch_size]
                # What is left of an epoch can only complete a batch in which samples failed.
                if len(numbers) == self.batch_size or self._skip is not None:
                    yield Group(epoch, place, numbers)
                place += len(numbers)
            epoch, place = epoch + 1, 0

    def report(self) -> str:
        """What was skipped so far, by kind, captions that were cut, and what was not masked."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.skipped.items()))
        parts = [f"skipped {self.skipped.total()}" + (f" ({kinds})" if kinds else "")]
        parts.append(f"captions cut to the context length: {self.counts['cut']}")
        if self.counts["same"]:
            parts.append(f"hard captions that were the caption itself: {self.counts['same']}")
        if self.counts["twice"]:
            parts.append(f"samples beside another of the same image: {self.counts['twice']}")
        parts += [
            f"{what}: {self.counts[name]}" for name, what in COUNTED.items() if self.counts[name]
        ]
        examples = [
            f"  {COUNTED[name]}: {text}" for name, kept in self.examples.items() for text in kept
        ]
        return "\n".join(["; ".join(parts), *examples])

    def state_dict(self) -> dict[str, Any]:
        """The position, what it belongs to and the counts."""
        return {
            "epoch": self._epoch,
            "place": self._place,
            "skipped": dict(self.skipped),
            "counts": dict(self.counts),
            "examples": {kind: list(kept) for kind, kept in self.examples.items()},
            **self._identity(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position; ValueError if it is of other data."""
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise ValueError(f"state: got {name} {state.get(name)}, expected {value}")
        self._epoch, self._place = state["epoch"], state["place"]
        self.skipped = Counter(state["skipped"])
        self.counts = Counter(state["counts"])
        self.examples = {kind: list(kept) for kind, kept in state["examples"].items()}
        self._loaded, self._ready, self._failures = None, [], []

    def _identity(self) -> dict[str, int]:
        return {
            "samples": len(self._material.samples),
            "batch_size": self.batch_size,
            "seed": self._seed,
            "rank": self._rank,
            "ranks": self._ranks,
        }


def as_it_is(loaded: Any) -> Any:
    """What a DataLoader is to do with groups, which are collated already."""
    return loaded
