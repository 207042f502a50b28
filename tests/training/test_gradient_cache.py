"""Gradient caching gives the gradients of the whole batch at once, with the memory of a chunk."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from slipform_kernels import ClipLoss, NegClipLoss
from slipform_training.finetune import GradientCache


class Towers(nn.Module):
    """Two encoders with dropout, and a logit scale that every chunk returns."""

    def __init__(self, dropout: float = 0.3):
        super().__init__()
        torch.manual_seed(0)
        self.image = nn.Sequential(
            nn.Linear(12, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, 8)
        )
        self.text = nn.Sequential(
            nn.Linear(10, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, 8)
        )
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, image, text, hard=None):
        out = {
            "image_features": normalize(self.image(image), dim=-1),
            "text_features": normalize(self.text(text), dim=-1),
            "logit_scale": self.logit_scale.exp(),
        }
        if hard is not None:
            out["hard_text_features"] = normalize(self.text(hard), dim=-1)
        return out


def batch_of(n, *, hard=False, seed=0):
    gen = torch.Generator().manual_seed(seed)
    batch = {"image": torch.randn(n, 12, generator=gen), "text": torch.randn(n, 10, generator=gen)}
    if hard:
        batch["hard"] = torch.randn(n, 3, 10, generator=gen)
    return batch


def uncached(model, loss, batch, chunk_size, scale=1.0, autocast=contextlib.nullcontext):
    """All chunks' graphs at once: the same random numbers, chunk by chunk."""
    parts = [value.split(chunk_size) for value in batch.values()]
    with autocast():
        encoded = [model(*part) for part in zip(*parts, strict=True)]
        features = {
            name: encoded[0][name]
            if name == "logit_scale"
            else torch.cat([e[name] for e in encoded])
            for name in encoded[0]
        }
        value = loss(**features)
    (scale * value).backward()
    return value.detach()


def grads_of(model):
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def assert_close(got, want, bar=1e-6):
    for name in want:
        assert float((got[name] - want[name]).norm() / want[name].norm()) <= bar, name


@pytest.mark.parametrize("chunk_size", [1, 4, 5, 16, 100])
@pytest.mark.parametrize("hard", [False, True])
def test_equals_the_whole_batch_with_dropout(chunk_size, hard):
    loss = NegClipLoss() if hard else ClipLoss()
    batch = batch_of(16, hard=hard)
    want, got = Towers(), Towers()
    torch.manual_seed(7)
    expected = uncached(want, loss, batch, chunk_size)
    drawn = torch.rand(3)
    torch.manual_seed(7)
    value = GradientCache(got, loss, chunk_size=chunk_size).backward(batch)
    # fp64 would hide nothing here: both sides are the same fp32 arithmetic but for the chunks.
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
    assert_close(grads_of(got), grads_of(want))
    # What comes after draws the numbers that it would have drawn.
    assert torch.equal(torch.rand(3), drawn)


def test_dropout_is_on_in_that_comparison():
    """With other random numbers the gradients differ: the test above could fail."""
    batch, loss = batch_of(16), ClipLoss()
    first, second = Towers(), Towers()
    for model, seed in ((first, 7), (second, 8)):
        torch.manual_seed(seed)
        GradientCache(model, loss, chunk_size=4).backward(batch)
    grads = grads_of(first), grads_of(second)
    assert (grads[0]["image.0.weight"] - grads[1]["image.0.weight"]).norm() > 0.1 * grads[0][
        "image.0.weight"
    ].norm()


def test_accumulates_into_grad():
    model, loss = Towers(dropout=0.0), ClipLoss()
    cache = GradientCache(model, loss, chunk_size=3)
    cache.backward(batch_of(8, seed=1), sync=False)
    first = grads_of(model)
    model.zero_grad()
    cache.backward(batch_of(8, seed=2))
    second = grads_of(model)
    model.zero_grad()
    cache.backward(batch_of(8, seed=1))
    cache.backward(batch_of(8, seed=2))
    assert_close(grads_of(model), {name: first[name] + second[name] for name in first})


