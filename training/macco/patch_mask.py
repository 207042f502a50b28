"""Which patches of a cropped image boxes lie on, and random rectangles of patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slipform_training.data import Stream
from slipform_training.macco.crop import Crop
from slipform_training.macco.rows import check_box

# Rounding may put a box's corner over the image's edge by so many pixels.
OVERSHOOT = 1.0

# A random rectangle covers about so much of the grid (the paper's).
RECTANGLE = 0.7


@dataclass(frozen=True)
class Grid:
    """Patches of a vision transformer's input; what fills no patch at the right and bottom is none.

    Attributes:
        height, width: of the input, in pixels.
        patch_height, patch_width: of a patch.

    Raises:
        ValueError: no whole patch fits.
    """

    height: int
    width: int
    patch_height: int
    patch_width: int

    def __post_init__(self) -> None:
        if min(self.patch_height, self.patch_width) < 1 or not self.rows or not self.cols:
            raise ValueError(f"grid: got {self}, expected at least one patch")

    @property
    def rows(self) -> int:
        """Patches from top to bottom."""
        return self.height // self.patch_height

    @property
    def cols(self) -> int:
        """Patches from left to right."""
        return self.width // self.patch_width

    @staticmethod
    def of(visual: Any) -> Grid:
        """The grid of an open_clip model's image tower; ValueError for one without patches."""
        try:
            height, width = visual.image_size
            patch_height, patch_width = visual.patch_size
        except (AttributeError, TypeError) as error:
            raise ValueError(
                f"model: got the image tower {type(visual).__name__}, expected open_clip's "
                "VisionTransformer, which has patches"
            ) from error
        return Grid(height, width, patch_height, patch_width)


def clipped_boxes(
    boxes: Sequence[Sequence[float]], crop: Crop
) -> list[tuple[float, float, float, float]]:
    """Boxes within the image: up to OVERSHOOT pixels over its edge are cut off.

    Args:
        boxes: [x1, y1, x2, y2] each, in pixels of the image.
        crop: tells the image's size.

    Raises:
        ValueError: no box (see check_box), or further outside; the message has the box.
    """
    width, height = crop.image_width, crop.image_height
    found = []
    for box in boxes:
        check_box(box)
        x1, y1, x2, y2 = box
        over = max(-x1, -y1, x2 - width, y2 - height)
        if over > OVERSHOOT:
            raise ValueError(
                f"box: got {list(box)!r}, {over:g} pixels outside of the image of "
                f"{width} x {height}"
            )
        found.append((max(x1, 0.0), max(y1, 0.0), min(x2, width), min(y2, height)))
    return found


def box_mask(boxes: Sequence[Sequence[float]], crop: Crop, grid: Grid) -> Tensor:
    """The patches that any of the boxes overlaps, by any area, after the crop.

    A box beside the crop, or without area, overlaps none.

    Args:
        boxes: [x1, y1, x2, y2] each, in pixels of the image.
        crop: the part of the image that fills the grid's input.
        grid: the patches.

    Returns:
        bool [rows * cols], row by row.
    """
    mask = torch.zeros(grid.rows, grid.cols, dtype=torch.bool)
    for x1, y1, x2, y2 in boxes:
        cols = _overlap(
            x1 - crop.left, x2 - crop.left, crop.width, grid.width, grid.patch_width, grid.cols
        )
        rows = _overlap(
            y1 - crop.top, y2 - crop.top, crop.height, grid.height, grid.patch_height, grid.rows
        )
        mask |= rows[:, None] & cols[None, :]
    return mask.flatten()


def _overlap(low: float, high: float, source: int, size: int, patch: int, count: int) -> Tensor:
    """Which patches along one axis the interval overlaps: bool [count].

    low, high: in pixels of the crop, which has `source` of them and becomes `size`.
    """
    low, high = max(low, 0.0), min(high, float(source))
    # Products instead of quotients, so that an edge on a patch's edge is on it exactly.
    starts = torch.arange(count, dtype=torch.float64) * (patch * source)
    return (low * size < starts + patch * source) & (high * size > starts) & (low < high)


def random_rectangle(grid: Grid, draw: Stream, *, patches: int | None = None) -> Tensor:
    """A rectangle of about so many patches, anywhere: bool [rows * cols], row by row.

    Args:
        grid: the patches.
        draw: the random numbers.
        patches: how many; None for RECTANGLE of all.
    """
    rows, cols = grid.rows, grid.cols
    wanted = round(RECTANGLE * rows * cols) if patches is None else patches
    # Heights with a width that fits; the width is rounded, so the area is near, not equal.
    shapes = [
        (height, round(wanted / height))
        for height in range(1, rows + 1)
        if 1 <= round(wanted / height) <= cols
    ]
    nearest = min((abs(a * b - wanted) for a, b in shapes), default=0)
    slack = max(nearest, wanted // 10)
    height, width = draw.choice([one for one in shapes if abs(one[0] * one[1] - wanted) <= slack])
    top, left = draw.below(rows - height + 1), draw.below(cols - width + 1)
    mask = torch.zeros(rows, cols, dtype=torch.bool)
    mask[top : top + height, left : left + width] = True
    return mask.flatten()
