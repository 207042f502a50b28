"""The primitive over several ranks equals the primitive of one process on all rows and columns."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from slipform_kernels import two_way_cross_entropy
from support.ranks import run_ranks, succeeded

NAMES = ("rows", "cols", "scale", "bias", "margin")


def operands(counts, dtype, *, full):
    """One rank's operands for every rank; `full`: with every option."""
    gen = torch.Generator().manual_seed(len(counts))

    def normal(*shape):
        return torch.nn.functional.normalize(
            torch.randn(*shape, generator=gen, dtype=torch.float64), dim=-1
        ).to(dtype)

    wide = torch.promote_types(dtype, torch.float32)
    ranks = []
    for n in counts:
        R, C = n, 2 * n if full else n
        options = {
            "rows": normal(R, 24),
            "cols": normal(C, 24),
            "scale": torch.tensor(20.0).to(wide),
        }
        if full:
            target = torch.randperm(C, generator=gen)[:R]
            target[0] = -1
            col_target = torch.full((C,), -1)
            col_target[target[1:]] = torch.arange(1, R)
            hard = torch.randint(-1, C, (R, 2), generator=gen)
            options |= {
                "row_target": target,
                "col_target": col_target,
                "hard_cols": hard,
                "margin": torch.rand(R, 2, generator=gen, dtype=torch.float64).to(wide) / 10,
                "bias": torch.randn(C, generator=gen, dtype=torch.float64).to(wide),
                "row_group": torch.randint(0, 12, (R,), generator=gen),
                "col_group": torch.randint(0, 12, (C,), generator=gen),
            }
        options["g"] = torch.rand(R, generator=gen, dtype=torch.float64).to(wide)
        options["h"] = torch.rand(C, generator=gen, dtype=torch.float64).to(wide)
        ranks.append(options)
    return ranks


def differentiated(options, **more):
    """Losses and gradients of sum g row_loss + h col_loss."""
    options = dict(options)
    g, h = options.pop("g"), options.pop("h")
    for name in NAMES:
        if name in options:
            options[name] = options[name].clone().requires_grad_()
    row_loss, col_loss = two_way_cross_entropy(**options, **more)
    ((g * row_loss).sum() + (h * col_loss).sum()).backward()
    grads = {name: options[name].grad for name in NAMES if name in options}
    return {"row_loss": row_loss.detach(), "col_loss": col_loss.detach()} | grads


def on_rank(ranks, exchange):
    return differentiated(ranks[dist.get_rank()], group=dist.group.WORLD, exchange=exchange)


def together(ranks):
    """All ranks' operands as those of one process in fp64; indices counted on."""
    starts = {
        name: [0, *itertools.accumulate(len(r[side]) for r in ranks)]
        for name, side in (("row_target", "cols"), ("hard_cols", "cols"), ("col_target", "rows"))
    }
    whole = {}
    for name in ranks[0]:
        parts = [r[name] for r in ranks]
        if name in starts:
            shifts = zip(parts, starts[name], strict=False)
            parts = [torch.where(part >= 0, part + start, -1) for part, start in shifts]
        whole[name] = parts[0] if parts[0].ndim == 0 else torch.cat(parts)
        if whole[name].is_floating_point():
            whole[name] = whole[name].double()
    return whole


BARS = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 4e-3}


@pytest.mark.parametrize("exchange", ["gather", "ring"])
@pytest.mark.parametrize("dtype", BARS, ids=str)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("counts", [(4, 4), (5, 3, 9, 1), (6, 6, 6), (7,)], ids=str)
def test_equals_one_process(counts, full, dtype, exchange):
    ranks = operands(counts, dtype, full=full)
    got = succeeded(run_ranks(len(counts), on_rank, ranks, exchange))
    want = differentiated(together(ranks), backend="reference")
    for name, expected in want.items():
        parts = [result[name].double() for result in got]
        found = torch.stack(parts).sum() if name == "scale" else torch.cat(parts)
        bar = min(BARS[dtype], 2e-6) if "loss" in name and dtype != torch.float64 else BARS[dtype]
        error = float((found - expected).norm() / expected.norm())
        assert error <= bar, (name, error)


@pytest.mark.parametrize("exchange", ["gather", "ring"])
def test_fp16_units_are_those_of_all_ranks(exchange):
    """One rank's rows weigh a thousand times what all else does: its own unit would differ."""
    ranks = operands((5, 6), torch.float16, full=True)
    ranks[0]["g"] = ranks[0]["g"] * 1000
    got = succeeded(run_ranks(2, on_rank, ranks, exchange))
    want = differentiated(together(ranks), backend="reference")
    for name in ("rows", "cols"):
        found = torch.cat([result[name].double() for result in got])
        assert float((found - want[name]).norm() / want[name].norm()) <= BARS[torch.float16]


class Largest(TorchDispatchMode):
    """Bytes of the largest storage that any operation made."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return result


def largest_storage(exchange):
    n, D = 32, 64
    leaves = [torch.randn(n, D).requires_grad_() for _ in range(2)]
    with Largest() as largest:
        row, col = two_way_cross_entropy(*leaves, 1.0, group=dist.group.WORLD, exchange=exchange)
    losses = row.sum() + col.sum()
    torch.autograd.set_multithreading_enabled(False)
    with largest:
        losses.backward()
    return largest.bytes / (4 * n * D)


def test_the_ring_holds_one_ranks_columns_at_a_time():
    """In multiples of one rank's fp32 columns: gathering makes tensors of all four ranks'."""
    assert all(size == 4 for size in succeeded(run_ranks(4, largest_storage, "gather")))
    assert all(size == 1 for size in succeeded(run_ranks(4, largest_storage, "ring")))


def kept_after_backward(exchange):
    """Bytes of features that the loss holds once its gradients are there."""
    leaves = [torch.randn(4, 8).requires_grad_() for _ in range(2)]
    row, col = two_way_cross_entropy(*leaves, 1.0, group=dist.group.WORLD, exchange=exchange)
    node = row.grad_fn
    before = node.exchange.kept
    (row.sum() + col.sum()).backward(retain_graph=True)
    first = [leaf.grad.clone() for leaf in leaves]
    after = node.exchange.kept
    (row.sum() + col.sum()).backward()
    twice = [float((leaf.grad - 2 * grad).norm()) for leaf, grad in zip(leaves, first, strict=True)]
    return before is not None, after is not None, max(twice)


def test_gathered_columns_are_let_go_after_backward():
    for before, after, difference in succeeded(run_ranks(2, kept_after_backward, "gather")):
        assert (before, after) == (True, False)
        assert difference < 1e-6
