"""What an evaluation asks of a model: unit-norm features of images and of texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor


class ImageItem(NamedTuple):
    """An image file, or the part of it in `box`: left, top, right, bottom in pixels."""

    path: Path
    box: tuple[float, float, float, float] | None = None


class FeatureSource(Protocol):
    """A model behind what it needs to read files."""

    def images(self, items: Sequence[ImageItem]) -> Tensor:
        """fp32 [n, D] of unit norm, on the CPU."""

    def texts(self, texts: Sequence[str]) -> Tensor:
        """fp32 [n, D] of unit norm, on the CPU."""
