"""Losses under DDP: parameter gradients are those of one process on all ranks' samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import open_clip.loss
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel

from slipform_kernels import CementLoss, ClipLoss, NegClipLoss, SigLipLoss, TripletClipLoss
from support.ranks import run_ranks, succeeded

COUNTS = [(4, 4), (5, 3, 9, 1)]
HARD = 2


class TwoTowers(nn.Module):
    """Stands for a CLIP: two encoders and a logit scale."""

    def __init__(self, scale_shape: tuple[int, ...] = ()):
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = nn.Linear(12, 16), nn.Linear(10, 16)
        self.logit_scale = nn.Parameter(torch.full(scale_shape, 2.5))

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        out = {
            name: normalize(self.image(batch[name]), dim=-1)
            for name in ("image_features", "hard_image_features")
            if name in batch
        }
        for name in ("text_features", "hard_text_features"):
            if name in batch:
                out[name] = normalize(self.text(batch[name]), dim=-1)
        return out | {"logit_scale": self.logit_scale.exp()}


def batch_of(n: int, seed: int) -> dict[str, torch.Tensor]:
    gen = torch.Generator().manual_seed(seed)
    return {
        "image_features": torch.randn(n, 12, generator=gen),
        "text_features": torch.randn(n, 10, generator=gen),
        "hard_image_features": torch.randn(n, 12, generator=gen),
        "hard_text_features": torch.randn(n, HARD, 10, generator=gen),
        "concreteness": 1 + 4 * torch.rand(n, HARD, generator=gen),
        "hard_mask": torch.rand(n, HARD, generator=gen) < 0.7,
    }


# name: (the loss, given its options; what it takes of a batch; whether K = 1)
LOSSES: dict[str, tuple[Callable, tuple[str, ...], bool]] = {
    "negclip": (NegClipLoss, ("hard_text_features",), False),
    "negclip masked": (NegClipLoss, ("hard_text_features", "hard_mask"), False),
    "cement captions": (
        lambda **o: CementLoss(margin=0.2, **o),
        ("hard_text_features", "concreteness", "hard_mask"),
        False,
    ),
    "cement paired": (
        lambda **o: CementLoss(margin=0.2, layout="paired", **o),
        ("hard_text_features", "concreteness", "hard_image_features"),
        True,
    ),
    "triplet": (TripletClipLoss, ("hard_text_features", "hard_image_features"), True),
}


def part_of(batch: dict[str, torch.Tensor], names: tuple[str, ...], single: bool) -> dict:
    part = {name: batch[name] for name in ("image_features", "text_features", *names)}
    if single:
        for name in ("hard_text_features", "concreteness", "hard_mask"):
            if name in part:
                part[name] = part[name][:, 0]
    return part


def step(model: nn.Module, loss: nn.Module, batch: dict[str, torch.Tensor]) -> dict:
    """The loss and the gradients of all parameters, as one vector."""
    encoded = model({k: v for k, v in batch.items() if k.endswith("features")})
    extra = {k: v for k, v in batch.items() if not k.endswith("features")}
    value = loss(**encoded, **extra)
    value.backward()
    grads = {name.removeprefix("module."): p.grad.clone() for name, p in model.named_parameters()}
    return {"value": value.detach()} | grads


def ddp_step(make: Callable, counts: tuple[int, ...], names: tuple[str, ...], single: bool) -> dict:
    rank = dist.get_rank()
    loss = make(rank, len(counts))
    model = DistributedDataParallel(TwoTowers())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return step(model, loss, part_of(batch_of(counts[rank], rank), names, single))


def whole_batch(counts: tuple[int, ...], names: tuple[str, ...], single: bool) -> dict:
    parts = [part_of(batch_of(n, rank), names, single) for rank, n in enumerate(counts)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def assert_close(got: dict, want: dict, bar: float, skip: tuple[str, ...] = ()) -> None:
    for name in want:
        if name not in skip:
            error = float((got[name] - want[name]).norm() / want[name].norm())
            assert error <= bar, (name, error)


@pytest.mark.parametrize("exchange", ["gather", "ring"])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_equal_one_process(name, counts, exchange):
    make, names, single = LOSSES[name]
    want = step(TwoTowers(), make(), whole_batch(counts, names, single))
    results = run_ranks(
        len(counts), ddp_step, lambda rank, size: make(exchange=exchange), counts, names, single
    )
    for got in succeeded(results):
        assert_close(got, want, 1e-6)


@pytest.mark.parametrize("exchange", ["gather", "ring"])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("local_loss", [False, True])
def test_clip_equals_one_process(local_loss, counts, exchange):
    want = step(TwoTowers(), ClipLoss(), whole_batch(counts, (), False))

    def make(rank: int, size: int) -> nn.Module:
        return ClipLoss(local_loss, True, rank=rank, world_size=size, exchange=exchange)

    results = succeeded(run_ranks(len(counts), ddp_step, make, counts, (), False))
    for got in results:
        assert_close(got, want, 1e-6, skip=("value",) if local_loss else ())
    if local_loss:
        values = torch.stack([got["value"] for got in results])
        weights = torch.tensor(counts) / sum(counts)
        torch.testing.assert_close((values * weights).sum(), want["value"])


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("local_loss", "gather_with_grad"), [(True, True), (False, True), (False, False)]
)
def test_flags_mean_what_they_mean_in_open_clip(local_loss, gather_with_grad, size):
    """Value on each rank and gradients after DDP, beside open_clip's own loss on equal ranks."""
    outcomes = []
    for family in (ClipLoss, open_clip.loss.ClipLoss):

        def make(rank: int, size: int, family: type = family) -> nn.Module:
            return family(local_loss, gather_with_grad, rank=rank, world_size=size)

        outcomes.append(succeeded(run_ranks(size, ddp_step, make, (6,) * size, (), False)))
    for ours, theirs in zip(*outcomes, strict=True):
        assert_close(ours, theirs, 1e-6)


