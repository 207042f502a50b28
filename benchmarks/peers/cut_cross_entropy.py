"""Apple's cut cross-entropy, once for each direction, the scale in the queries, as it is set up."""

from __future__ import annotations

from torch import Tensor

from .base import Loss, Peer, both_ways, linear, package

DISTRIBUTION = "cut-cross-entropy"


def build(rank: int, world_size: int) -> Loss:
    from cut_cross_entropy import linear_cross_entropy

    def one_way(
        queries: Tensor, keys: Tensor, target: Tensor, scale: Tensor, **options: object
    ) -> Tensor:
        return linear_cross_entropy(scale * queries, keys, target, **options)

    return both_ways(one_way)


PEER = Peer(
    "cut_cross_entropy", build, package(DISTRIBUTION, gpu=True), linear, DISTRIBUTION, triton=True
)
