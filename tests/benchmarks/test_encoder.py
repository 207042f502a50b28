"""Every way to take a training step leaves the gradients of the plain one."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from benchmarks.peers.encoder import WAYS
from benchmarks.peers.open_clip import build
from benchmarks.test_encoder_step import EncoderStep, Plain


class Towers(nn.Module):
    """A model as open_clip's are called."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(6, 4), nn.Linear(5, 4)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def encode_image(self, images, normalize=True):
        return torch.nn.functional.normalize(self.image(images), dim=1)

    def encode_text(self, texts, normalize=True):
        return torch.nn.functional.normalize(self.text(texts), dim=1)

    def forward(self, image, text):
        return {
            "image_features": normalize(self.image(image), dim=1),
            "text_features": normalize(self.text(text), dim=1),
            "logit_scale": self.logit_scale.exp(),
        }


def gradients(model, backward, batch):
    model = copy.deepcopy(model)
    backward(model)(*batch)
    return [parameter.grad for parameter in model.parameters()]


def plain(model):
    return Plain(model, build(0, 1), nullcontext, lambda: None)


@pytest.fixture
def case():
    torch.manual_seed(0)
    return Towers(), (torch.randn(8, 6), torch.randn(8, 5))


@pytest.fixture
def wanted(case):
    """Gradients of autograd through the whole model."""
    model, batch = copy.deepcopy(case[0]), case[1]
    found = model(*batch)
    build(0, 1)(found["image_features"], found["text_features"], found["logit_scale"]).backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("name", ["plain", *WAYS])
def test_gradients_are_those_of_the_plain_step(name, case, wanted):
    model, batch = case
    if name == "plain":
        got = gradients(model, plain, batch)
    else:
        way = WAYS[name]
        reason = way.unavailable()
        if reason is not None:
            pytest.skip(reason)
        got = gradients(model, lambda m: way.build(m, build(0, 1), 2, nullcontext), batch)
    if name == "open_clip_accum_freq":  # the scale is in all four of its losses
        got[0] = got[0] / 4
    for found, want in zip(got, wanted, strict=True):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-6)


def test_a_scale_that_the_loss_holds_constant_does_not_stop_the_step(case):
    model, batch = case
    loss = build(0, 1)
    backward = Plain(model, lambda i, t, s: loss(i, t, s.detach()), nullcontext, lambda: None)
    step = EncoderStep(model, batch, backward)
    before = model.image.weight.clone()
    step.prepare()
    step.run()
    assert model.logit_scale.grad is None
    assert not torch.equal(model.image.weight, before)
    assert len(backward.loss_seconds) == 1
    step.release()
    assert model.image.weight.grad is None
