"""A sheet of images and captions as MACCO masks them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from open_clip.tokenizer import SimpleTokenizer
from open_clip.transform import image_transform
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from slipform_training.data import Stream
from slipform_training.macco.crop import RecordedCrop
from slipform_training.macco.patch_mask import Grid, box_mask, clipped_boxes
from slipform_training.macco.rows import ConceptRow, read_concept_rows
from slipform_training.macco.word_mask import WordFinder
from slipform_training.train.images import load_image

COUNT, COLUMNS = 24, 6
MARGIN, LINE, FONT_SIZE = 14, 17, 14
INK, FAINT, MASKED = (30, 30, 30), (110, 110, 110), (190, 30, 45)

# ViT-B/16's.
_GRID = Grid(224, 224, 16, 16)
_ZOOM = 1.5
_SIDE = round(224 * _ZOOM)
_LINES = 5

# A word with the space before it, and its colour.
_Word = tuple[str, tuple[int, int, int]]


def draw_masks(path: Path, data: Path, *, rows: int, images: Path, seed: int = 0) -> None:
    """Draws COUNT rows, evenly spaced, of MACCO's tsv into a png.

    Above the caption, with its masked words in red, is the part of the image that a training step
    sees, with the patches of one of its phrases covered; the phrase is named below.

    Args:
        path: the png; its folder must exist.
        data: the tsv file.
        rows: how many it has.
        images: folder that its paths begin at.
        seed: of the crops and phrases.

    Raises:
        ValueError: a row or an image that cannot be used; the message names it.
    """
    chosen = list(islice(read_concept_rows(data), 0, None, max(1, rows // COUNT)))[:COUNT]
    if not chosen:
        raise ValueError(f"data: got {data} without rows")
    cell = (_SIDE + MARGIN, _SIDE + _LINES * LINE + MARGIN)
    height = MARGIN + -(-len(chosen) // COLUMNS) * cell[1]
    sheet = Image.new("RGB", (MARGIN + COLUMNS * cell[0], height), "white")
    words = WordFinder(SimpleTokenizer())
    for number, row in enumerate(chosen):
        left = MARGIN + number % COLUMNS * cell[0]
        top = MARGIN + number // COLUMNS * cell[1]
        picture, phrase = _picture(row, images, Stream(seed, "sheet", number))
        sheet.paste(picture, (left, top))
        text = [*_caption(row, words), ("\n", INK), (phrase, FAINT)]
        _write(ImageDraw.Draw(sheet), left, top + _SIDE + 4, text)
    sheet.save(path)


def _picture(row: ConceptRow, images: Path, draw: Stream) -> tuple[Image.Image, str]:
    crop = RecordedCrop(image_transform(224, is_train=True, mean=(0, 0, 0), std=(1, 1, 1)))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(draw.below(2**31))
        pixels, part = crop(load_image(images / row.image))
    boxed = [one for one in row.concepts.phrases if one.boxes]
    phrase = draw.choice(boxed) if boxed else None
    try:
        boxes = clipped_boxes(phrase.boxes if phrase else (), part)
    except ValueError as error:
        raise ValueError(f"{row.where}: {error}") from error
    values = (pixels.permute(1, 2, 0).clamp(0, 1) * 255).round().to(torch.uint8)
    picture = Image.fromarray(values.numpy()).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
    _cover(picture, box_mask(boxes, part, _GRID))
    return picture, phrase.text if phrase else "no phrase with boxes"


def _cover(picture: Image.Image, mask: Tensor) -> None:
    """Dims the masked patches, so that what is below can still be made out, and outlines them."""
    shade = Image.new("RGB", picture.size, MASKED)
    draw = ImageDraw.Draw(picture)
    side = _GRID.patch_width * _ZOOM
    for place in mask.nonzero().flatten().tolist():
        row, col = divmod(place, _GRID.cols)
        corners = [round(value * side) for value in (col, row, col + 1, row + 1)]
        box = (corners[0], corners[1], corners[2], corners[3])
        part = Image.blend(picture.crop(box), shade.crop(box), 0.45)
        picture.paste(part, box[:2])
        draw.rectangle(box, outline=MASKED)


def _caption(row: ConceptRow, words: WordFinder) -> Iterator[_Word]:
    mask = words.mask(row.caption, row.concepts).mask
    place, end = 1, 0
    for piece in words.pieces(row.caption):
        is_masked = bool(mask[place : place + 1].any())
        yield " " * (piece.start > end) + piece.text, MASKED if is_masked else INK
        place, end = place + len(piece.tokens), piece.end


def _write(draw: Any, left: int, top: int, text: list[_Word]) -> None:
    """Words in a row after the other, as many as fit; "\\n" ends a row."""
    font = ImageFont.load_default(size=FONT_SIZE)
    x, line = float(left), 0
    for word, colour in text:
        if word == "\n" or x + draw.textlength(word, font=font) > left + _SIDE:
            x, line, word = float(left), line + 1, word.lstrip()
        if line >= _LINES:
            break
        draw.text((x, top + line * LINE), word, fill=colour, font=font)
        x += draw.textlength(word, font=font)
