"""Token features against open_clip's towers written out, with masked embeddings."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("open_clip_train")
import open_clip
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg, CustomTextCLIP

from slipform_training.macco.features import Masking, check_clip, image_features, text_features
from support.macco import PATCHES, WIDTH, tiny_batch, tiny_clip

COUNT = 5


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def token(width: int) -> torch.Tensor:
    return torch.randn(1, 1, width, generator=torch.Generator().manual_seed(9))


def vision_by_hand(clip, images, mask=None, mask_token=None):
    """CLS and patches after ln_post and projection; the mask token before the positions."""
    visual = clip.visual
    rows = []
    for n, image in enumerate(images):
        cells = []
        for top in range(0, 16, 8):
            for left in range(0, 24, 8):
                pixels = image[:, top : top + 8, left : left + 8]
                cells.append((visual.conv1.weight * pixels).sum((1, 2, 3)))
        if mask is not None:
            for p in mask[n].nonzero()[:, 0]:
                cells[p] = mask_token[0, 0]
        rows.append(torch.stack([visual.class_embedding, *cells]))
    x = visual.ln_pre(torch.stack(rows) + visual.positional_embedding)
    for block in visual.transformer.resblocks:
        x = block(x)
    return visual.ln_post(x) @ visual.proj


def text_by_hand(clip, texts, mask=None, mask_token=None):
    x = clip.token_embedding.weight[texts]
    if mask is not None:
        for n, p in mask.nonzero():
            x[n, p] = mask_token[0, 0]
    x = x + clip.positional_embedding
    for block in clip.transformer.resblocks:
        x = block(x, attn_mask=clip.attn_mask)
    return clip.ln_final(x) @ clip.text_projection


@torch.no_grad()
def test_masked_patches_are_replaced_before_the_positions():
    clip, batch = tiny_clip(), tiny_batch(COUNT)
    found = image_features(clip, batch.images, Masking(batch.patch_mask, token(24)))
    want = vision_by_hand(clip, batch.images, batch.patch_mask, token(24))
    torch.testing.assert_close(found.pooled, want[:, 0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.tokens, want[:, 1:], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found.pooled, clip.encode_image(batch.images), atol=1e-2)


@torch.no_grad()
def test_masked_words_are_replaced_before_the_positions():
    clip, batch = tiny_clip(), tiny_batch(COUNT)
    found = text_features(clip, batch.texts, Masking(batch.word_mask, token(20)))
    want = text_by_hand(clip, batch.texts, batch.word_mask, token(20))
    torch.testing.assert_close(found.tokens, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.pooled, want[:, 7], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found.pooled, clip.encode_text(batch.texts), atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("quick_gelu", [False, True])
@pytest.mark.parametrize(
    ("vision", "text"),
    [
        ({}, {}),
        ({"pool_type": "avg"}, {"pool_type": "last"}),
        ({"no_ln_pre": True}, {"pool_type": "eos", "eos_id": 49}),
        ({"ls_init_value": 0.5}, {"proj_bias": True}),
        ({"final_ln_after_pool": True}, {"pool_type": "first"}),
    ],
)
def test_pooled_features_are_the_models_own_to_the_bit(quick_gelu, vision, text):
    clip, batch = tiny_clip(quick_gelu=quick_gelu, vision=vision, text=text), tiny_batch(COUNT)
    images, texts = image_features(clip, batch.images), text_features(clip, batch.texts)
    assert torch.equal(images.pooled, clip.encode_image(batch.images))
    assert torch.equal(texts.pooled, clip.encode_text(batch.texts))
    # A mask without a true changes nothing either.
    none = Masking(torch.zeros_like(batch.patch_mask), token(24))
    assert torch.equal(image_features(clip, batch.images, none).tokens, images.tokens)
    none = Masking(torch.zeros_like(batch.word_mask), token(20))
    assert torch.equal(text_features(clip, batch.texts, none).tokens, texts.tokens)


@torch.no_grad()
def test_what_is_masked_has_no_influence_even_if_it_is_nan():
    clip, batch = tiny_clip(), tiny_batch(COUNT)
    mask = torch.zeros_like(batch.patch_mask)
    mask[:, 4] = True  # row 1, column 1
    batch.images[:, :, 8:16, 8:16] = torch.nan
    found = image_features(clip, batch.images, Masking(mask, token(24)))
    assert torch.isfinite(found.tokens).all()
    mask[:, 4], mask[:, 3] = False, True
    found = image_features(clip, batch.images, Masking(mask, token(24)))
    assert not torch.isfinite(found.tokens).any()


@torch.no_grad()
def test_the_injection_is_the_mean_of_token_and_pooled():
    found = image_features(tiny_clip(), tiny_batch(2).images)
    mixed = found.with_global()
    for n in range(2):
        for p in range(PATCHES):
            want = 0.5 * found.tokens[n, p] + 0.5 * found.pooled[n]
            torch.testing.assert_close(mixed[n, p], want)


def test_the_model_is_as_before_also_after_an_error():
    clip, batch = tiny_clip(), tiny_batch(COUNT)
    with pytest.raises(RuntimeError):
        image_features(clip, batch.images[:, :2], Masking(batch.patch_mask, token(24)))
    assert not clip.visual.conv1._forward_hooks
    text_features(clip, batch.texts, Masking(batch.word_mask, token(20)))
    assert not clip.token_embedding._forward_hooks


def test_masks_that_do_not_fit_are_named():
    clip, batch = tiny_clip(), tiny_batch(COUNT)
    with pytest.raises(ValueError, match=r"patch_mask: got torch.bool of shape \[5, 5\], expected"):
        image_features(clip, batch.images, Masking(batch.patch_mask[:, :5], token(24)))
    with pytest.raises(ValueError, match=r"word_mask: got torch.int64 of shape \[5, 10\]"):
        text_features(clip, batch.texts, Masking(batch.word_mask.long(), token(20)))


def resnet():
    vision = CLIPVisionCfg(layers=(1, 1, 1, 1), width=16, image_size=32)
    return CLIP(WIDTH, vision, CLIPTextCfg(vocab_size=50, width=16, heads=2, layers=1))


def custom():
    vision = CLIPVisionCfg(layers=1, width=64, image_size=32)
    return CustomTextCLIP(WIDTH, vision, CLIPTextCfg(vocab_size=50, width=16, heads=2, layers=1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (custom, "clip: got CustomTextCLIP, expected open_clip's CLIP"),
        (resnet, "clip.visual: got ModifiedResNet"),
        (lambda: torch.nn.Linear(2, 2), "clip: got Linear"),
        (lambda: tiny_clip(vision={"attentional_pool": True}), "clip.visual.attn_pool: got Att"),
        (lambda: tiny_clip(vision={"patch_dropout": 0.5}), "clip.visual.patch_dropout: got Patch"),
        (lambda: tiny_clip(vision={"pool_type": "none"}), "clip.visual.pool_type: got none"),
        (lambda: tiny_clip(text={"pool_type": "none"}), "clip.text_pool_type: got none"),
        (lambda: tiny_clip(text={"proj_type": "none"}), "clip.text_projection: got None"),
    ],
)
def test_other_models_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        check_clip(make())


def test_the_papers_models_are_not():
    for name in ("ViT-B-32-quickgelu", "ViT-B-16-quickgelu"):
        config = open_clip.get_model_config(name)
        config["vision_cfg"].update(layers=1)
        config["text_cfg"].update(layers=1)
        clip = CLIP(**config)
        assert check_clip(clip) is clip
