"""Everything that the losses here are measured beside, one file a peer; see `base.Peer`."""

from __future__ import annotations

from . import (
    checkpointed,
    cut_cross_entropy,
    inf_cl,
    liger,
    memeff,
    open_clip,
    open_clip_compiled,
    ours,
    siglip_kernel,
)
from .base import Peer

# The loss of CLIP. To add a variant of ours: make it in ours.py, name it here.
LOSSES: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        ours.NATIVE,
        ours.NATIVE_CACHED,
        ours.TORCH,
        ours.TRITON,
        open_clip.PEER,
        open_clip_compiled.PEER,
        checkpointed.PEER,
        memeff.PEER,
        inf_cl.PEER,
        liger.PEER,
        cut_cross_entropy.PEER,
    )
}
# The loss of SigLIP, called with a bias as well.
SIGMOID_LOSSES: dict[str, Peer] = {
    peer.name: peer for peer in (ours.SIGMOID, open_clip.SIGMOID_PEER, siglip_kernel.PEER)
}
# What ratios are taken to.
BASELINE = open_clip.PEER
SIGMOID_BASELINE = open_clip.SIGMOID_PEER
