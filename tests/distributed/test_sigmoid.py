"""The sigmoid loss over several ranks: one process on all samples, and open_clip on each rank."""

from __future__ import annotations

import itertools

import open_clip.loss
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel

from slipform_kernels import SigLipLoss
from slipform_kernels.sigmoid import sigmoid_cross_entropy
from support.ranks import Failed, run_ranks, succeeded

COUNTS = [(4, 4), (7, 2), (5, 3, 9, 1)]
NAMES = ("rows", "cols", "scale", "bias")
BARS = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 4e-3}


def operands(counts, dtype, *, full):
    """Every rank's operands; `full`: twice as many columns as rows, targets, a bias a column."""
    gen = torch.Generator().manual_seed(len(counts))

    def normal(*shape):
        return torch.randn(*shape, generator=gen, dtype=torch.float64)

    wide = torch.promote_types(dtype, torch.float32)
    ranks = []
    for R in counts:
        C = 2 * R if full else R
        options = {
            "rows": normalize(normal(R, 24), dim=1).to(dtype),
            "cols": normalize(normal(C, 24), dim=1).to(dtype),
            "scale": torch.tensor(10.0).to(wide),
            "bias": (normal(C) - 3 if full else torch.tensor(-3.0)).to(wide),
            "g": (0.1 + normal(R) ** 2).to(wide),
        }
        if full:
            options["row_target"] = torch.randint(-1, C, (R,), generator=gen)
        ranks.append(options)
    return ranks


def differentiated(options, reduction, upstream, **more):
    """Loss and gradients; a sum's upstream gradient is `upstream`, that of losses is g."""
    options = dict(options)
    g = options.pop("g")
    for name in NAMES:
        options[name] = options[name].clone().requires_grad_()
    losses = sigmoid_cross_entropy(**options, reduction=reduction, **more)
    losses.backward(losses.new_tensor(upstream) if reduction == "sum" else g)
    return {"losses": losses.detach()} | {name: options[name].grad for name in NAMES}


def on_rank(ranks, reduction, upstream, exchange):
    rank = dist.get_rank()
    return differentiated(
        ranks[rank], reduction, upstream[rank], group=dist.group.WORLD, exchange=exchange
    )


def together(ranks, upstream):
    """All ranks' operands as those of one process in fp64, with `upstream` for every rank's g."""
    starts = [0, *itertools.accumulate(len(r["cols"]) for r in ranks)]
    whole = {}
    for name in ranks[0]:
        parts = [r[name] for r in ranks]
        if name == "row_target":
            parts = [torch.where(p >= 0, p + s, -1) for p, s in zip(parts, starts, strict=False)]
        if name == "g" and upstream is not None:
            parts = [torch.full_like(p, u) for p, u in zip(parts, upstream, strict=True)]
        whole[name] = parts[0] if parts[0].ndim == 0 else torch.cat(parts)
        if whole[name].is_floating_point():
            whole[name] = whole[name].double()
    return whole


def check(counts, dtype, full, reduction, upstream, exchange):
    ranks = operands(counts, dtype, full=full)
    got = succeeded(run_ranks(len(counts), on_rank, ranks, reduction, upstream, exchange))
    whole = together(ranks, upstream if reduction == "sum" else None)
    want = differentiated(whole, "none", None, backend="reference")
    if reduction == "sum":
        want["losses"] = torch.stack([part.sum() for part in want["losses"].split(counts)])
    for name, expected in want.items():
        parts = [result[name].double() for result in got]
        if name == "losses" and reduction == "sum":
            found = torch.stack(parts)
        else:
            found = sum(parts) if expected.ndim == 0 else torch.cat(parts)
        bar = min(BARS[dtype], 2e-6) if name == "losses" else BARS[dtype]
        error = float((found - expected).norm() / expected.norm())
        assert error <= bar, (name, error)


@pytest.mark.parametrize("exchange", ["gather", "ring"])
@pytest.mark.parametrize("dtype", BARS, ids=str)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_equals_one_process(reduction, counts, full, dtype, exchange):
    check(counts, dtype, full, reduction, (0.7,) * len(counts), exchange)


