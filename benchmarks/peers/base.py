"""What a peer is, and what several of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

import torch
from torch import Tensor

from slipform_kernels.dispatch import triton_backend

Loss = Callable[..., Tensor]
# Peak of a forward and backward beside the features, in bytes: from N, D and the bytes of a number.
Estimate = Callable[[int, int, int], int]


@dataclass(frozen=True)
class Peer:
    """One way to compute a loss.

    Attributes:
        name: in options and tables.
        build: (rank, world_size) -> the loss, a function of images [N, D], texts [N, D] and scale
            [] (and bias []) with a scalar result: the mean of both directions. What the peer's own
            functions take besides is passed on to them: `col_target` int64 [M] and `hard_cols`
            int64 [N, K] with `margin` [N, K] as in `two_way_cross_entropy`, for M texts.
        unavailable: device -> why it cannot run there, or None.
        extra_bytes: an estimate, to leave out what a machine has no memory for.
        distribution: the package whose version is recorded, or None: torch alone.
        triton: its kernels are Triton's, so that its interpreter may run them without a GPU.
        compiles: its first call at a size compiles.
    """

    name: str
    build: Callable[[int, int], Loss]
    unavailable: Callable[[torch.device], str | None]
    extra_bytes: Estimate
    distribution: str | None = None
    triton: bool = False
    compiles: bool = False

    def version(self) -> str | None:
        """Of the distribution, where it is installed."""
        return _version(self.distribution) if self.distribution else None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def package(distribution: str, *, gpu: bool) -> Callable[[torch.device], str | None]:
    """`Peer.unavailable` of a package, which may need a GPU."""

    def unavailable(device: torch.device) -> str | None:
        if _version(distribution) is None:
            return f"{distribution} is not installed"
        if gpu and device.type != "cuda" and not triton_backend.interpreted():
            return "needs a GPU"
        return None

    return unavailable


def matrices(count: int) -> Estimate:
    """So many matrices of N x N in the features' dtype, and features' gradients."""
    return lambda N, D, size: count * N * N * size + linear(N, D, size)


def linear(N: int, D: int, size: int) -> int:
    """Gradients and two copies of the features in fp32, and a workspace of 128 MiB."""
    return 4 * 2 * N * D * 4 + 2**27


def both_ways(one_way: Loss) -> Loss:
    """CLIP's loss from a cross-entropy of queries over keys.

    `one_way` takes queries [Q, D], keys [K, D], target int64 [Q] and scale, and returns the mean.
    """

    def loss(
        images: Tensor,
        texts: Tensor,
        scale: Tensor,
        *,
        col_target: Tensor | None = None,
        **options: object,
    ) -> Tensor:
        of_images = torch.arange(len(images), device=images.device)
        of_texts, queries = of_images, texts
        if col_target is not None:
            anchors = col_target >= 0
            of_texts, queries = col_target[anchors], texts[anchors]
        to_texts = one_way(images, texts, of_images, scale, **options)
        return (to_texts + one_way(queries, images, of_texts, scale, **options)) / 2

    return loss
