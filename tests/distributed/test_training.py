"""Losses over ranks inside what training wraps around them."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from slipform_kernels import NegClipLoss
from slipform_training.finetune import GradientCache
from support.ranks import run_ranks, succeeded

COUNTS = (4, 7)


class Towers(nn.Module):
    """Two encoders; `scale_shape` [1] is what FSDP2 needs of every parameter."""

    def __init__(self, scale_shape: tuple[int, ...] = (), *, dropout: float = 0.0):
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = (
            nn.Sequential(nn.Linear(n, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, 16))
            for n in (12, 10)
        )
        self.logit_scale = nn.Parameter(torch.full(scale_shape, 2.5))
        self.checkpointing = False

    def encode(self, tower: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        if self.checkpointing:
            return normalize(checkpoint(tower, inputs, use_reentrant=False), dim=-1)
        return normalize(tower(inputs), dim=-1)

    def forward(self, image: torch.Tensor, text: torch.Tensor, hard: torch.Tensor) -> dict:
        return {
            "image_features": self.encode(self.image, image),
            "text_features": self.encode(self.text, text),
            "hard_text_features": self.encode(self.text, hard),
            "logit_scale": self.logit_scale.exp(),
        }


def batch_of(n: int, seed: int) -> dict[str, torch.Tensor]:
    gen = torch.Generator().manual_seed(seed)
    return {
        "image": torch.randn(n, 12, generator=gen),
        "text": torch.randn(n, 10, generator=gen),
        "hard": torch.randn(n, 2, 10, generator=gen),
    }


def whole_batch(seed: int = 0) -> dict[str, torch.Tensor]:
    parts = [batch_of(n, seed + rank) for rank, n in enumerate(COUNTS)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def own_batch(seed: int = 0) -> dict[str, torch.Tensor]:
    return batch_of(COUNTS[dist.get_rank()], seed + dist.get_rank())


def grads_of(model: nn.Module) -> dict[str, torch.Tensor]:
    grads = {}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        grads[name.removeprefix("_orig_mod.").removeprefix("module.")] = (
            grad.full_tensor() if hasattr(grad, "full_tensor") else grad.clone()
        )
    return grads


def assert_close(got: dict, want: dict, bar: float = 1e-6) -> None:
    for name in want:
        found = got[name].reshape(want[name].shape)
        error = float((found - want[name]).norm() / want[name].norm())
        assert error <= bar, (name, error)


def expected(scale_shape: tuple[int, ...] = (), **options) -> dict[str, torch.Tensor]:
    model = Towers(scale_shape)
    with options.get("autocast", contextlib.nullcontext)():
        NegClipLoss()(**model(**whole_batch())).backward()
    return grads_of(model)


def bf16() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def ddp(kind: str) -> dict[str, torch.Tensor]:
    towers = Towers()
    towers.checkpointing = kind == "checkpointing"
    model: nn.Module = DistributedDataParallel(towers)
    if kind == "compile":
        model = torch.compile(model, backend="aot_eager")
    loss, batch = NegClipLoss(), own_batch()
    if kind == "cache":
        GradientCache(model, loss, chunk_size=3).backward(batch)
    elif kind == "cache with scaler":
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        GradientCache(model, loss, chunk_size=3).backward(batch, scaler=scaler)
        scaler.unscale_(torch.optim.SGD(model.parameters(), lr=0.0))
    elif kind == "scaler":
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        scaler.scale(loss(**model(**batch))).backward()
        scaler.unscale_(torch.optim.SGD(model.parameters(), lr=0.0))
    else:
        with bf16() if kind == "autocast" else contextlib.nullcontext():
            value = loss(**model(**batch))
        value.backward()
    return grads_of(model)


@pytest.mark.parametrize(
    "kind", ["plain", "checkpointing", "compile", "scaler", "cache", "cache with scaler"]
)
def test_ddp(kind):
    for got in succeeded(run_ranks(2, ddp, kind)):
        assert_close(got, expected())


def test_ddp_under_autocast():
    """bf16 rounds differently where rows are summed apart: to a few units of its precision."""
    for got in succeeded(run_ranks(2, ddp, "autocast")):
        assert_close(got, expected(autocast=bf16), 2e-2)


def accumulated() -> dict[str, torch.Tensor]:
    model = DistributedDataParallel(Towers())
    loss = NegClipLoss()
    with model.no_sync():
        loss(**model(**own_batch(0))).backward()
    loss(**model(**own_batch(10))).backward()
    return grads_of(model)


def test_gradient_accumulation():
    model = Towers()
    for seed in (0, 10):
        NegClipLoss()(**model(**whole_batch(seed))).backward()
    for got in succeeded(run_ranks(2, accumulated)):
        assert_close(got, grads_of(model))


class Reductions:
    """Counts the gradient reductions of DDP."""

    def __init__(self, model: DistributedDataParallel):
        self.count = 0
        model.register_comm_hook(self, Reductions.hook)

    @staticmethod
    def hook(state, bucket):  # DDP reads annotations, and not as strings
        state.count += 1
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])


def reductions(chunk_size: int) -> int:
    model = DistributedDataParallel(Towers())
    counted = Reductions(model)
    GradientCache(model, NegClipLoss(), chunk_size=chunk_size).backward(own_batch())
    return counted.count


def test_gradient_caching_reduces_once():
    one, many = succeeded(run_ranks(2, reductions, 100)), succeeded(run_ranks(2, reductions, 2))
    assert one == many
    assert one[0] >= 1


def sharded(kind: str) -> dict[str, torch.Tensor]:
    model = Towers((1,))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model.image, mesh=mesh)
    fully_shard(model, mesh=mesh)
    loss, batch = NegClipLoss(), own_batch()
    if kind == "cache":  # the same number of chunks on every rank
        GradientCache(model, loss, chunk_size=4 - 2 * (1 - dist.get_rank())).backward(batch)
    else:
        loss(**model(**batch)).backward()
    return grads_of(model)


@pytest.mark.parametrize("kind", ["plain", "cache"])
def test_fsdp2(kind):
    """Every parameter is sharded, and the logit scale has shape [1]."""
    for got in succeeded(run_ranks(2, sharded, kind)):
        assert_close(got, expected((1,)))


def sharded_reductions(chunk_size: int) -> int:
    """Reduce-scatters of FSDP2 in one cached step."""
    model = Towers((1,))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    cache = GradientCache(model, NegClipLoss(exchange="none"), chunk_size=chunk_size)
    with CommDebugMode() as counted:
        cache.backward(batch_of(6, 0))
    return sum(n for name, n in counted.get_comm_counts().items() if "reduce_scatter" in str(name))


def test_gradient_caching_reduces_shards_once():
    one, many = (succeeded(run_ranks(2, sharded_reductions, n)) for n in (6, 2))
    assert one == many
    assert one[0] >= 1


def without_model() -> None:
    GradientCache(lambda **chunk: chunk, NegClipLoss(), chunk_size=3)


def test_gradient_caching_over_ranks_wants_the_model():
    for result in run_ranks(2, without_model):
        assert result.text.startswith("model: got None")


class _Replicated(torch.autograd.Function):
    """A tensor that every rank holds: its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class _Everyones(torch.autograd.Function):
    """All ranks' values one after the other; a rank's gradient is its part."""

    @staticmethod
    def forward(ctx, value):
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, value)
        ctx.start, ctx.length = sum(map(len, parts[: dist.get_rank()])), len(value)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        return grad[ctx.start : ctx.start + ctx.length].clone()


def gradcheck(exchange: str) -> bool:
    """Both ranks move the same entry at the same time."""
    from slipform_kernels import two_way_cross_entropy

    gen = torch.Generator().manual_seed(0)
    rank = dist.get_rank()
    place = slice(0, 2) if rank == 0 else slice(2, 5)

    def tensor(*shape):
        return torch.randn(shape, generator=gen, dtype=torch.float64).requires_grad_()

    inputs = tensor(5, 3), tensor(5, 3), tensor(), tensor(5), tensor(5, 1)
    hard = torch.tensor([[1], [0], [2], [-1], [0]])[place]

    def losses(*replicated):
        rows, cols, scale, bias, margin = map(_Replicated.apply, replicated)
        own = two_way_cross_entropy(
            rows[place], cols[place], scale, bias=bias[place], hard_cols=hard,
            margin=margin[place], group=dist.group.WORLD, exchange=exchange,
        )  # fmt: skip
        return tuple(map(_Everyones.apply, own))

    return torch.autograd.gradcheck(losses, inputs, eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("exchange", ["gather", "ring"])
def test_gradcheck_over_two_ranks(exchange):
    assert succeeded(run_ranks(2, gradcheck, exchange)) == [True, True]
