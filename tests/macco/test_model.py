"""Macco as a whole: its terms from pixels and tokens, where gradients go, chunks, precision."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.functional import log_softmax

pytest.importorskip("open_clip_train")

from slipform_kernels import CementLoss, ClipLoss
from slipform_training.finetune import Encoder, GradientCache, loss_terms
from slipform_training.finetune.objective import loss_inputs, terms_of
from slipform_training.macco import Macco, MaccoConfig, MaccoLoss
from slipform_training.macco.predictors import MaskedTokens
from support.macco import CONTEXT, PATCHES, tiny_batch, tiny_clip

N = 6


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def made(**changes) -> tuple[Macco, MaccoLoss]:
    config = MaccoConfig(**changes)
    macco = Macco(tiny_clip(), config)
    with torch.no_grad():  # at N(0, 0.02) the tokens hardly matter
        for name, parameter in macco.added.named_parameters():
            if name.endswith("_token"):
                parameter.mul_(20)
    return macco, MaccoLoss(ClipLoss(), config)


def masked_tokens_by_hand(clip, batch, added):
    """Projected features of the masked and full sequences, in separate passes, hooks and all ours.

    Image: [N, 1 + P, D] with CLS; text: [N, L, D]."""
    visual, found = clip.visual, {}
    for name, is_masked in (("full", False), ("masked", True)):
        cells = visual.conv1(batch.images).flatten(2).transpose(1, 2)
        words = clip.token_embedding(batch.texts)
        if is_masked:
            cells = torch.where(batch.patch_mask[..., None], added.patch_token, cells)
            words = torch.where(batch.word_mask[..., None], added.word_token, words)
        first = visual.class_embedding.expand(len(cells), 1, -1)
        x = visual.ln_pre(torch.cat([first, cells], 1) + visual.positional_embedding)
        image = visual.ln_post(visual.transformer(x)) @ visual.proj
        x = clip.transformer(words + clip.positional_embedding, attn_mask=clip.attn_mask)
        found[name] = image, clip.ln_final(x) @ clip.text_projection
    return found


@torch.no_grad()
def test_masked_words_and_patches_from_pixels_and_tokens():
    """Every position is predicted and every logit made, as the paper writes it; then the masked
    ones are taken."""
    macco, loss = made()
    macco, batch = macco.double(), tiny_batch(N)
    batch = type(batch)(**{**vars(batch), "images": batch.images.double()})
    terms = loss_terms(macco, loss, batch)
    found = masked_tokens_by_hand(macco.clip, batch, macco.added)
    rows = torch.arange(N)
    mixed = {}
    for name, (image, text) in found.items():
        end = text[rows, batch.texts.argmax(1)]
        mixed[name] = (image[:, 1:] + image[:, :1]) / 2, (text + end[:, None]) / 2

    everywhere = MaskedTokens(torch.ones(N, CONTEXT, dtype=torch.bool))
    predictor = macco.added.text_predictor
    states = predictor(mixed["masked"][1], mixed["full"][0], everywhere)
    nll = -log_softmax(predictor.vocabulary(states), 1)[range(len(states)), batch.texts.flatten()]
    nll = nll.view(N, CONTEXT)
    own = [nll[n, batch.word_mask[n]].mean() for n in range(N) if batch.word_mask[n].any()]
    assert terms["mlm_loss"].item() == pytest.approx(20 * float(sum(own)) / len(own), rel=1e-9)

    everywhere = MaskedTokens(torch.ones(N, PATCHES, dtype=torch.bool))
    shown = macco.added.image_predictor(mixed["masked"][0], mixed["full"][1], everywhere)
    cells = batch.images.unfold(2, 8, 8).unfold(3, 8, 8)  # [N, 3, 2, 3, 8, 8]
    target = cells.permute(0, 2, 3, 4, 5, 1).reshape(N, PATCHES, 192)
    target = (target - target.mean(2, keepdim=True)) / (target.var(2, keepdim=True) + 1e-6).sqrt()
    error = (shown.view(N, PATCHES, 192) - target).square().mean(2)
    own = [error[n, batch.patch_mask[n]].mean() for n in range(N) if batch.patch_mask[n].any()]
    # Targets are fp32.
    assert terms["mim_loss"].item() == pytest.approx(250 * float(sum(own)) / len(own), rel=1e-6)


TEXT, WORD, VISION, PATCH = "text tower", "word token", "image tower", "patch token"
WORDS, PIXELS, SCALE = "text predictor", "image predictor", "logit scale"


def part_of(name: str) -> str:
    if name.startswith("added."):
        kinds = {"word_token": WORD, "patch_token": PATCH, "text_predictor": WORDS}
        return kinds.get(name.split(".")[1], PIXELS)
    if name == "model.logit_scale":
        return SCALE
    return VISION if name.startswith("model.visual.") else TEXT


@pytest.mark.parametrize(
    ("term", "reached"),
    [
        ("mlm_loss", {TEXT, WORD, WORDS}),
        ("mim_loss", {TEXT, PIXELS}),
        ("mca_loss", {TEXT, WORD, VISION, PATCH, SCALE}),
        ("mir_loss", {TEXT, WORD, VISION, PATCH, SCALE}),
    ],
)
def test_gradients_reach(term, reached):
    macco, loss = made()
    loss_terms(macco, loss, tiny_batch(N))[term].backward()
    found = {
        part_of(name)
        for name, parameter in macco.named_parameters()
        if parameter.grad is not None and parameter.grad.abs().max() > 0
    }
    assert found == reached


def total(macco, loss, batch) -> torch.Tensor:
    return sum(loss_terms(macco, loss, batch).values())


@pytest.mark.parametrize("changes", [{"words": 0.0}, {"patches": 0.0}, {"words": 0, "patches": 0}])
def test_without_masks_nothing_is_nan_and_every_parameter_has_a_gradient(changes):
    macco, loss = made()
    batch = tiny_batch(N, **changes)
    terms = loss_terms(macco, loss, batch)
    sum(terms.values()).backward()
    for name, parameter in macco.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    if "words" in changes:
        assert terms["mlm_loss"] == 0
    if "patches" in changes:
        assert terms["mim_loss"] == 0
    if len(changes) == 2:
        assert terms["mir_loss"] == 0
        torch.testing.assert_close(
            terms["mca_loss"],
            loss_terms(tiny_clip(), ClipLoss(), batch)["contrastive_loss"],
        )


@pytest.mark.parametrize(
    "off", [("mca", "mir"), ("mca", "mir", "mlm"), ("mca", "mir", "mim"), ("mlm",)]
)
def test_every_trained_parameter_has_a_gradient_whatever_is_switched_off(off):
    """DDP waits for all of them. Without an alignment the patch token stays as it was drawn."""
    macco, loss = made(**dict.fromkeys(off, 0.0))
    total(macco, loss, tiny_batch(N)).backward()
    without = [name for name, parameter in macco.named_parameters() if parameter.grad is None]
    is_drawn_only = off in (("mca", "mir"), ("mca", "mir", "mlm"))
    assert without == (["added.patch_token"] if is_drawn_only else [])
    assert not any(macco.get_parameter(name).requires_grad for name in without)


@pytest.mark.parametrize("chunk_size", [1, 4, 100])
@pytest.mark.parametrize("hard", [0, 2])
def test_gradient_caching_gives_the_gradients_of_the_whole_batch(chunk_size, hard):
    """Chunks have differing numbers of masked tokens; the first sample has none at all."""
    grads, batch = [], tiny_batch(N, hard=hard)
    batch.word_mask[0], batch.patch_mask[0] = False, False
    for cached in (False, True):
        macco, loss = made()
        if hard:
            loss = MaccoLoss(CementLoss(), loss.config)
        if cached:
            towers, others = loss_inputs(loss, batch)

            def loss_of(loss=loss, others=others, **features):
                return sum(terms_of(loss, {**features, **others}).values())

            GradientCache(macco, loss_of, chunk_size=chunk_size).backward(towers)
        else:
            total(macco, loss, batch).backward()
        grads.append({name: p.grad for name, p in macco.named_parameters()})
    for name, want in grads[0].items():
        assert (grads[1][name] - want).norm() <= 2e-5 * want.norm(), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    """Terms near those of fp32, and gradients in its direction."""
    results = []
    for context in (nullcontext(), torch.autocast("cpu", dtype)):
        macco, loss = made()
        with context:
            terms = loss_terms(macco, loss, tiny_batch(N))
        sum(terms.values()).backward()
        assert all(term.dtype == torch.float32 for term in terms.values())
        grad = torch.cat([p.grad.flatten() for p in macco.parameters()])
        results.append(({name: term.item() for name, term in terms.items()}, grad))
    (exact, want), (rounded, got) = results
    assert rounded == pytest.approx(exact, rel=0.02)
    assert torch.nn.functional.cosine_similarity(got, want, dim=0) > 0.99


def test_the_plain_model_is_the_one_it_was_made_from():
    clip = tiny_clip()
    macco = Macco(clip, MaccoConfig())
    assert macco.clip is clip
    assert Encoder.of(macco) is macco
    assert {name.partition(".")[0] for name in macco.state_dict()} == {"model", "added"}
    for name, width in (("word_token", 20), ("patch_token", 24)):
        token = macco.added.get_parameter(name)
        assert token.shape == (1, 1, width)
        assert 0.01 < token.std() < 0.03
    with pytest.raises(TypeError, match="clip: got Linear"):
        Macco(nn.Linear(2, 2), MaccoConfig())
    with pytest.raises(ValueError, match="heads: got 3, expected a divisor of the width 16"):
        Macco(clip, MaccoConfig(heads=3))
