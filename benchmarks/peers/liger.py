"""Liger-Kernel's fused linear cross-entropy, once for each direction, the scale in the queries."""

from __future__ import annotations

from torch import Tensor

from .base import Loss, Peer, both_ways, linear, package

DISTRIBUTION = "liger_kernel"


def build(rank: int, world_size: int) -> Loss:
    from liger_kernel.transformers.fused_linear_cross_entropy import (
        LigerFusedLinearCrossEntropyLoss,
    )

    module = LigerFusedLinearCrossEntropyLoss()

    def one_way(
        queries: Tensor, keys: Tensor, target: Tensor, scale: Tensor, **options: object
    ) -> Tensor:
        return module(keys, scale * queries, target, **options)

    return both_ways(one_way)


PEER = Peer("liger", build, package(DISTRIBUTION, gpu=True), linear, DISTRIBUTION, triton=True)
