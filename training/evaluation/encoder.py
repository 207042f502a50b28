"""Features of images and texts: the protocol that every task reads from, and a model behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from slipform_training.train.material import is_cut

if TYPE_CHECKING:
    from slipform_training.evaluation.models import TwoTowers

PRECISIONS = ("fp32", "bf16")


class ImageItem(NamedTuple):
    """An image file, or a part of it: box crops x0, y0, x1, y1, in pixels of the upright image."""

    path: Path
    box: tuple[float, float, float, float] | None = None


class FeatureSource(Protocol):
    """Whatever gives features: a model, or a cache in front of one."""

    def images(self, items: Sequence[ImageItem]) -> Tensor:
        """Features fp32 [n, D] of unit norm, on the CPU; UnreadableImagesError if any fails."""
        ...

    def texts(self, texts: Sequence[str]) -> Tensor:
        """Features fp32 [n, D] of unit norm, on the CPU."""
        ...


class UnreadableImagesError(ValueError):
    """Files that are there and cannot be decoded. failures: the reason for each."""

    def __init__(self, failures: Mapping[ImageItem, str]) -> None:
        first, reason = next(iter(failures.items()))
        more = f", and {len(failures) - 1} more" if len(failures) > 1 else ""
        super().__init__(f"images: got unreadable {first.path}: {reason}{more}")
        self.failures = dict(failures)


class ModelSource:
    """Features computed by a model, in batches.

    Args:
        towers: the model, in eval mode on its device; see models.open_model.
        precision: "fp32", or "bf16" for autocast. Features are fp32 either way.
        batch_size: images, or four times as many texts, at a time.
        workers: processes that read images; 0 reads them in this one.
        progress: called with ("images" or "texts", done, all) after every batch.

    Raises ValueError for an unknown precision, or features that are not finite or zero.
    """

    def __init__(
        self,
        towers: TwoTowers,
        *,
        precision: str = "fp32",
        batch_size: int = 64,
        workers: int = 0,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"precision: got {precision!r}, expected one of {PRECISIONS}")
        if batch_size < 1:
            raise ValueError(f"batch_size: got {batch_size}, expected 1 or more")
        self.towers = towers
        self.precision = precision
        self.batch_size = batch_size
        self.workers = workers
        self.progress = progress
        self.cut = 0  # texts that were longer than the context, of those encoded

    def images(self, items: Sequence[ImageItem]) -> Tensor:
        """See FeatureSource; everything that can be read is encoded before the error is raised."""
        batches = list(self.image_batches(items))
        failures = {items[i]: why for _, failed, _ in batches for i, why in failed.items()}
        if failures:
            raise UnreadableImagesError(failures)
        return _stack([features for _, _, features in batches], self.towers.width)

    def texts(self, texts: Sequence[str]) -> Tensor:
        """See FeatureSource."""
        return _stack([features for _, features in self.text_batches(texts)], self.towers.width)

    def image_batches(
        self, items: Sequence[ImageItem]
    ) -> Iterator[tuple[list[int], dict[int, str], Tensor]]:
        """Batch by batch: places of the images read, why others failed, features of the former."""
        loader: Iterable[Any] = DataLoader(
            _Images(items, self.towers.prepare),  # type: ignore[arg-type]
            batch_size=self.batch_size,
            num_workers=min(self.workers, len(items)),
            collate_fn=list,
        )
        done = 0
        for batch in loader:
            read = [(place, pixels) for place, pixels in batch if isinstance(pixels, Tensor)]
            failed = {place: pixels for place, pixels in batch if not isinstance(pixels, Tensor)}
            features = torch.empty(0, self.towers.width)
            if read:
                pixels = torch.stack([pixels for _, pixels in read])
                features = self._encode(self.towers.images, pixels, "images")
            done += len(batch)
            yield [place for place, _ in read], failed, features
            if self.progress is not None:
                self.progress("images", done, len(items))

    def text_batches(self, texts: Sequence[str]) -> Iterator[tuple[range, Tensor]]:
        """Batch by batch: places of the texts, and their features."""
        size = 4 * self.batch_size
        for start in range(0, len(texts), size):
            batch = list(texts[start : start + size])
            tokens = self.towers.tokenize(batch)
            if isinstance(tokens, Tensor):
                pairs = zip(batch, tokens, strict=True)
                self.cut += sum(is_cut(self.towers.tokenize, text, row) for text, row in pairs)
            yield (
                range(start, start + len(batch)),
                self._encode(self.towers.texts, tokens, "texts"),
            )
            if self.progress is not None:
                self.progress("texts", start + len(batch), len(texts))

    @torch.no_grad()
    def _encode(self, tower: Callable[[Any], Tensor], inputs: Any, what: str) -> Tensor:
        device = self.towers.device
        with torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            features = tower(inputs.to(device))
        return unit_rows(features, len(features), what)


def unit_rows(features: Tensor, count: int, source: str) -> Tensor:
    """Features as fp32 [count, D] of unit norm on the CPU.

    source: who made them, for the message. Raises ValueError for another shape, and for rows that
    are zero or not finite.
    """
    if features.dim() != 2 or features.shape[0] != count:
        raise ValueError(f"{source} must return features [{count}, D], got {tuple(features.shape)}")
    features = features.detach().float().cpu()
    norms = features.norm(dim=1, keepdim=True)
    if not bool((torch.isfinite(norms) & (norms > 0)).all()):
        raise ValueError(f"{source} must return finite features that are not zero, got others")
    return features / norms


class _Images:
    """The transformed images, or why one cannot be read; picklable, for worker processes."""

    def __init__(self, items: Sequence[ImageItem], prepare: Callable[[Any], Tensor]) -> None:
        self.items, self.prepare = items, prepare

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> tuple[int, Tensor | str]:
        from slipform_training.train.images import load_image
        from slipform_training.train.samples import SampleError

        path, box = self.items[place]
        try:
            image = load_image(path)
        except SampleError as error:
            return place, error.detail
        if box is not None:
            corners = [round(corner) for corner in box]
            if corners[0] >= corners[2] or corners[1] >= corners[3]:
                return place, f"the box {box} is empty"
            image = image.crop((corners[0], corners[1], corners[2], corners[3]))
        return place, self.prepare(image)


def _stack(batches: Sequence[Tensor], width: int) -> Tensor:
    return torch.cat(list(batches)) if batches else torch.empty(0, width)
