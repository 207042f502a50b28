"""For tests of evaluation: features that are chosen by hand, behind files and texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image

from slipform_training.evaluation.encoder import ImageItem, UnreadableImagesError


def at(degrees: float) -> list[float]:
    """A point of the unit circle: cosines of such features are those of their differences."""
    return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees))]


class CircleSource:
    """A FeatureSource of angles in degrees, by the image's file name and by text."""

    def __init__(self, angles: Mapping[str, float], unreadable: Sequence[str] = ()) -> None:
        self.angles, self.unreadable = angles, unreadable
        self.seen: list[ImageItem] = []

    def images(self, items: Sequence[ImageItem]) -> torch.Tensor:
        broken = {item: "broken" for item in items if item.path.name in self.unreadable}
        if broken:
            raise UnreadableImagesError(broken)
        self.seen += items
        return self._rows([item.path.name for item in items])

    def texts(self, texts: Sequence[str]) -> torch.Tensor:
        return self._rows(texts)

    def _rows(self, names: Sequence[str]) -> torch.Tensor:
        return torch.tensor([at(self.angles[name]) for name in names]).reshape(-1, 2)


class CollapsedSource(CircleSource):
    """Gives every image and text the same feature."""

    def __init__(self) -> None:
        super().__init__({})

    def _rows(self, names: Sequence[str]) -> torch.Tensor:
        return torch.tensor([at(31.0)] * len(names)).reshape(-1, 2)


def touch_image(path: Path) -> None:
    """A small image file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), (200, 30, 90)).save(path)
