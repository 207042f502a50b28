"""MACCO's terms against the formulae of the paper, in fp64 and with loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

pytest.importorskip("open_clip_train")

from slipform_kernels import CementLoss, ClipLoss, NegClipLoss, SigLipLoss, TripletClipLoss
from slipform_training.finetune import Batch, loss_terms
from slipform_training.macco import Macco, MaccoConfig, MaccoLoss
from slipform_training.macco.losses import masked_patch_loss, masked_word_loss, patch_targets
from slipform_training.macco.predictors import MaskedTokens
from support.macco import tiny_batch, tiny_clip

N, D = 7, 12


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def log_softmax_nll(logits: list[float], target: int) -> float:
    largest = max(logits)
    return largest + math.log(sum(math.exp(v - largest) for v in logits)) - logits[target]


def unit(seed: int, *shape: int) -> torch.Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(drawn, dim=-1)


def random_mask(seed: int, count: int, places: int) -> torch.Tensor:
    mask = torch.rand(count, places, generator=torch.Generator().manual_seed(seed)) < 0.4
    mask[2] = False
    return mask


def test_masked_words():
    torch.manual_seed(0)
    mask, texts = random_mask(0, N, 8), torch.randint(0, 30, (N, 8))
    masked = MaskedTokens(mask)
    head = nn.Linear(D, 30)
    states = torch.randn(len(masked.sample), D)
    found = masked_word_loss(states, head, texts, masked)
    logits = (states.double() @ head.weight.double().T + head.bias.double()).tolist()
    want, row = [], 0
    for n in range(N):
        nll = []
        for p in range(8):
            if mask[n, p]:
                nll.append(log_softmax_nll(logits[row], int(texts[n, p])))
                row += 1
        want.append(sum(nll) / len(nll) if nll else 0.0)
    assert found.tolist() == pytest.approx(want, rel=1e-5)
    assert found[2] == 0


@pytest.mark.parametrize("size", [(16, 24), (19, 26)])
def test_masked_patches(size):
    """Patches of 8 x 8 in a grid of 2 x 3; pixels beyond the last whole patch belong to none."""
    torch.manual_seed(0)
    mask, images = random_mask(1, N, 6), torch.randn(N, 3, *size)
    images[0, :, 8:16, 8:16] = 0.25  # a patch without contrast
    mask[0, 4] = True
    masked = MaskedTokens(mask)
    targets = patch_targets(images, masked, patch=(8, 8))
    predicted = torch.randn(len(masked.sample), 192)
    found = masked_patch_loss(predicted, targets, masked)
    want, row = [], 0
    for n in range(N):
        errors = []
        for p in range(6):
            if not mask[n, p]:
                continue
            top, left = 8 * (p // 3), 8 * (p % 3)
            shown = [
                float(images[n, c, top + y, left + x])
                for y in range(8)
                for x in range(8)
                for c in range(3)
            ]
            mean = sum(shown) / 192
            variance = sum((v - mean) ** 2 for v in shown) / 191
            target = [(v - mean) / math.sqrt(variance + 1e-6) for v in shown]
            assert targets[row].tolist() == pytest.approx(target, rel=1e-4, abs=1e-4)
            pairs = zip(predicted[row].tolist(), target, strict=True)
            errors.append(sum((a - b) ** 2 for a, b in pairs) / 192)
            row += 1
        want.append(sum(errors) / len(errors) if errors else 0.0)
    assert found.tolist() == pytest.approx(want, rel=1e-5)


def test_only_masked_patches_are_copied():
    """Targets of one patch of 64 large images: far less memory than the images have."""
    images = torch.randn(64, 3, 224, 224)
    mask = torch.zeros(64, 49, dtype=torch.bool)
    mask[5, 3] = True
    with torch.profiler.profile(profile_memory=True) as profile:
        patch_targets(images, MaskedTokens(mask), patch=(32, 32))
    allocated = sum(max(0, event.self_cpu_memory_usage) for event in profile.key_averages())
    assert allocated < images.nbytes / 10


def alignment(rows, cols, row_target, col_target, scale, margin=None, left_out=()):
    """Mean of the mean over row anchors and the mean over column anchors; -1 is no anchor."""
    logits = scale * (rows.detach().double() @ cols.detach().double().T)
    if margin is not None:
        for (i, j), m in margin.items():
            logits[i, j] += scale * m
    kept = [j for j in range(len(cols)) if j not in left_out]
    of_rows = [
        log_softmax_nll([float(logits[i, j]) for j in kept], kept.index(t))
        for i, t in enumerate(row_target)
        if t >= 0
    ]
    of_cols = [
        log_softmax_nll(logits[:, j].tolist(), t) for j, t in enumerate(col_target) if t >= 0
    ]
    return (sum(of_rows) / len(of_rows) + sum(of_cols) / len(of_cols)) / 2


def inputs(has_word, has_patch, *, hard: int = 0):
    names = "image_features", "text_features", "masked_image_features", "masked_text_features"
    named = {name: unit(seed, N, D).requires_grad_() for seed, name in enumerate(names)}
    named["logit_scale"] = torch.tensor(20.0, requires_grad=True)
    named["word_mask"], named["patch_mask"] = has_word[:, None], has_patch[:, None]
    if hard:
        named["hard_text_features"] = unit(9, N, hard, D)
        generator = torch.Generator().manual_seed(2)
        named["concreteness"] = torch.rand(N, hard, generator=generator) * 4 + 1
        named["hard_mask"] = torch.rand(N, hard, generator=generator) < 0.6
    return named


ALL = torch.ones(N, dtype=torch.bool)
SOME = torch.tensor([True, False, True, True, False, True, True])
OTHER = torch.tensor([False, True, True, False, True, True, True])
MCA = MaccoConfig(mca=0.5, mir=0, mlm=0, mim=0)


@pytest.mark.parametrize(("has_word", "has_patch"), [(ALL, ALL), (SOME, OTHER), (ALL, ~ALL)])
def test_cross_modal_alignment(has_word, has_patch):
    """2N x 2N where all have masks: every masked row and column targets the full counterpart."""
    named = inputs(has_word, has_patch)
    terms = MaccoLoss(ClipLoss(), MCA)(**named, output_dict=True)
    images, texts = has_patch.nonzero()[:, 0].tolist(), has_word.nonzero()[:, 0].tolist()
    image, text, masked_image, masked_text = (named[name] for name in list(named)[:4])
    want = alignment(
        torch.cat([image, masked_image[images]]),
        torch.cat([text, masked_text[texts]]),
        [*range(N), *images],
        [*range(N), *texts],
        20.0,
    )
    assert list(terms) == ["mca_loss"]
    assert terms["mca_loss"].item() == pytest.approx(0.5 * want, rel=1e-5)


@pytest.mark.parametrize(("has_word", "has_patch"), [(ALL, ALL), (SOME, OTHER)])
def test_intra_modal_alignment(has_word, has_patch):
    named = inputs(has_word, has_patch)
    config = MaccoConfig(mca=0, mir=0.3, mlm=0, mim=0)
    terms = MaccoLoss(ClipLoss(), config)(**named, output_dict=True)
    halves = []
    for full, masked, has in (
        ("text_features", "masked_text_features", has_word),
        ("image_features", "masked_image_features", has_patch),
    ):
        target = [i if has[i] else -1 for i in range(N)]
        without = [i for i in range(N) if not has[i]]
        halves.append(alignment(named[full], named[masked], target, target, 20.0, left_out=without))
    assert terms["mir_loss"].item() == pytest.approx(0.3 * sum(halves) / 2, rel=1e-5)
    # Without MCA, full images and captions are aligned as ever.
    plain = alignment(named["image_features"], named["text_features"], range(N), range(N), 20.0)
    assert terms["contrastive_loss"].item() == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("loss", ["negclip", "cement"])
@pytest.mark.parametrize("bias", [None, -3.0])
def test_hard_captions_join_the_cross_modal_matrix(loss, bias):
    """They are columns of full and masked images; margins are of the full image's own ones."""
    named = inputs(SOME, OTHER, hard=2)
    base = NegClipLoss() if loss == "negclip" else CementLoss(margin=0.2)
    more = {} if bias is None else {"logit_bias": torch.tensor(bias)}
    found = MaccoLoss(base, MCA)(**named, **more)
    kept = [(i, k) for i in range(N) for k in range(2) if named["hard_mask"][i, k]]
    images, texts = OTHER.nonzero()[:, 0].tolist(), SOME.nonzero()[:, 0].tolist()
    hard = torch.stack([named["hard_text_features"][i, k] for i, k in kept])
    margin = {}
    if loss == "cement":
        for place, (i, k) in enumerate(kept):
            margin[i, N + place] = 0.2 * (float(named["concreteness"][i, k]) - 1) / 4
    want = alignment(
        torch.cat([named["image_features"], named["masked_image_features"][images]]),
        torch.cat([named["text_features"], hard, named["masked_text_features"][texts]]),
        [*range(N), *images],
        [*range(N), *[-1] * len(kept), *texts],
        20.0,
        margin,
    )
    assert found.item() == pytest.approx(0.5 * want, rel=1e-5)


