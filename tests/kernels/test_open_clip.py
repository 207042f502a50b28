"""ClipLoss drops in for open_clip's: equal loss, equal gradients, equal weights after training."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
import torch.nn.functional as F

from slipform_kernels import ClipLoss
from support.accuracy import relative_error
from support.backends import every_backend

open_clip = pytest.importorskip("open_clip")
SIZES = [1, 2, 7, 256, pytest.param(4096, marks=pytest.mark.slow)]


def features(n: int, dim: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs as half-trained towers give them: unit norm, positives at a cosine of about 0.3."""
    gen = torch.Generator().manual_seed(seed)
    texts = F.normalize(torch.randn(n, dim, generator=gen), dim=1)
    images = F.normalize(torch.randn(n, dim, generator=gen) + 0.3 * dim**0.5 * texts, dim=1)
    return images.requires_grad_(), texts.requires_grad_()


def loss_and_gradients(module, n, scale, bias):
    """The loss, and its gradients for features, log scale and bias, as in open_clip's loop."""
    images, texts = features(n, 128)
    log_scale = scale.log().requires_grad_()
    bias = None if bias is None else bias.clone().requires_grad_()
    loss = module(images, texts, log_scale.exp(), logit_bias=bias)
    leaves = [images, texts, log_scale] + ([] if bias is None else [bias])
    return loss, torch.autograd.grad(loss, leaves)


@every_backend("reference")
@pytest.mark.threads(2)
@pytest.mark.parametrize("shape", [(), (1,)], ids=["scale[]", "scale[1]"])
@pytest.mark.parametrize("bias", [None, -5.0], ids=["no-bias", "bias"])
@pytest.mark.parametrize("n", SIZES)
def test_loss_and_gradients_equal_open_clip(backend, n, bias, shape):
    """Loss within 1e-6 (relative, absolute below 1), gradients within 1e-5 in relative norm.

    A gradient that is 0 by definition (N = 1: no other pair; the bias: it cancels in the softmax)
    is compared with the sum of the magnitudes that cancel in it: for N = 1 exactly, for the bias
    1e-6 of an upstream weight of 1.
    """
    scale = torch.full(shape, 14.3)
    bias = None if bias is None else torch.full(shape, bias)
    theirs, their_grads = loss_and_gradients(open_clip.loss.ClipLoss(), n, scale, bias)
    ours, our_grads = loss_and_gradients(ClipLoss(backend=backend), n, scale, bias)
    assert ours.shape == theirs.shape
    assert abs(ours.item() - theirs.item()) <= 1e-6 * max(1.0, theirs.item())
    for name, got, want in zip(("images", "texts", "scale"), our_grads, their_grads, strict=False):
        assert got.shape == want.shape, name
        assert got.dtype == want.dtype, name
        if n == 1:
            assert not got.any(), name
        else:
            assert relative_error(got, want) < 1e-5, name
    if bias is not None:
        assert our_grads[3].shape == bias.shape
        assert abs(our_grads[3].item()) < 1e-6


def test_signatures_are_those_of_open_clip():
    for method in ("__init__", "forward"):
        theirs = inspect.signature(getattr(open_clip.loss.ClipLoss, method)).parameters
        ours = inspect.signature(getattr(ClipLoss, method)).parameters
        assert list(ours)[: len(theirs)] == list(theirs)
        for name, parameter in theirs.items():
            assert ours[name].default == parameter.default, name
            assert ours[name].kind == parameter.kind, name
        extra = list(ours.values())[len(theirs) :]
        assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in extra)


def test_output_dict_and_positional_flags_as_in_open_clip():
    images, texts = features(8, 16)
    scale = torch.tensor(10.0)
    theirs = open_clip.loss.ClipLoss(False, False, True, 0, 1, False)
    ours = ClipLoss(False, False, True, 0, 1, False)
    want = theirs(images, texts, scale, None, True)
    got = ours(images, texts, scale, None, True)
    assert got.keys() == want.keys() == {"contrastive_loss"}
    torch.testing.assert_close(got["contrastive_loss"], want["contrastive_loss"])
    model_output = {"image_features": images, "text_features": texts, "logit_scale": scale}
    assert ours(**model_output, output_dict=True).keys() == want.keys()


def tiny_clip(bias: float | None, nonscalar: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    return open_clip.model.CLIP(
        embed_dim=32,
        vision_cfg={
            "layers": 2,
            "width": 32,
            "head_width": 16,
            "patch_size": 8,
            "image_size": 32,
        },
        text_cfg={
            "context_length": 12,
            "vocab_size": 64,
            "width": 32,
            "heads": 2,
            "layers": 2,
        },
        init_logit_bias=bias,
        nonscalar_logit_scale=nonscalar,
        output_dict=True,
    )


def train(model: torch.nn.Module, loss_fn: torch.nn.Module, steps: int = 5) -> list[float]:
    """open_clip_train's step: total of the losses, backward, AdamW, clamp of the logit scale."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-6)
    gen = torch.Generator().manual_seed(1)
    history = []
    for _ in range(steps):
        images = torch.randn(16, 3, 32, 32, generator=gen)
        texts = torch.randint(1, 63, (16, 12), generator=gen)
        texts[:, -1] = 63
        optimizer.zero_grad()
        losses = loss_fn(**model(images, texts), output_dict=True)
        total = sum(losses.values())
        total.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, 4.6052)
        history.append(total.item())
    return history


@every_backend()
@pytest.mark.parametrize(("bias", "nonscalar"), [(None, False), (None, True), (-2.0, False)])
def test_five_adamw_steps_give_the_same_weights(backend, bias, nonscalar):
    """All weights together agree to 1e-4 of the way that they went, each one to 1e-4 = lr / 10.

    AdamW moves a weight by lr g / (|g| + eps): an error d of g costs lr d / eps at most, where g
    is near 0. Gradients here are of the order of 1e-2 and equal to 1e-5 of that, and
    1e-3 * 1e-7 / 1e-6 = 1e-4.
    Two kinds of weights have gradients that are 0 but for rounding, which AdamW blows up to steps:
    the logit bias and the bias of the attention's keys. Both cancel in a softmax.
    """
    start = tiny_clip(bias, nonscalar)
    theirs, ours = copy.deepcopy(start), copy.deepcopy(start)
    their_history = train(theirs, open_clip.loss.ClipLoss())
    our_history = train(ours, ClipLoss(backend=backend))
    assert our_history == pytest.approx(their_history, rel=1e-5)
    assert their_history[-1] != their_history[0]
    moved, apart = torch.zeros(()), torch.zeros(())
    for (name, want), got, initial in zip(
        theirs.named_parameters(), ours.parameters(), start.parameters(), strict=True
    ):
        if name == "logit_bias":
            continue
        if name.endswith("in_proj_bias"):
            got, want, initial = (_without_keys(v) for v in (got, want, initial))
        assert (got - want).abs().max() <= 1e-4, name
        moved += (want - initial).detach().square().sum()
        apart += (got - want).detach().square().sum()
    assert moved > 0
    assert (apart / moved).sqrt() < 1e-4


def _without_keys(in_proj_bias: torch.Tensor) -> torch.Tensor:
    queries, _, values = in_proj_bias.chunk(3)
    return torch.cat([queries, values])
