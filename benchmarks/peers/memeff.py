"""memeff's MemoryEfficientCLIPLoss, with `stable=False`: the gradient of the loss, not rescaled.

Its temperature is a number, given when the module is made: no gradient can reach the scale.
"""

from __future__ import annotations

from torch import Tensor

from .base import Loss, Peer, linear, package

DISTRIBUTION = "memeff"


def build(rank: int, world_size: int) -> Loss:
    from memeff import MemoryEfficientCLIPLoss

    def loss(images: Tensor, texts: Tensor, scale: Tensor, **options: object) -> Tensor:
        module = MemoryEfficientCLIPLoss(
            temperature=1 / scale.detach().item(), normalized_inputs=True, stable=False
        )
        return module(images, texts, **options)

    return loss


PEER = Peer("memeff", build, package(DISTRIBUTION, gpu=True), linear, DISTRIBUTION, triton=True)
