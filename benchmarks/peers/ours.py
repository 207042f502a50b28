"""The losses of this package, by backend."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from slipform_kernels import ClipLoss, SigLipLoss, dispatch, two_way_cross_entropy
from slipform_kernels.backends import native, native_cuda
from slipform_kernels.engine import CACHE_VARIABLE

from .base import Estimate, Loss, Peer, linear

DISTRIBUTION = "slipform-kernels"


def variant(
    name: str, *, backend: str, extra_bytes: Estimate = linear, kept: int = 0, **options: Any
) -> Peer:
    """ClipLoss(backend=backend, **options) as a peer, which keeps `kept` bytes for backward."""

    def build(rank: int, world_size: int) -> Loss:
        many = world_size > 1
        pairs = ClipLoss(
            rank=rank, world_size=world_size, gather_with_grad=many, local_loss=many,
            backend=backend, **options,
        )  # fmt: skip

        def loss(images: Tensor, texts: Tensor, scale: Tensor, **layout: Tensor) -> Tensor:
            if not layout:
                with _kept(kept):
                    return pairs(images, texts, scale)
            diagonal = torch.arange(len(images), device=images.device)
            of_images, of_texts = two_way_cross_entropy(
                images, texts, scale, row_target=diagonal, backend=backend, **layout
            )
            return (of_images.mean() + of_texts[layout["col_target"] >= 0].mean()) / 2

        return loss

    return Peer(
        name, build, lambda device: _unavailable(backend, device), extra_bytes, DISTRIBUTION,
        triton=backend == "triton",
    )  # fmt: skip


@contextmanager
def _kept(budget: int) -> Iterator[None]:
    """SLIPFORM_MATRIX_BYTES is the budget, or not set where that is 0."""
    before = os.environ.pop(CACHE_VARIABLE, None)
    if budget:
        os.environ[CACHE_VARIABLE] = str(budget)
    try:
        yield
    finally:
        os.environ.pop(CACHE_VARIABLE, None)
        if before is not None:
            os.environ[CACHE_VARIABLE] = before


def _unavailable(backend: str, device: torch.device) -> str | None:
    on_gpu = device.type == "cuda"
    if backend == "native":
        return (native_cuda if on_gpu else native).unavailable()
    if backend == "triton" and not (on_gpu or dispatch.triton_backend.interpreted()):
        return "needs a GPU"
    return dispatch.triton_backend.unavailable() if backend == "triton" else None


NATIVE = variant("native", backend="native")
NATIVE_CACHED = variant(
    "native_cached", backend="native", kept=1 << 40,
    extra_bytes=lambda N, D, size: 4 * N * N + linear(N, D, size),
)  # fmt: skip
TORCH = variant("torch", backend="torch")
TRITON = variant("triton", backend="triton")
SIGMOID = Peer(
    "slipform",
    lambda rank, world_size: SigLipLoss(rank=rank, world_size=world_size),
    lambda device: None,
    linear,
    DISTRIBUTION,
)
