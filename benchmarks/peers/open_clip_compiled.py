"""open_clip's ClipLoss under torch.compile. Compiling is part of the warm-up, and not timed."""

from __future__ import annotations

import torch

from . import open_clip
from .base import Loss, Peer, matrices


def build(rank: int, world_size: int) -> Loss:
    # After eight shapes dynamo would go on without compiling.
    torch.compiler.reset()
    return torch.compile(open_clip.build(rank, world_size), dynamic=False)


PEER = Peer(
    "open_clip_compiled", build, open_clip.available, matrices(4), open_clip.DISTRIBUTION,
    compiles=True,
)  # fmt: skip