def test_word_and_patch_losses_are_means_over_samples_that_have_one():
    named = inputs(SOME, OTHER)
    named.update(word_loss=torch.arange(7.0) * SOME, patch_loss=torch.arange(7.0).flip(0) * OTHER)
    config = MaccoConfig(mir=0, mlm=20, mim=250)
    terms = MaccoLoss(ClipLoss(), config)(**named, output_dict=True)
    assert terms["mlm_loss"].item() == pytest.approx(20 * (0 + 2 + 3 + 5 + 6) / 5)
    assert terms["mim_loss"].item() == pytest.approx(250 * (5 + 4 + 2 + 1 + 0) / 5)


def test_the_loss_is_the_sum_of_its_terms():
    named = inputs(SOME, OTHER)
    named.update(word_loss=torch.rand(N), patch_loss=torch.rand(N))
    loss = MaccoLoss(ClipLoss(), MaccoConfig())
    terms = loss(**named, output_dict=True)
    assert list(terms) == ["mca_loss", "mir_loss", "mlm_loss", "mim_loss"]
    assert loss(**named).item() == pytest.approx(sum(term.item() for term in terms.values()))


@pytest.mark.parametrize(
    ("weights", "parts", "outputs"),
    [
        ({"mca": 0, "mir": 0, "mim": 0}, {"word_token", "text_predictor"}, {"word_loss"}),
        ({"mca": 0, "mir": 0, "mlm": 0}, {"patch_token", "image_predictor"}, {"patch_loss"}),
        (
            {"mlm": 0, "mim": 0},
            {"word_token", "patch_token"},
            {"masked_image_features", "masked_text_features"},
        ),
    ],
)
def test_what_a_switched_off_term_needs_is_not_there(weights, parts, outputs):
    config = MaccoConfig(**weights)
    macco, batch = Macco(tiny_clip(), config), tiny_batch(4)
    assert {name.partition(".")[0] for name in macco.added.state_dict()} == parts
    found = macco(batch.images, batch.texts, batch.word_mask, batch.patch_mask)
    assert found.keys() - {"image_features", "text_features", "logit_scale"} == outputs
    terms = loss_terms(macco, MaccoLoss(ClipLoss(), config), batch)
    off = {f"{name}_loss" for name in weights}
    assert not off & terms.keys()
    assert ("contrastive_loss" in terms) == ("mca" in weights)