def warned(counts: tuple[int, ...]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        features = torch.eye(4)
        loss = ClipLoss(rank=dist.get_rank(), world_size=2)
        for _ in range(2):
            loss(features, features, torch.tensor(1.0))
    return [str(w.message) for w in caught if "gather_with_grad" in str(w.message)]


def test_open_clips_default_warns_once():
    for messages in succeeded(run_ranks(2, warned, (4, 4))):
        assert len(messages) == 1
        assert "1/2" in messages[0]


def alone() -> dict:
    batch = part_of(batch_of(3 + dist.get_rank(), dist.get_rank()), ("hard_text_features",), False)
    return step(TwoTowers(), NegClipLoss(exchange="none"), batch)


def test_exchange_none_is_one_process():
    for rank, got in enumerate(succeeded(run_ranks(2, alone))):
        batch = part_of(batch_of(3 + rank, rank), ("hard_text_features",), False)
        assert_close(got, step(TwoTowers(), NegClipLoss(), batch), 0.0)


def one_of_many(make: Callable) -> list[str]:
    loss = make()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            features = torch.eye(4)
            loss(features, features, torch.tensor(1.0), torch.tensor(0.0))
    return [str(w.message) for w in caught if "world_size" in str(w.message)]


@pytest.mark.parametrize("family", [ClipLoss, SigLipLoss])
def test_a_world_size_of_one_among_many_ranks_warns_once(family):
    for messages in succeeded(run_ranks(2, one_of_many, family)):
        assert len(messages) == 1
        assert "got 1 where torch.distributed has 2 ranks" in messages[0]
    for messages in succeeded(run_ranks(2, one_of_many, lambda: family(exchange="none"))):
        assert messages == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: ClipLoss(True, True),
        lambda: ClipLoss(gather_with_grad=True),
        lambda: ClipLoss(exchange="ring"),
        lambda: ClipLoss(group=dist.group.WORLD),
        lambda: SigLipLoss(dist_impl="bidir"),
    ],
)
def test_a_world_size_of_one_with_options_of_many_is_an_error(make):
    for result in run_ranks(2, one_of_many, make):
        assert result.kind == "ValueError"
        assert result.text.startswith("world_size: got 1 where torch.distributed has 2 ranks")


def forgotten_rank() -> None:
    features = torch.eye(4)
    ClipLoss(True, True, world_size=2)(features, features, torch.tensor(1.0))


def test_a_forgotten_rank_is_told_at_once():
    right, wrong = run_ranks(2, forgotten_rank)
    assert wrong.text.startswith("world_size: got rank 0 of 2; expected")
    assert "rank 1 refused the arguments" in right.text


def outside() -> None:
    group = dist.new_group([0])
    NegClipLoss(group=group)(
        torch.eye(4), torch.eye(4), torch.tensor(1.0), hard_text_features=torch.eye(4)
    )


def test_a_group_without_this_rank_is_an_error():
    inside, result = run_ranks(2, outside)
    assert inside is None
    assert result.text.startswith("group: got one without this process, rank 1")
