"""What one step costs a rank: products, and bytes sent, as distributed.py derives them."""

from __future__ import annotations

import open_clip.loss
import pytest
import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from slipform_kernels import ClipLoss, exchange
from support.ranks import run_ranks, succeeded

N, D = 16, 32


def features(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    gen = torch.Generator().manual_seed(dist.get_rank())
    made = (torch.randn(N, D, generator=gen).to(dtype).requires_grad_() for _ in range(2))
    return next(made), next(made)


def _added_product(total: tuple, a: tuple, b: tuple, **_: object) -> int:
    """Operations of total += a b, which the counter knows out of place only."""
    return 2 * a[0] * a[1] * b[1]


def flops(ours: bool, mode: str) -> tuple[int, int]:
    """Of the products in forward, and in forward and backward."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if ours:
        loss = ClipLoss(True, True, rank=rank, world_size=size, exchange=mode, backend="torch")
    else:
        loss = open_clip.loss.ClipLoss(True, True, rank=rank, world_size=size)
    image, text = features()
    in_place = {torch.ops.aten.addmm_: _added_product}
    with FlopCounterMode(display=False, custom_mapping=in_place) as forward:
        value = loss(image, text, torch.tensor(10.0))
    with FlopCounterMode(display=False, custom_mapping=in_place) as backward:
        value.backward()
    return forward.get_total_flops(), backward.get_total_flops()


@pytest.mark.parametrize("mode", ["gather", "ring"])
@pytest.mark.parametrize("size", [2, 4])
def test_one_similarity_product_where_open_clip_takes_two(size, mode):
    product = 2 * N * (size * N) * D
    for forward, backward in succeeded(run_ranks(size, flops, True, mode)):
        assert forward == product
        assert backward == 3 * product  # the matrix again, dX and dY
    for forward, backward in succeeded(run_ranks(size, flops, False, mode)):
        assert forward == 2 * product
        assert backward == 4 * product


class Sent:
    """Bytes that this rank sends, by the algorithms that distributed.py names."""

    def __init__(self) -> None:
        self.bytes = 0
        self.size = dist.get_world_size()

    def all_gather(self, out, value, **options):
        self.bytes += (self.size - 1) * value.nbytes
        return GATHER(out, value, **options)

    def reduce_scatter(self, out, value, **options):
        self.bytes += value.nbytes - out.nbytes
        return SCATTER(out, value, **options)

    def all_to_all(self, out, value, out_splits, in_splits, **options):
        own = in_splits[dist.get_rank()]
        self.bytes += value.nbytes - own * value.element_size()
        return ALL_TO_ALL(out, value, out_splits, in_splits, **options)

    def batch(self, operations):
        sends = [op for op in operations if op.op is dist.isend]
        self.bytes += sum(op.tensor.nbytes for op in sends)
        return BATCH(operations)


GATHER, SCATTER = exchange.all_gather, exchange._reduce_scatter
ALL_TO_ALL, BATCH = dist.all_to_all_single, dist.batch_isend_irecv


def sent(mode: str, dtype: torch.dtype) -> tuple[int, int]:
    counter = Sent()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "all_gather", counter.all_gather)
        patch.setattr(exchange, "_reduce_scatter", counter.reduce_scatter)
        patch.setattr(dist, "all_to_all_single", counter.all_to_all)
        patch.setattr(dist, "batch_isend_irecv", counter.batch)
        rank, size = dist.get_rank(), counter.size
        loss = ClipLoss(True, True, rank=rank, world_size=size, exchange=mode)
        image, text = features(dtype)
        value = loss(image, text, torch.tensor(10.0))
        forward, counter.bytes = counter.bytes, 0
        value.backward()
        return forward, counter.bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["gather", "ring"])
@pytest.mark.parametrize("size", [2, 4])
def test_bytes_are_those_of_the_docstring(size, mode, dtype):
    n, C, b = N, size * N, dtype.itemsize
    forward = (size - 1) * n * D * b + 4 * (C - n)
    if mode == "gather":
        backward = 8 * (size - 1) * n + 4 * (C - n) * D
    else:
        backward = 8 * (size - 1) * n + (size - 1) * n * D * b + 4 * C * D
    for got in succeeded(run_ranks(size, sent, mode, dtype)):
        assert got == (forward, backward)