def test_full_features_are_those_of_the_plain_model():
    macco, batch = Macco(tiny_clip(), MaccoConfig()), tiny_batch(4, hard=2)
    found = macco(batch.images, batch.texts, batch.word_mask, batch.patch_mask, batch.hard_texts)
    plain = tiny_clip()
    images, texts = plain.encode_image(batch.images, True), plain.encode_text(batch.texts, True)
    torch.testing.assert_close(found["image_features"], images)
    torch.testing.assert_close(found["text_features"], texts)
    for n in range(4):
        hard = plain.encode_text(batch.hard_texts[n], True)
        torch.testing.assert_close(found["hard_text_features"][n], hard)
    assert found["logit_scale"] == plain.logit_scale.exp()


def test_batches_without_masks_and_losses_of_other_shapes_are_refused():
    config = MaccoConfig()
    batch = tiny_batch(3)
    unmasked = Batch(images=batch.images, texts=batch.texts)
    with pytest.raises(
        ValueError, match=r"batch\.word_mask: got None, expected a tensor, since Mac"
    ):
        loss_terms(Macco(tiny_clip(), config), MaccoLoss(ClipLoss(), config), unmasked)
    for base in (TripletClipLoss(), SigLipLoss()):
        with pytest.raises(TypeError, match=f"base: got {type(base).__name__}, expected ClipLoss"):
            MaccoLoss(base, config)
    named = inputs(ALL, ALL)
    with pytest.raises(ValueError, match="word_loss: got None, expected a tensor"):
        MaccoLoss(ClipLoss(), config)(**named)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mca": -1.0}, "mca: got -1.0, expected finite, at least 0"),
        ({"mim": math.inf}, "mim: got inf"),
        ({"text_layers": 0}, "text_layers: got 0, expected at least 1"),
        ({"predictor_lr": 0.0}, "predictor_lr: got 0.0"),
        ({"mca": 0, "mir": 0, "mlm": 0, "mim": 0}, "mca, mir, mlm, mim: got 0 for all"),
    ],
)
def test_settings_out_of_range(changes, message):
    with pytest.raises(ValueError, match=message):
        MaccoConfig(**changes)
