"""Inf-CL (arXiv 2410.17243): one call for each direction. It computes in fp32 whatever comes in."""

from __future__ import annotations

from torch import Tensor

from .base import Loss, Peer, both_ways, linear, package

DISTRIBUTION = "inf-cl"


def build(rank: int, world_size: int) -> Loss:
    from inf_cl import cal_inf_loss

    def one_way(
        queries: Tensor, keys: Tensor, target: Tensor, scale: Tensor, **options: object
    ) -> Tensor:
        return cal_inf_loss(queries, keys, labels=target, scale=scale, **options)

    return both_ways(one_way)


PEER = Peer("inf_cl", build, package(DISTRIBUTION, gpu=True), linear, DISTRIBUTION, triton=True)
