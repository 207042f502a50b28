"""open_clip's losses, eager: the matrix of each direction is stored."""

from __future__ import annotations

from .base import Loss, Peer, matrices, package

DISTRIBUTION = "open_clip_torch"


def build(rank: int, world_size: int) -> Loss:
    from open_clip.loss import ClipLoss

    many = world_size > 1
    return ClipLoss(local_loss=many, gather_with_grad=many, rank=rank, world_size=world_size)


def build_sigmoid(rank: int, world_size: int) -> Loss:
    from open_clip.loss import SigLipLoss

    return SigLipLoss(rank=rank, world_size=world_size)


available = package(DISTRIBUTION, gpu=False)
PEER = Peer("open_clip", build, available, matrices(5), DISTRIBUTION)
SIGMOID_PEER = Peer("open_clip", build_sigmoid, available, matrices(5), DISTRIBUTION)
