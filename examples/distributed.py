"""A loss over several processes, with the gradients that one process has on all the samples.

    python examples/distributed.py                              # starts two processes itself
    torchrun --nproc-per-node 4 examples/distributed.py         # or as many as you like

This is gloo on CPUs; with GPUs, init_process_group("nccl") and the model on the process's own. The
processes need not have equally many samples: here the first has more.
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slipform_kernels import NegClipLoss


class TwoTowers(nn.Module):
    """Stands for your model."""

    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(48, 16), nn.Linear(32, 16)
        self.log_scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, images, texts, hard_texts):
        unit = nn.functional.normalize
        return {
            "image_features": unit(self.image(images), dim=-1),
            "text_features": unit(self.text(texts), dim=-1),
            "hard_text_features": unit(self.text(hard_texts), dim=-1),
            "logit_scale": self.log_scale.exp(),
        }


def step(model, loss_fn, batch):
    loss = loss_fn(**model(*batch))
    loss.backward()
    return loss.item()


def worker():
    """What every process does; RANK and the others are set by torchrun, or below."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same weights everywhere, and the same samples to share out
    model, alone = TwoTowers(), TwoTowers()
    alone.load_state_dict(model.state_dict())
    everything = torch.randn(64, 48), torch.randn(64, 32), torch.randn(64, 32)
    start = [0, *(16 + 48 * r // world for r in range(1, world)), 64]
    own = [tensor[start[rank] : start[rank + 1]] for tensor in everything]

    loss = step(DistributedDataParallel(model), NegClipLoss(), own)
    print(f"rank {rank} of {world}: {len(own[0])} samples, loss {loss:.6f}\n", end="", flush=True)
    dist.barrier()
    if rank == 0:
        expected = step(alone, NegClipLoss(exchange="none"), everything)
        pairs = zip(model.parameters(), alone.parameters(), strict=True)
        difference = max((one.grad - other.grad).abs().max().item() for one, other in pairs)
        print(f"one process: 64 samples, loss {expected:.6f}")
        print(f"largest difference of the gradients: {difference:.1e}")

    dist.destroy_process_group()


def started(rank, world, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    worker()


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        worker()
    else:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(started, args=(2, f"{folder}/store"), nprocs=2)
