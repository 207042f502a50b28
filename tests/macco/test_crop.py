"""The recorded crop: open_clip's transform to the bit, and truly the part that it shows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("open_clip")

from open_clip.transform import image_transform

from slipform_training.macco.crop import Crop, RecordedCrop

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def photo(width, height, seed=0):
    values = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("size", [32, 224, (32, 48)])
@pytest.mark.parametrize("shape", [(90, 60), (60, 90), (64, 64), (400, 20)])
def test_the_pixels_are_open_clips(size, shape):
    transform = image_transform(size, is_train=True, mean=MEAN, std=STD)
    recorded = RecordedCrop(transform)
    for seed in range(5):
        torch.manual_seed(seed)
        expected = transform(photo(*shape))
        torch.manual_seed(seed)
        pixels, crop = recorded(photo(*shape))
        assert torch.equal(pixels, expected)
        # The part that was told, cropped and resized by Pillow, has these pixels.
        edges = (crop.left, crop.top, crop.left + crop.width, crop.top + crop.height)
        height, width = expected.shape[1:]
        part = photo(*shape).crop(edges).resize((width, height), Image.Resampling.BICUBIC)
        plain = torch.from_numpy(np.asarray(part).copy()).permute(2, 0, 1) / 255
        by_hand = (plain - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
        assert torch.allclose(by_hand, pixels, atol=1e-5)
        assert recorded.size == (height, width)


def test_crops_differ_and_keep_nine_tenths():
    recorded = RecordedCrop(image_transform(32, is_train=True))
    crops = [recorded(photo(100, 80))[1] for _ in range(30)]
    assert len(set(crops)) > 15
    for one in crops:
        assert (one.image_width, one.image_height) == (100, 80)
        assert one.width * one.height >= 0.89 * 8000
        assert 0 <= one.left <= 100 - one.width
        assert 0 <= one.top <= 80 - one.height


def test_a_crop_is_plain_numbers():
    assert Crop(1, 2, 3, 4, 5, 6)._asdict()["image_height"] == 6


@pytest.mark.parametrize(
    "transform", [image_transform(32, is_train=False), lambda image: image], ids=["eval", "other"]
)
def test_other_transforms_are_refused(transform):
    with pytest.raises(ValueError, match="expected open_clip's for training"):
        RecordedCrop(transform)
