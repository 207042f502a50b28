"""The losses with hard negatives, against their formulas in plain torch ops and fp64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from slipform_kernels import (
    CementLoss,
    ClipLoss,
    NegClipLoss,
    TripletClipLoss,
    concreteness_margin,
    two_way_cross_entropy,
)
from support.accuracy import relative_error
from support.backends import every_backend

N, D = 12, 24
NAMES = ("images", "texts", "hard_texts", "hard_images", "scale")


class Batch:
    """Features of N samples with K hard captions and one hard image each, in fp32 and in fp64."""

    def __init__(self, k: int, seed: int = 0):
        gen = torch.Generator().manual_seed(seed)

        def unit(*shape: int) -> torch.Tensor:
            return F.normalize(torch.randn(*shape, generator=gen), dim=-1)

        self.texts = unit(N, D)
        self.images = F.normalize(unit(N, D) + self.texts, dim=-1)
        self.hard_texts = F.normalize(unit(N, k, D) + 2 * self.texts[:, None], dim=-1)
        self.hard_images = F.normalize(unit(N, D) + 2 * self.images, dim=-1)
        # Low enough for the scale's gradient not to be a cancelling sum.
        self.scale = torch.tensor(5.0)
        self.concreteness = 1 + 4 * torch.rand(N, k, generator=gen)
        self.mask = torch.rand(N, k, generator=gen) < 0.7

    def leaves(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        return {n: getattr(self, n).to(dtype).clone().requires_grad_() for n in NAMES}


def image_to_text(images, texts, hard_texts, scale, margin, mask):
    """-log of exp(pos) / (all captions + every present hard caption), own ones with the margin."""
    n, k = hard_texts.shape[:2]
    plain = scale * images @ texts.T
    hard = images @ hard_texts.reshape(n * k, -1).T
    own = torch.eye(n, dtype=torch.bool).repeat_interleave(k, dim=1)
    hard = scale * (hard + own * margin.reshape(1, -1).to(hard.dtype))
    hard = hard.masked_fill(~mask.reshape(1, -1), -math.inf)
    return F.cross_entropy(torch.cat([plain, hard], dim=1), torch.arange(n))


def negclip(images, texts, hard_texts, scale, margin=None, mask=None):
    n, k = hard_texts.shape[:2]
    margin = torch.zeros(n, k) if margin is None else margin
    mask = torch.ones(n, k, dtype=torch.bool) if mask is None else mask
    forward = image_to_text(images, texts, hard_texts, scale, margin, mask)
    return (forward + F.cross_entropy(scale * texts @ images.T, torch.arange(n))) / 2


def paired(images, texts, hard_images, hard_texts, scale, margin, mask):
    """2N x 2N without the absent samples; each one's twin gets the margin, both directions."""
    n = len(images)
    present = mask.flatten().nonzero().flatten()
    rows = torch.cat([images, hard_images[present]])
    cols = torch.cat([texts, hard_texts[:, 0][present]])
    similarity = rows @ cols.T
    extra = torch.zeros(similarity.shape, dtype=similarity.dtype)
    for position, i in enumerate(present.tolist()):
        extra[i, n + position] = extra[n + position, i] = margin[i, 0]
    logits = scale * (similarity + extra)
    target = torch.arange(len(rows))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def compare(batch: Batch, ours, formula, used: tuple[str, ...]) -> None:
    """Equal value to 1e-5 and equal gradients to 1e-5 in relative norm, for all `used` inputs."""
    single, double = batch.leaves(torch.float32), batch.leaves(torch.float64)
    got, want = ours(single), formula(double)
    assert got.shape == ()
    assert got.item() == pytest.approx(want.item(), rel=1e-5)
    got_grads = torch.autograd.grad(got, [single[n] for n in used])
    want_grads = torch.autograd.grad(want, [double[n] for n in used])
    for name, a, b in zip(used, got_grads, want_grads, strict=True):
        assert relative_error(a, b) < 1e-5, name


CAPTIONS = ("images", "texts", "hard_texts", "scale")


@every_backend()
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_negclip(backend, k, masked):
    batch = Batch(k)
    mask = batch.mask if masked else None

    def ours(t):
        loss = NegClipLoss(backend=backend)
        return loss(
            t["images"],
            t["texts"],
            t["scale"],
            hard_text_features=t["hard_texts"],
            hard_mask=mask,
        )

    def formula(t):
        return negclip(t["images"], t["texts"], t["hard_texts"], t["scale"], mask=mask)

    compare(batch, ours, formula, CAPTIONS)