def test_autocast_and_grad_scaler():
    batch, loss = batch_of(16), ClipLoss()
    autocast = lambda: torch.autocast("cpu", torch.bfloat16)  # noqa: E731
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    want, got = Towers(dropout=0.0), Towers(dropout=0.0)
    uncached(want, loss, batch, 4, 1024.0, autocast)
    GradientCache(got, loss, chunk_size=4, autocast=autocast).backward(batch, scaler=scaler)
    assert_close(grads_of(got), grads_of(want), bar=2e-2)  # sums over chunks are rounded to bf16
    optimizer = torch.optim.SGD(got.parameters(), lr=0.0)
    scaler.unscale_(optimizer)
    assert_close({n: 1024 * g for n, g in grads_of(got).items()}, grads_of(want), bar=2e-2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GradientCache(Towers(), ClipLoss(), chunk_size=0), "chunk_size: got 0"),
        (
            lambda: GradientCache(Towers(), ClipLoss(), chunk_size=2).backward(
                {"image": torch.ones(4, 12), "text": torch.ones(3, 10)}
            ),
            "batch: got lengths {'image': 4, 'text': 3}",
        ),
        (
            lambda: GradientCache(Towers(), ClipLoss(), chunk_size=2, shared=()).backward(
                batch_of(4)
            ),
            r"encode: got logit_scale of shape \[\] for 2 samples",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def cached(**changed):
    options = {"encode": Towers(), "loss": ClipLoss(), "batch": batch_of(4)} | changed
    cache = GradientCache(options["encode"], options["loss"], chunk_size=2)
    return cache.backward(options["batch"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch": {"image": [1, 2]}}, "batch: got list for 'image'"),
        ({"batch": {"image": None}}, "batch: got NoneType for 'image'"),
        ({"encode": lambda image, text: (image, text)}, "encode: returned tuple"),
        (
            {"loss": lambda **features: ClipLoss()(**features, output_dict=True)},
            "loss: returned dict",
        ),
    ],
)
def test_what_is_no_tensor_is_named(changed, message):
    with pytest.raises(TypeError, match=message):
        cached(**changed)


def test_without_gradients_there_is_no_backward():
    with torch.no_grad(), pytest.raises(RuntimeError, match="no_grad"):
        cached()


PROGRAM = textwrap.dedent(
    """
    import re, sys, torch
    from torch import nn
    from slipform_kernels import ClipLoss
    from slipform_training.finetune import GradientCache

    torch.set_num_threads(1)
    layers = [layer for _ in range(16) for layer in (nn.Linear(1024, 1024), nn.GELU())]
    tower, scale = nn.Sequential(*layers, nn.Linear(1024, 16)), torch.tensor(5.0)

    def encode(image, text):
        return {"image_features": tower(image), "text_features": tower(text), "logit_scale": scale}

    def step(n, chunk):
        batch = {"image": torch.randn(n, 1024), "text": torch.randn(n, 1024)}
        GradientCache(encode, ClipLoss(), chunk_size=chunk).backward(batch)

    def peak():
        # Not ru_maxrss, which counts from the peak of the process that started this one.
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])

    step(64, 64)
    before = peak()
    step(int(sys.argv[1]), int(sys.argv[2]))
    print((peak() - before) / 1024)
    """
)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_peak_memory_is_that_of_a_chunk():
    """1,024 pairs keep 256 MiB of activations, and 64 of them 16 MiB; the batch itself is 8 MiB."""

    def peak(n: int, chunk: int) -> float:
        command = [sys.executable, "-c", PROGRAM, str(n), str(chunk)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    whole, cached, twice = peak(1024, 1024), peak(1024, 64), peak(2048, 64)
    assert whole > 250
    assert cached < whole / 3
    assert twice < cached + 40, "MiB"
