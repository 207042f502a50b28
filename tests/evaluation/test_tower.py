"""Features before the projection: projecting them by hand gives what the model gives."""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("open_clip")

from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

from slipform_training.evaluation.tower import tower_features, without_projection
from slipform_training.train.images import load_image
from slipform_training.train.model import create_model
from slipform_training.train.samples import SampleError
from support.train_files import draw_image, tiny_model

TEXT = CLIPTextCfg(context_length=8, vocab_size=99, width=32, heads=2, layers=1)


def model_of(**vision):
    torch.manual_seed(0)
    return CLIP(24, CLIPVisionCfg(image_size=64, **vision), TEXT).eval()


TOWERS = {
    "vit": (
        {"layers": 1, "width": 48, "head_width": 16, "patch_size": 16},
        lambda visual, x: x @ visual.proj,
    ),
    "resnet": (
        {"layers": (1, 1, 1, 1), "width": 8, "head_width": 16},
        lambda visual, x: visual.attnpool.c_proj(x),
    ),
    "timm": (
        {"timm_model_name": "resnet10t", "timm_proj": "linear", "timm_pool": "avg"},
        lambda visual, x: visual.head.proj(x),
    ),
}


@pytest.mark.parametrize("kind", TOWERS)
@torch.no_grad()
def test_projecting_them_gives_the_models_features(kind):
    vision, project = TOWERS[kind]
    model = model_of(**vision)
    images = torch.randn(3, 3, 64, 64)
    whole = model.encode_image(images)
    names = list(model.state_dict())
    with without_projection(model.visual):
        before = model.encode_image(images)
    assert before.shape[1] != 24
    assert torch.allclose(project(model.visual, before), whole, atol=1e-5)
    assert torch.equal(model.encode_image(images), whole)
    assert list(model.state_dict()) == names


def test_a_tower_without_its_own_projection_is_named():
    model = model_of(timm_model_name="resnet10t", timm_proj="", timm_pool="avg")
    with (
        pytest.raises(ValueError, match="image tower TimmModel"),
        without_projection(model.visual),
    ):
        pass


@pytest.fixture
def parts(tmp_path):
    return create_model(tiny_model(tmp_path))


def test_features_are_the_models_image_by_image(parts, tmp_path):
    paths = [tmp_path / f"{number}.jpg" for number in range(5)]
    for number, path in enumerate(paths):
        draw_image(path, number)
    for projected in (True, False):
        found = tower_features(
            parts.model, paths, prepare=parts.prepare, projected=projected, batch_size=2
        )
        assert found.kept == [0, 1, 2, 3, 4]
        assert found.features.shape == (5, 16 if projected else 32)
        with torch.no_grad():
            pixels = torch.stack([parts.prepare(load_image(path)) for path in paths])
            expected = parts.model.encode_image(pixels, normalize=True)
        got = found.features
        if not projected:
            got = torch.nn.functional.normalize(got @ parts.model.visual.proj.detach(), dim=1)
        assert torch.allclose(got, expected, atol=1e-6)


def test_missing_and_unreadable_images_are_named(parts, tmp_path):
    paths = [tmp_path / name for name in ("good.jpg", "absent.jpg", "broken.jpg", "other.jpg")]
    draw_image(paths[0], 0)
    draw_image(paths[3], 1)
    paths[2].write_bytes(b"no image")
    options = {"prepare": parts.prepare, "projected": True, "batch_size": 3}
    found = tower_features(parts.model, paths, skip=True, **options)
    assert found.kept == [0, 3]
    assert [error.kind for error in found.failures] == ["missing file", "unreadable image"]
    with pytest.raises(SampleError, match=re.escape(str(paths[1]))):
        tower_features(parts.model, paths, **options)
    with pytest.raises(ValueError, match="none of 1 images could be read"):
        tower_features(parts.model, paths[1:2], skip=True, **options)
