"""What the loss benchmarks time: a pass of a loss over seeded features, and a matrix product."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.peers.base import Loss

SCALE = 100.0
# Rows of the product: enough for its full rate.
BAND = {"cpu": 2048, "cuda": 16384}


def features(N: int, D: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Images and texts [N, D] of unit norm, the same in every process; leaves."""
    generator = torch.Generator().manual_seed(N + D)
    return [
        F.normalize(torch.randn(N, D, generator=generator), dim=1)
        .to(device, dtype)
        .requires_grad_()
        for _ in range(2)
    ]


def parameters(values: tuple[float, ...], device: torch.device) -> list[Tensor]:
    """The scale, and the bias where there is one: fp32 leaves []."""
    return [torch.tensor(value, device=device, requires_grad=True) for value in values]


def finished(device: torch.device) -> Callable[[], None]:
    """Waits until the device has done its work."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


class LossStep:
    """A pass of a loss: "forward" (as in training, with a graph), "backward" or "both"."""

    def __init__(self, loss: Loss, leaves: list[Tensor], which: str):
        self.loss, self.leaves, self.which = loss, leaves, which
        self.value: Tensor | None = None
        self.finish = finished(leaves[0].device)

    def prepare(self) -> None:
        self.release()
        if self.which == "backward":
            self.value = self.loss(*self.leaves)
        self.finish()

    def run(self) -> None:
        if self.which != "backward":
            self.value = self.loss(*self.leaves)
        if self.which != "forward":
            assert self.value is not None
            self.value.backward()
        self.finish()

    def release(self) -> None:
        self.value = None
        for leaf in self.leaves:
            leaf.grad = None


class Product:
    """A band of rows of the N x N product by torch.mm, into a result that is there already."""

    def __init__(self, images: Tensor, texts: Tensor, dtype: torch.dtype):
        N = len(images)
        band = min(N, BAND[images.device.type])
        self.share = band / N
        self.left, self.right = (x.detach().to(dtype) for x in (images[:band], texts))
        self.result = torch.empty(band, N, device=images.device, dtype=dtype)
        self.finish = finished(images.device)

    def prepare(self) -> None:
        self.finish()

    def run(self) -> None:
        torch.mm(self.left, self.right.T, out=self.result)
        self.finish()

    def release(self) -> None:
        pass