@pytest.mark.parametrize("exchange", ["gather", "ring"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_a_sum_whose_upstream_gradient_differs_between_ranks(counts, dtype, exchange):
    upstream = (0.5, -2.0, 3.0, 0.0)[: len(counts)]
    check(counts, dtype, True, "sum", upstream, exchange)


class TwoTowers(nn.Module):
    """Stands for a SigLIP: two encoders, a logit scale and a logit bias."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = nn.Linear(12, 16), nn.Linear(10, 16)
        self.logit_scale = nn.Parameter(torch.tensor(2.3))
        self.logit_bias = nn.Parameter(torch.tensor(-4.0))

    def forward(self, images: torch.Tensor, texts: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "image_features": normalize(self.image(images), dim=-1),
            "text_features": normalize(self.text(texts), dim=-1),
            "logit_scale": self.logit_scale.exp(),
            "logit_bias": self.logit_bias,
        }


def batch_of(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(n, 12, generator=gen), torch.randn(n, 10, generator=gen)


def step(model: nn.Module, loss: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> dict:
    value = loss(**model(*batch))
    value.backward()
    grads = {name.removeprefix("module."): p.grad.clone() for name, p in model.named_parameters()}
    return {"value": value.detach()} | grads


def ddp_step(family: type, counts: tuple[int, ...], options: dict) -> dict:
    rank = dist.get_rank()
    loss = family(rank=rank, world_size=len(counts), **options)
    return step(DistributedDataParallel(TwoTowers()), loss, batch_of(counts[rank], rank))


def assert_close(got: dict, want: dict, bar: float) -> None:
    for name in want:
        error = float((got[name] - want[name]).norm() / want[name].norm())
        assert error <= bar, (name, error)


@pytest.mark.parametrize("exchange", ["gather", "ring"])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_gradients_after_ddp_equal_one_process(counts, exchange):
    parts = [batch_of(n, rank) for rank, n in enumerate(counts)]
    want = step(TwoTowers(), SigLipLoss(), tuple(torch.cat(p) for p in zip(*parts, strict=True)))
    results = succeeded(
        run_ranks(len(counts), ddp_step, SigLipLoss, counts, {"exchange": exchange})
    )
    value = want.pop("value")
    for got in results:
        assert_close(got, want, 2e-6)
    weights = torch.tensor(counts) / sum(counts)
    torch.testing.assert_close((weights * torch.stack([r["value"] for r in results])).sum(), value)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("dist_impl", [None, "bidir", "shift", "reduce", "gather"])
def test_every_dist_impl_gives_open_clips_numbers(dist_impl, size):
    """The value on each rank, and gradients after DDP."""
    options = {"dist_impl": dist_impl}
    outcomes = [
        succeeded(run_ranks(size, ddp_step, family, (6,) * size, options))
        for family in (SigLipLoss, open_clip.loss.SigLipLoss)
    ]
    for ours, theirs in zip(*outcomes, strict=True):
        assert_close(ours, theirs, 2e-6)


def test_dist_impl_chooses_the_exchange_unless_it_is_named():
    exchanges = {name: SigLipLoss(dist_impl=name).exchange for name in (None, "bidir", "shift")}
    assert exchanges == {None: "gather", "bidir": "ring", "shift": "ring"}
    assert SigLipLoss(dist_impl="reduce").exchange == "gather"
    assert SigLipLoss(dist_impl="bidir", exchange="gather").exchange == "gather"


def compiled_step() -> list[dict]:
    rank = dist.get_rank()
    batch, loss = batch_of(5, rank), SigLipLoss(rank=rank, world_size=2)
    plain, model = TwoTowers(), TwoTowers()
    compiled = torch.compile(lambda *b: loss(**model(*b)), backend="aot_eager")
    compiled(*batch).backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    return [grads, step(plain, loss, batch)]


def test_a_compiled_step_equals_eager():
    for compiled, eager in succeeded(run_ranks(2, compiled_step)):
        eager.pop("value")
        assert_close(compiled, eager, 1e-6)


def without_gradients() -> torch.Tensor:
    options = operands((3, 5), torch.float32, full=False)[dist.get_rank()]
    options.pop("g")
    with torch.no_grad():
        return sigmoid_cross_entropy(**options, reduction="sum", group=dist.group.WORLD)


def test_without_gradients():
    ranks = operands((3, 5), torch.float32, full=False)
    want = differentiated(together(ranks, (1, 1)), "none", None)["losses"]
    got = torch.stack(succeeded(run_ranks(2, without_gradients)))
    torch.testing.assert_close(got.double(), torch.stack([want[:3].sum(), want[3:].sum()]))


def call(changed: dict) -> torch.Tensor:
    options = {"rows": torch.ones(3, 8), "cols": torch.ones(3, 8), "scale": 1.0}
    if dist.get_rank() == 1:
        options |= changed
    return sigmoid_cross_entropy(**options, group=dist.group.WORLD)


def test_what_differs_is_named_on_every_rank():
    for result in run_ranks(2, call, {"reduction": "sum"}, timeout_s=4):
        assert isinstance(result, Failed), result
        assert result.text.startswith(
            "loss: got sigmoid_cross_entropy on rank 0, sum of sigmoid_cross_entropy on rank 1"
        )


REFUSED = {
    "shape": ({"cols": torch.ones(3, 9)}, "cols: got shape [3, 9]"),
    "range": ({"row_target": torch.tensor([0, 1, 3])}, "row_target: got values from 0 to 3"),
    "backend": ({"backend": "reference"}, "backend: got 'reference'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_that_one_rank_refuses(name):
    changed, text = REFUSED[name]
    other, own = run_ranks(2, call, changed, timeout_s=4)
    assert own.text.startswith(text)
    assert "rank 1 refused the arguments" in other.text
