"""A contact sheet of scenes with text below each."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from slipform_training.scenes.compose import Scenes

MARGIN = 14
FONT_SIZE = 13
LINE = 16
INK = (30, 30, 30)


def draw_sheet(
    path: str | Path,
    scenes: Scenes,
    *,
    count: int = 24,
    columns: int = 6,
    zoom: int = 3,
    seed: int = 0,
    split: str = "train",
) -> None:
    """Draws the first scenes of a split with their captions into a png.

    Args:
        path: the png; its folder must exist.
        scenes: gives the scenes.
        count, columns: number of scenes, and how many in a row.
        zoom: screen pixels for one pixel of a scene.
        seed, split: see Scenes.scene.
    """
    batch = scenes.batch(range(count), seed=seed, split=split)
    labels = [[(caption, INK)] for caption in batch.captions]
    draw_labelled(path, batch.images, labels, columns=columns, zoom=zoom)


def draw_labelled(
    path: str | Path,
    images: NDArray[np.uint8],
    labels: Sequence[Sequence[tuple[str, tuple[int, int, int]]]],
    *,
    columns: int = 6,
    zoom: int = 3,
    title: str = "",
) -> None:
    """Draws pictures in a grid, each with paragraphs of text below it, into a png.

    Args:
        path: the png; its folder must exist.
        images: uint8 [B, H, W, 3], RGB.
        labels: for each picture its paragraphs, each a text and its colour (RGB, 0 to 255).
        columns: pictures in a row.
        zoom: screen pixels for one pixel of a picture.
        title: a line above the grid.

    Raises:
        ValueError: as many labels as pictures are needed.
    """
    if len(labels) != len(images):
        raise ValueError(f"labels must be one per picture ({len(images)}), got {len(labels)}")
    font = ImageFont.load_default(size=FONT_SIZE)
    side = images.shape[2] * zoom
    width = max(12, int(side / (FONT_SIZE * 0.52)))
    wrapped = [
        [(line, ink) for text, ink in paragraphs for line in textwrap.wrap(text, width)]
        for paragraphs in labels
    ]
    text_height = LINE * max((len(lines) for lines in wrapped), default=0)
    cell = (side + MARGIN, images.shape[1] * zoom + text_height + MARGIN + 4)
    top = MARGIN + (LINE + 8 if title else 0)
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (MARGIN + columns * cell[0], top + rows * cell[1]), "white")
    draw = ImageDraw.Draw(sheet)
    if title:
        draw.text((MARGIN, MARGIN - 4), title, fill=INK, font=font)
    for number, image in enumerate(images):
        x = MARGIN + number % columns * cell[0]
        y = top + number // columns * cell[1]
        picture = Image.fromarray(image)
        picture = picture.resize((side, image.shape[0] * zoom), Image.Resampling.NEAREST)
        sheet.paste(picture, (x, y))
        draw.rectangle((x - 1, y - 1, x + side, y + picture.height), outline=(200, 200, 200))
        for row, (line, ink) in enumerate(wrapped[number]):
            draw.text((x, y + picture.height + 4 + row * LINE), line, fill=ink, font=font)
    sheet.save(path)
