"""Training steps that encode a batch in chunks: gradient caching, and what is done in its place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .base import Loss

Autocast = Callable[[], AbstractContextManager[Any]]
# Leaves gradients of the loss of images and token ids in the model's parameters.
Backward = Callable[[Tensor, Tensor], None]


@dataclass(frozen=True)
class Way:
    """`build` takes the model, the loss, the samples of a chunk and an autocast context."""

    name: str
    build: Callable[[nn.Module, Loss, int, Autocast], Backward]
    unavailable: Callable[[], str | None]
    distribution: str | None


def _accumulated(model: nn.Module, loss: Loss, chunk: int, autocast: Autocast) -> Backward:
    """open_clip's accum_freq (`open_clip_train.train`): the whole batch's loss for every chunk."""

    def backward(images: Tensor, texts: Tensor) -> None:
        chunks = list(zip(images.split(chunk), texts.split(chunk), strict=True))
        with torch.no_grad(), autocast():
            cached = [model(*each) for each in chunks]
        for place, each in enumerate(chunks):
            with autocast():
                found = model(*each)
                whole = [
                    torch.cat([*(c[key] for c in cached[:place]), found[key],
                               *(c[key] for c in cached[place + 1 :])])
                    for key in ("image_features", "text_features")
                ]  # fmt: skip
                value = loss(*whole, found["logit_scale"])
            value.backward()

    return backward


def _grad_cache(model: nn.Module, loss: Loss, chunk: int, autocast: Autocast) -> Backward:
    from grad_cache import GradCache

    class Encoder(nn.Module):
        def __init__(self, encode: Callable[..., Tensor]):
            super().__init__()
            self.encode = encode

        def forward(self, inputs: Tensor) -> Tensor:
            with autocast():
                return self.encode(inputs, normalize=True)

    cache = GradCache(
        models=[Encoder(model.encode_image), Encoder(model.encode_text)],
        chunk_sizes=chunk,
        loss_fn=lambda images, texts: loss(images, texts, model.logit_scale.exp()),
    )
    return lambda images, texts: cache(images, texts)


def _grad_cache_missing() -> str | None:
    try:
        from grad_cache import GradCache  # noqa: F401
    except ImportError as error:
        return (
            f"grad_cache: {error}; the package gradcache 0.0.1 imports that name and installs "
            "itself as another"
        )
    return None


def _gradient_cache(model: nn.Module, loss: Loss, chunk: int, autocast: Autocast) -> Backward:
    """Ours."""
    from slipform_training.finetune import GradientCache

    cache = GradientCache(
        model,
        lambda image_features, text_features, logit_scale, **others: loss(
            image_features, text_features, logit_scale
        ),
        chunk_size=chunk,
        autocast=autocast,
    )
    return lambda images, texts: cache.backward({"image": images, "text": texts})


WAYS: dict[str, Way] = {
    way.name: way
    for way in (
        Way("open_clip_accum_freq", _accumulated, lambda: None, "open_clip_torch"),
        Way("grad_cache", _grad_cache, _grad_cache_missing, "gradcache"),
        Way("slipform_gradient_cache", _gradient_cache, lambda: None, "slipform-kernels"),
    )
}
