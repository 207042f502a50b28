"""Does a peer compute the loss of all ranks' samples? Two processes over gloo, on the CPU."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

from benchmarks.peers import LOSSES
from benchmarks.peers.base import Loss, Peer

WORLD, N, D = 2, 24, 32
TOLERANCE = 1e-3


def agrees(peer: Peer) -> str:
    """Whether the mean of two ranks' losses and gradients is that of one process: "yes" or "no"."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            mp.spawn(_rank, args=(peer.name, folder), nprocs=WORLD)
        except mp.ProcessException:
            return "no"
        found = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(WORLD)]
    want = _results(peer.build(0, 1), *_features())
    # DDP averages gradients over the ranks.
    got = [
        torch.stack([each[0] for each in found]).mean(0),
        *(torch.cat([each[place] for each in found]) / WORLD for place in (1, 2)),
    ]
    close = (
        torch.allclose(a, b, rtol=TOLERANCE, atol=1e-6) for a, b in zip(got, want, strict=True)
    )
    return "yes" if all(close) else "no"


def _features() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images, texts = F.normalize(torch.randn(2, N, D, generator=generator), dim=2)
    return images, texts


def _results(loss: Loss, images: torch.Tensor, texts: torch.Tensor) -> list[torch.Tensor]:
    """The value and the gradients of both features."""
    leaves = [x.clone().requires_grad_() for x in (images, texts)]
    value = loss(*leaves, torch.tensor(10.0, requires_grad=True))
    value.backward()
    return [
        value.detach(),
        *(x.grad if x.grad is not None else torch.zeros_like(x) for x in leaves),
    ]


def _rank(rank: int, name: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", timedelta(seconds=60), WORLD, rank)
    own = [x.chunk(WORLD)[rank] for x in _features()]
    torch.save(_results(LOSSES[name].build(rank, WORLD), *own), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()