def margins(batch: Batch, *, margin, direction, static, mask) -> torch.Tensor:
    c = batch.concreteness.double()
    value = margin * ((c - 1) if direction == "increasing" else (5 - c)) / 4
    if static:
        value = value[mask].mean() * torch.ones_like(value)
    return value


VARIANTS = [
    {},
    {"margin": 0.2},
    {"margin": 0.0},
    {"direction": "decreasing"},
    {"static": True, "margin": 0.1},
    {"unit": "logit", "margin": 2.0},
    {"unit": "logit", "margin": 1.0, "direction": "decreasing", "static": True},
]


def cement_margin(batch: Batch, options: dict, mask: torch.Tensor) -> torch.Tensor:
    settings = {"margin": 0.05, "direction": "increasing", "static": False, **options}
    unit = settings.pop("unit", "cosine")
    value = margins(batch, **settings, mask=mask)
    # In logit units the margin does not pass through the scale, nor does the scale's gradient.
    return value / float(batch.scale) if unit == "logit" else value


@every_backend()
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", VARIANTS, ids=lambda o: "-".join(map(str, o.values())))
def test_cement_captions(backend, k, masked, options):
    batch = Batch(k, seed=1)
    mask = batch.mask if masked else torch.ones_like(batch.mask)
    margin = cement_margin(batch, options, mask)
    logit_units = options.get("unit") == "logit"

    def ours(t):
        return CementLoss(**options, backend=backend)(
            t["images"],
            t["texts"],
            t["scale"],
            hard_text_features=t["hard_texts"],
            concreteness=batch.concreteness,
            hard_mask=mask if masked else None,
        )

    def formula(t):
        m = margin * batch.scale.item() / t["scale"] if logit_units else margin
        return negclip(t["images"], t["texts"], t["hard_texts"], t["scale"], m, mask)

    compare(batch, ours, formula, CAPTIONS)


@every_backend()
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", VARIANTS, ids=lambda o: "-".join(map(str, o.values())))
def test_cement_paired(backend, masked, options):
    batch = Batch(1, seed=2)
    mask = batch.mask if masked else torch.ones_like(batch.mask)
    margin = cement_margin(batch, options, mask)
    logit_units = options.get("unit") == "logit"

    def ours(t):
        return CementLoss(**options, layout="paired", backend=backend)(
            t["images"],
            t["texts"],
            t["scale"],
            hard_text_features=t["hard_texts"],
            hard_image_features=t["hard_images"],
            concreteness=batch.concreteness,
            hard_mask=mask if masked else None,
        )

    def formula(t):
        m = margin * batch.scale.item() / t["scale"] if logit_units else margin
        features = (t["images"], t["texts"], t["hard_images"], t["hard_texts"])
        return paired(*features, t["scale"], m, mask)

    compare(batch, ours, formula, NAMES)


@every_backend()
@pytest.mark.parametrize("margin", [0.0, 0.1])
def test_triplet(backend, margin):
    batch = Batch(1, seed=3)
    constant = torch.full((N, 1), margin, dtype=torch.float64)

    def ours(t):
        return TripletClipLoss(margin=margin, backend=backend)(
            t["images"],
            t["texts"],
            t["scale"],
            hard_text_features=t["hard_texts"][:, 0],
            hard_image_features=t["hard_images"],
        )

    def formula(t):
        images, texts, hard = t["images"], t["texts"], t["hard_texts"]
        first = negclip(images, texts, hard, t["scale"], constant)
        second = negclip(t["hard_images"], hard[:, 0], texts[:, None], t["scale"], constant)
        return first + second

    compare(batch, ours, formula, NAMES)


def calls(batch: Batch, **common):
    """Every loss with a fitting batch: (module, key, keyword arguments)."""
    hard, ratings = batch.hard_texts, batch.concreteness
    one = hard[:, 0]
    yield ClipLoss(**common), "contrastive_loss", {}
    yield NegClipLoss(**common), "negclip_loss", {"hard_text_features": hard}
    captions = {"hard_text_features": hard, "concreteness": ratings}
    yield CementLoss(**common), "cement_loss", captions
    paired_arguments = {
        "hard_text_features": one,
        "concreteness": ratings[:, 0],
        "hard_image_features": batch.hard_images,
    }
    yield CementLoss(layout="paired", **common), "cement_loss", paired_arguments
    triplet = {"hard_text_features": one, "hard_image_features": batch.hard_images}
    yield TripletClipLoss(**common), "triplet_loss", triplet


def test_output_dict_has_one_key_that_a_trainer_can_sum():
    batch = Batch(1)
    for module, key, arguments in calls(batch):
        scalar = module(batch.images, batch.texts, batch.scale, **arguments)
        named = module(batch.images, batch.texts, batch.scale, **arguments, output_dict=True)
        assert list(named) == [key]
        assert key.endswith("_loss")
        assert torch.equal(named[key], scalar)


