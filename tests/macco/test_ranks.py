"""Over two gloo processes, DDP's averaged gradients are those of one process on all samples."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

pytest.importorskip("open_clip_train")

from slipform_kernels import CementLoss, ClipLoss
from slipform_training.finetune import Batch, GradientCache
from slipform_training.finetune.objective import loss_inputs, terms_of
from slipform_training.macco import Macco, MaccoConfig, MaccoLoss
from support.macco import tiny_batch, tiny_clip
from support.ranks import run_ranks, succeeded


def batch_of(kind: str, rank: int) -> Batch:
    """Rank 1 has other numbers of masked tokens, and in most kinds masks missing."""
    count = 4 + 3 * rank if kind == "unequal batches" else 4
    batch = tiny_batch(count, seed=rank, hard=2)
    if rank == 1 and kind == "no masks on one":
        nothing = torch.zeros_like(batch.word_mask), torch.zeros_like(batch.patch_mask)
        return replace(batch, word_mask=nothing[0], patch_mask=nothing[1])
    if kind == "no masks":
        nothing = torch.zeros_like(batch.word_mask), torch.zeros_like(batch.patch_mask)
        return replace(batch, word_mask=nothing[0], patch_mask=nothing[1])
    batch.word_mask[rank + 1 :] = False  # one sample with words on rank 0, two on rank 1
    batch.patch_mask[3 - rank] = False
    return batch


def joined(batches: list[Batch]) -> Batch:
    names = [one.name for one in fields(Batch) if getattr(batches[0], one.name) is not None]
    return Batch(**{name: torch.cat([getattr(one, name) for one in batches]) for name in names})


def base_loss(name: str, exchange: str):
    if name == "cement":
        return CementLoss(margin=0.2, exchange=exchange)
    several = dist.is_initialized() and dist.get_world_size() > 1
    ranks = {"rank": dist.get_rank(), "world_size": 2} if several else {}
    return ClipLoss(gather_with_grad=True, exchange=exchange, **ranks)


def grads(batch: Batch, base: str, exchange: str, chunk_size: int | None):
    torch.set_num_threads(1)
    config = MaccoConfig()
    model = Macco(tiny_clip(), config)
    loss = MaccoLoss(base_loss(base, exchange), config)
    encoder = DistributedDataParallel(model) if dist.is_initialized() else model
    towers, others = loss_inputs(loss, batch)
    values = {}

    def loss_of(**features):
        terms = terms_of(loss, {**features, **others})
        values.update({name: term.item() for name, term in terms.items()})
        return sum(terms.values())

    if chunk_size is None:
        loss_of(**encoder(**towers)).backward()
    else:
        GradientCache(encoder, loss_of, chunk_size=chunk_size).backward(towers)
    return {name: p.grad.clone() for name, p in model.named_parameters()}, values


def on_a_rank(kind: str, base: str, exchange: str, chunk_size: int | None):
    return grads(batch_of(kind, dist.get_rank()), base, exchange, chunk_size)


@pytest.mark.parametrize(
    ("kind", "base", "exchange", "chunk_size"),
    [
        ("unequal masks", "clip", "gather", None),
        ("unequal masks", "cement", "ring", None),
        ("no masks on one", "clip", "gather", None),
        ("no masks on one", "cement", "gather", 3),
        ("no masks", "clip", "gather", None),
        ("unequal batches", "cement", "gather", None),
        ("unequal masks", "clip", "gather", 1),
    ],
)
def test_two_ranks_give_the_gradients_of_one_process(kind, base, exchange, chunk_size):
    both = [batch_of(kind, rank) for rank in range(2)]
    want, terms = grads(joined(both), base, "gather", None)
    for got, values in succeeded(run_ranks(2, on_a_rank, kind, base, exchange, chunk_size)):
        assert values == pytest.approx(terms, rel=1e-5, abs=1e-6)
        for name, grad in want.items():
            assert (got[name] - grad).norm() <= 2e-5 * grad.norm() + 1e-12, name
