"""Boxes to patches, against pixels: nothing here uses the arithmetic of the code."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

pytest.importorskip("torchvision")

from slipform_training.data import Stream
from slipform_training.macco.crop import Crop
from slipform_training.macco.patch_mask import (
    Grid,
    box_mask,
    clipped_boxes,
    random_rectangle,
)

GRIDS = [Grid(size, size, patch, patch) for size in (224, 336) for patch in (14, 16, 32)]
RECTANGULAR = [Grid(224, 336, 16, 16), Grid(336, 224, 14, 32), Grid(100, 70, 32, 16)]


def by_pixels(boxes, crop, grid):
    """Marks the boxes' pixels in the image, crops it, and looks which of them each patch holds."""
    image = np.zeros((crop.image_height, crop.image_width), dtype=bool)
    for x1, y1, x2, y2 in boxes:
        image[y1:y2, x1:x2] = True
    part = image[crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
    mask = np.zeros((grid.height // grid.patch_height, grid.width // grid.patch_width), dtype=bool)
    for row in range(mask.shape[0]):
        for col in range(mask.shape[1]):
            # The patch's pixels before the resize; one that it touches in part counts.
            tall = Fraction(crop.height, grid.height) * grid.patch_height
            wide = Fraction(crop.width, grid.width) * grid.patch_width
            rows = slice(math.floor(row * tall), math.ceil((row + 1) * tall))
            cols = slice(math.floor(col * wide), math.ceil((col + 1) * wide))
            mask[row, col] = part[rows, cols].any()
    return mask


def as_grid(mask, grid):
    assert mask.dtype == torch.bool
    return mask.reshape(grid.rows, grid.cols).numpy()


@pytest.mark.parametrize("grid", GRIDS + RECTANGULAR, ids=str)
@pytest.mark.parametrize(
    "box",
    [
        (60, 50, 120, 90),  # within the crop
        (0, 0, 640, 480),  # contains it
        (0, 0, 100, 100),  # cut at the left and the top
        (550, 400, 640, 480),  # cut at the right and the bottom
        (0, 0, 20, 480),  # beside it
        (0, 470, 640, 480),  # below it
        (20, 10, 21, 11),  # its first pixel
        (619, 469, 620, 470),  # its last
        (619, 10, 640, 20),
    ],
)
def test_a_box_masks_the_patches_that_hold_its_pixels(grid, box):
    crop = Crop(20, 10, 600, 460, 640, 480)
    expected = by_pixels([box], crop, grid)
    assert np.array_equal(as_grid(box_mask([box], crop, grid), grid), expected)


def test_a_box_beside_the_crop_masks_nothing():
    crop = Crop(20, 10, 600, 460, 640, 480)
    for box in ((0, 0, 20, 480), (620, 0, 640, 480), (0, 0, 640, 10), (0, 470, 640, 480)):
        assert not box_mask([box], crop, GRIDS[0]).any()


def test_boxes_are_joined():
    crop = Crop(0, 0, 224, 224, 224, 224)
    grid = Grid(224, 224, 32, 32)
    mask = as_grid(box_mask([(0, 0, 32, 32), (64, 192, 224, 224)], crop, grid), grid)
    expected = np.zeros((7, 7), dtype=bool)
    expected[0, 0] = expected[6, 2:] = True
    assert np.array_equal(mask, expected)
    assert not box_mask([], crop, grid).any()


def test_edges_on_the_edges_of_patches_are_exact():
    # 640 pixels become 224: a patch of 14 is 40 of them.
    crop = Crop(0, 0, 640, 640, 640, 640)
    grid = Grid(224, 224, 14, 14)
    for k in range(16):
        mask = as_grid(box_mask([(40 * k, 0, 40 * k + 40, 40)], crop, grid), grid)
        assert np.argwhere(mask).tolist() == [[0, k]]
    mask = as_grid(box_mask([(39.9, 0, 40.1, 0.1)], crop, grid), grid)
    assert np.argwhere(mask).tolist() == [[0, 0], [0, 1]]


def test_a_box_without_area_masks_nothing():
    crop = Crop(0, 0, 224, 224, 224, 224)
    assert not box_mask([(50, 50, 50, 90), (3, 70, 90, 70)], crop, GRIDS[0]).any()


def test_what_fills_no_patch_is_no_patch():
    grid = Grid(336, 336, 32, 32)  # as open_clip's convolution: 10 patches, 16 pixels over
    assert (grid.rows, grid.cols) == (10, 10)
    crop = Crop(0, 0, 336, 336, 336, 336)
    assert not box_mask([(320, 0, 336, 336)], crop, grid).any()
    assert int(box_mask([(319, 0, 336, 1)], crop, grid).sum()) == 1


@st.composite
def scenes(draw):
    width, height = draw(st.integers(30, 700)), draw(st.integers(30, 700))
    crop_width, crop_height = draw(st.integers(1, width)), draw(st.integers(1, height))
    crop = Crop(
        draw(st.integers(0, width - crop_width)),
        draw(st.integers(0, height - crop_height)),
        crop_width,
        crop_height,
        width,
        height,
    )
    boxes = []
    for _ in range(draw(st.integers(1, 3))):
        x1, y1 = draw(st.integers(0, width)), draw(st.integers(0, height))
        boxes.append((x1, y1, draw(st.integers(x1, width)), draw(st.integers(y1, height))))
    return boxes, crop, draw(st.sampled_from(GRIDS + RECTANGULAR))


@given(scenes())
def test_any_box_and_crop(scene):
    boxes, crop, grid = scene
    assert np.array_equal(as_grid(box_mask(boxes, crop, grid), grid), by_pixels(boxes, crop, grid))


@given(scenes())
def test_pillows_own_crop_and_resize_agree(scene):
    """Pillow samples one pixel of the image for each of the crop's, so it may miss thin overlaps,
    and it never marks a patch that no box is on."""
    boxes, crop, grid = scene
    image = np.zeros((crop.image_height, crop.image_width), dtype=np.uint8)
    for x1, y1, x2, y2 in boxes:
        image[y1:y2, x1:x2] = 255
    edges = (crop.left, crop.top, crop.left + crop.width, crop.top + crop.height)
    part = Image.fromarray(image).crop(edges)
    resized = part.resize((grid.width, grid.height), Image.Resampling.NEAREST)
    pixels = np.asarray(resized)[: grid.rows * grid.patch_height, : grid.cols * grid.patch_width]
    marked = pixels.reshape(grid.rows, grid.patch_height, grid.cols, grid.patch_width)
    marked = marked.any((1, 3))
    mask = as_grid(box_mask(boxes, crop, grid), grid)
    assert not (marked & ~mask).any()
    # Without a resize there is nothing to miss.
    same = Grid(crop.height, crop.width, 1, 1)
    assert np.array_equal(as_grid(box_mask(boxes, crop, same), same), np.asarray(part) > 0)


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ((9, 0, 5, 9), "expected x1 <= x2"),
        ((0, 9, 5, 5), "expected x1 <= x2 and y1 <= y2"),
        ((0, 0, math.nan, 9), "expected finite numbers"),
        ((0, 0, math.inf, 9), "expected finite numbers"),
        ((0, 0, 9), "expected .x1, y1, x2, y2."),
        ((0, 0, 102.5, 9), r"2\.5 pixels outside of the image of 100 x 50"),
        ((-3, 0, 9, 9), "3 pixels outside"),
        ((0, 0, 9, 52), "2 pixels outside"),
        ((0, -1.5, 9, 9), r"1\.5 pixels outside"),
        ((200, 10, 210, 20), "110 pixels outside"),
    ],
)
def test_a_box_that_is_none_is_refused(box, message):
    with pytest.raises(ValueError, match=message):
        clipped_boxes([(1, 1, 2, 2), box], Crop(0, 0, 100, 50, 100, 50))


def test_rounding_over_the_edge_is_cut():
    crop = Crop(5, 5, 10, 10, 100, 50)
    assert clipped_boxes([(-0.6, -1, 101, 50.4)], crop) == [(0, 0, 100, 50)]
    assert clipped_boxes([(0, 0, 100, 50)], crop) == [(0, 0, 100, 50)]


@pytest.mark.parametrize("grid", GRIDS + RECTANGULAR, ids=str)
def test_random_rectangles_cover_seven_tenths(grid):
    whole = grid.rows * grid.cols
    places, shapes = set(), set()
    for number in range(200):
        mask = as_grid(random_rectangle(grid, Stream(0, number)), grid)
        rows, cols = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        assert mask.sum() == (np.ptp(rows) + 1) * (np.ptp(cols) + 1)  # a full rectangle
        assert 0.6 < mask.sum() / whole < 0.8
        places.add((rows[0], cols[0]))
        shapes.add((len(rows), len(cols)))
    if whole > 20:
        assert len(places) > 3
        assert len(shapes) > 1


@given(st.sampled_from(GRIDS + RECTANGULAR), st.data())
def test_random_rectangles_of_any_size(grid, data):
    patches = data.draw(st.integers(1, grid.rows * grid.cols))
    found = int(random_rectangle(grid, Stream(data.draw(st.integers(0, 9))), patches=patches).sum())
    assert abs(found - patches) <= max(1, patches // 10, max(grid.rows, grid.cols) // 2)


def test_the_grid_is_the_models():
    open_clip = pytest.importorskip("open_clip")
    config = {
        "embed_dim": 8,
        "vision_cfg": {
            "image_size": [64, 96],
            "layers": 1,
            "width": 16,
            "head_width": 8,
            "patch_size": 16,
        },
        "text_cfg": {"context_length": 8, "vocab_size": 9, "width": 8, "heads": 1, "layers": 1},
    }
    model = open_clip.CLIP(**config)
    grid = Grid.of(model.visual)
    assert grid == Grid(64, 96, 16, 16)
    assert grid.rows * grid.cols == model.visual.positional_embedding.shape[0] - 1
    with pytest.raises(ValueError, match="model: got the image tower Linear"):
        Grid.of(torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="expected at least one patch"):
        Grid(8, 8, 16, 16)