def test_layout_is_what_forward_computes():
    batch = Batch(1)
    for module, key, arguments in calls(batch):
        layouts = module.layout(batch.images, batch.texts, batch.scale, **arguments)
        layouts = layouts if isinstance(layouts, tuple) else (layouts,)
        total = torch.zeros(())
        for layout in layouts:
            row_loss, col_loss = two_way_cross_entropy(**layout)
            anchors = layout.get("col_target")
            columns = len(col_loss) if anchors is None else int((anchors >= 0).sum())
            total = total + (row_loss.mean() + col_loss.sum() / columns) / 2
        want = module(batch.images, batch.texts, batch.scale, **arguments)
        torch.testing.assert_close(total, want, msg=key)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_bias_is_accepted_and_changes_no_softmax(shape):
    batch = Batch(1)
    bias = torch.full(shape, 1.5)
    for module, key, arguments in calls(batch):
        with_bias = module(batch.images, batch.texts, batch.scale, **arguments, logit_bias=bias)
        without = module(batch.images, batch.texts, batch.scale, **arguments)
        torch.testing.assert_close(with_bias, without, msg=key)


def test_a_bias_beside_a_mask():
    batch = Batch(3)
    arguments = {"hard_text_features": batch.hard_texts, "hard_mask": batch.mask}
    loss = NegClipLoss()
    without = loss(batch.images, batch.texts, batch.scale, **arguments)
    for bias in (1.5, torch.tensor(1.5), torch.tensor([1.5])):
        got = loss(batch.images, batch.texts, batch.scale, **arguments, logit_bias=bias)
        torch.testing.assert_close(got, without)


def test_nothing_hard_at_all_is_plain_clip():
    batch = Batch(3)
    want = ClipLoss()(batch.images, batch.texts, batch.scale)
    none = torch.zeros_like(batch.mask)
    arguments = {"hard_text_features": batch.hard_texts, "hard_mask": none}
    for module, extra in (
        (NegClipLoss(), {}),
        (CementLoss(), {"concreteness": batch.concreteness}),
    ):
        got = module(batch.images, batch.texts, batch.scale, **arguments, **extra)
        torch.testing.assert_close(got, want)
    got = CementLoss(layout="paired")(
        batch.images,
        batch.texts,
        batch.scale,
        hard_text_features=batch.hard_texts[:, :1],
        hard_image_features=batch.hard_images,
        concreteness=batch.concreteness[:, :1],
        hard_mask=none[:, :1],
    )
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("layout", ["captions", "paired"])
def test_what_is_masked_may_hold_anything(layout):
    batch = Batch(1)
    ratings = batch.concreteness.masked_fill(~batch.mask, float("nan"))
    arguments = {"hard_mask": batch.mask, "hard_text_features": batch.hard_texts}
    if layout == "paired":
        arguments["hard_image_features"] = batch.hard_images
    loss = CementLoss(layout=layout)
    features = (batch.images, batch.texts, batch.scale)
    want = loss(*features, **arguments, concreteness=batch.concreteness)
    assert torch.equal(loss(*features, **arguments, concreteness=ratings), want)
    garbage = batch.hard_texts.masked_fill(~batch.mask[..., None], 3.0)
    arguments["hard_text_features"] = garbage
    torch.testing.assert_close(loss(*features, **arguments, concreteness=ratings), want)


def test_concreteness_margin_values():
    rating = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 4.88]])
    up = concreteness_margin(rating, margin=0.2)
    torch.testing.assert_close(up, torch.tensor([[0.0, 0.05, 0.1], [0.15, 0.2, 0.194]]))
    down = concreteness_margin(rating, margin=0.2, direction="decreasing")
    torch.testing.assert_close(up + down, torch.full_like(up, 0.2))
    torch.testing.assert_close(concreteness_margin(rating), up / 4)
    mask = torch.tensor([[True, False, True], [True, True, False]])
    masked = concreteness_margin(rating, margin=0.2, mask=mask)
    torch.testing.assert_close(masked, up * mask)
    static = concreteness_margin(rating, margin=0.2, mask=mask, static=True)
    torch.testing.assert_close(static, mask * (0.0 + 0.1 + 0.15 + 0.2) / 4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_concreteness_margin_is_fp32_and_constant(dtype):
    rating = torch.tensor([1, 3, 5], dtype=dtype)
    if dtype.is_floating_point:
        rating.requires_grad_()
    margin = concreteness_margin(rating)
    assert margin.dtype == torch.float32
    assert not margin.requires_grad
    torch.testing.assert_close(margin, torch.tensor([0.0, 0.025, 0.05]))
