"""What differs between ranks, or fails on one, ends in an error on every rank, never in a hang."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

from slipform_kernels import ClipLoss, NegClipLoss, two_way_cross_entropy
from support.ranks import Failed, run_ranks

TIMEOUT = 4


def call(**changed):
    """Two equal ranks' call, but for what `changed` gives for rank 1."""
    options = {"rows": torch.ones(3, 8), "cols": torch.ones(3, 8), "scale": 1.0}
    if dist.get_rank() == 1:
        options |= changed
    return two_way_cross_entropy(**{"group": dist.group.WORLD} | options)


DIFFERENT = {
    "width": ({"rows": torch.ones(3, 9), "cols": torch.ones(3, 9)}, "D, the width", "8 on rank 0"),
    "dtype": (
        {"rows": torch.ones(3, 8).bfloat16(), "cols": torch.ones(3, 8).bfloat16()},
        "dtype",
        "torch.float32 on rank 0, torch.bfloat16 on rank 1",
    ),
    "bias": ({"bias": torch.ones(3)}, "bias", "none on rank 0, one a column on rank 1"),
    "groups": (
        {"row_group": torch.arange(3), "col_group": torch.arange(3)},
        "row_group",
        "not given on rank 0, given on rank 1",
    ),
    "exchange": ({"exchange": "ring"}, "exchange", "gather on rank 0, ring on rank 1"),
    "gradients": (
        {"cols": torch.ones(3, 8).requires_grad_()},
        "gradients wanted",
        "no on rank 0, yes cols on rank 1",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_named_on_every_rank(name):
    changed, argument, text = DIFFERENT[name]
    for result in run_ranks(2, lambda: call(**changed), timeout_s=TIMEOUT):
        assert isinstance(result, Failed), result
        assert result.kind == "ValueError"
        assert result.text.startswith(argument)
        assert text in result.text


REFUSED = {
    "type": ({"rows": None}, "TypeError", "rows"),
    "range": ({"row_target": torch.tensor([0, 1, 7]), "col_target": torch.arange(3)}, "ValueError",
              "row_target"),
    "mode": ({"exchange": "all"}, "ValueError", "exchange"),
    "backend": ({"backend": "reference"}, "RuntimeError", "backend"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_that_one_rank_refuses(name):
    changed, kind, argument = REFUSED[name]
    other, own = run_ranks(2, lambda: call(**changed), timeout_s=TIMEOUT)
    assert own.kind == kind
    assert own.text.startswith(argument)
    assert other.kind == "RuntimeError"
    assert "rank 1 refused the arguments" in other.text


def layout_error():
    texts = torch.ones(3, 2, 8 + dist.get_rank())
    loss = NegClipLoss()
    return loss(torch.ones(3, 8), torch.ones(3, 8), 1.0, hard_text_features=texts)


def test_a_loss_that_one_rank_refuses():
    other, own = run_ranks(2, layout_error, timeout_s=TIMEOUT)
    assert own.text.startswith("hard_text_features")
    assert "rank 1 refused the arguments" in other.text


def leave(moment: str, exchange: str, how: str):
    """Rank 1 dies, or leaves the others waiting, at a moment of the step."""

    def gone():
        if dist.get_rank() != 1:
            return
        if how == "die":
            os._exit(1)
        time.sleep(3 * TIMEOUT)
        os._exit(1)

    features = torch.randn(4, 8).requires_grad_()
    loss = ClipLoss(True, True, rank=dist.get_rank(), world_size=3, exchange=exchange)
    if moment == "forward":
        gone()
    value = loss(features, features, torch.tensor(3.0))
    if moment == "backward":
        gone()
    value.backward()


@pytest.mark.parametrize("exchange", ["gather", "ring"])
@pytest.mark.parametrize("moment", ["forward", "backward"])
@pytest.mark.parametrize("how", ["die", "wait"])
def test_a_rank_that_leaves(how, moment, exchange):
    start = time.monotonic()
    results = run_ranks(3, leave, moment, exchange, how, timeout_s=TIMEOUT)
    assert time.monotonic() - start < 6 * TIMEOUT
    for rank in (0, 2):
        result = results[rank]
        assert isinstance(result, Failed), result
        assert result.kind == "RuntimeError"
        assert "between ranks failed: a rank has died, left the loss out, or passed" in result.text


def not_initialised():
    dist.destroy_process_group()
    return ClipLoss(True, True, rank=0, world_size=2)(torch.ones(2, 4), torch.ones(2, 4), 1.0)


def test_a_world_size_without_a_process_group():
    for result in run_ranks(1, not_initialised):
        assert result.text.startswith("world_size: got rank 0 of 2")
        assert "init_process_group was not called" in result.text
