"""siglip-kernel's loss of SigLIP, with the kernel that it chooses for the GPU and the dtype."""

from __future__ import annotations

from torch import Tensor

from .base import Loss, Peer, linear, package

DISTRIBUTION = "siglip-kernel"


def build(rank: int, world_size: int) -> Loss:
    from siglip_kernel import fused_siglip_loss

    def loss(images: Tensor, texts: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        return fused_siglip_loss(images, texts, scale.log(), bias)

    return loss


PEER = Peer(
    "siglip_kernel", build, package(DISTRIBUTION, gpu=True), linear, DISTRIBUTION, triton=True
)
