"""The accuracy bar of the benchmarks: whom it fails, and what it says of a peer's abilities."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from benchmarks import accuracy, ranks
from benchmarks.peers import LOSSES
from benchmarks.peers.base import Peer, both_ways, linear, package

CPU = torch.device("cpu")


def formula(images, texts, scale):
    """CLIP's loss of N pairs, exact in fp64 and robust: softplus(rest - positive)."""
    logits = scale.double() * (images.double() @ texts.double().T)
    others = logits.masked_fill(torch.eye(len(images), dtype=torch.bool), -torch.inf)
    losses = [F.softplus(others.logsumexp(d) - logits.diag(), threshold=60) for d in (0, 1)]
    return torch.cat(losses).mean()


def peer(loss, name="fake"):
    return Peer(name, lambda rank, world_size: loss, lambda device: None, linear)


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch):
    monkeypatch.setattr(ranks, "agrees", lambda peer: "untested")


def passes(loss):
    return {
        (row["dtype"], row["problem"]): row["passes"] for row in accuracy.examine(peer(loss), CPU)
    }


def test_an_exact_loss_passes_everywhere():
    found = passes(formula)
    assert set(found) == {(d, p) for d in ("fp32", "bf16") for p in accuracy.PROBLEMS}
    assert all(found.values())


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("loss", lambda i, t, s: formula(i, t, s) * 1.0001),
        ("images", lambda i, t, s: formula(i + 0.01 * (i - i.detach()), t, s)),
        ("texts", lambda i, t, s: formula(i, t + 0.01 * (t - t.detach()), s)),
        ("scale", lambda i, t, s: formula(i, t, s + 0.01 * (s - s.detach()))),
    ],
)
def test_an_inexact_loss_fails_everywhere(name, loss):
    assert not any(passes(loss).values())


def test_a_scale_without_a_gradient_fails_and_is_called_so():
    rows = accuracy.examine(peer(lambda i, t, s: formula(i, t, s.detach())), CPU)
    assert {row["scale_gradient"] for row in rows} == {"undifferentiable"}
    assert {row["scale_gradient_error"] for row in rows} == {None}
    assert not any(row["passes"] for row in rows)
    wrong = accuracy.examine(peer(lambda i, t, s: formula(i, t, 2 * s - s.detach())), CPU)
    assert {row["scale_gradient"] for row in wrong} == {"wrong"}


def test_the_separated_problem_is_separated_and_fails_open_clip():
    images, texts = accuracy.problem("separated", torch.float64, CPU)
    logits = 100 * images @ texts.T
    others = logits.masked_fill(torch.eye(len(images), dtype=torch.bool), -torch.inf)
    gaps = logits.diag() - others.logsumexp(1)
    assert gaps.min() > 15
    assert gaps.max() < 45
    torch.testing.assert_close(images.norm(dim=1), torch.ones(len(images), dtype=torch.float64))
    rows = accuracy.examine(LOSSES["open_clip"], CPU)
    found = {(row["dtype"], row["problem"]): row["passes"] for row in rows}
    assert found["fp32", "random"]
    assert not found["fp32", "separated"]


def test_a_loss_that_raises_or_overflows_is_no_pass():
    def refuses(images, texts, scale):
        raise NotImplementedError("no bf16 here\nat all")

    rows = accuracy.examine(peer(refuses), CPU)
    assert {row["not_run"] for row in rows} == {"failed: NotImplementedError: no bf16 here"}
    assert {row["passes"] for row in rows} == {None}
    nan = accuracy.examine(peer(lambda i, t, s: formula(i, t, s) * torch.nan), CPU)
    assert {row["loss_error"] for row in nan} == {None}
    assert not any(row["passes"] for row in nan)


def test_abilities_are_found_by_calling():
    pairs_only = accuracy.examine(peer(formula), CPU)[0]
    assert [pairs_only[key] for key in accuracy.PROBES] == ["no", "no", "no"]
    ours = accuracy.examine(LOSSES["torch"], CPU)[0]
    assert [ours[key] for key in accuracy.PROBES] == ["yes", "yes", "yes"]

    def one_way(queries, keys, target, scale):
        return F.cross_entropy(scale * queries @ keys.T, target)

    two_calls = accuracy.examine(peer(both_ways(one_way)), CPU)[0]
    assert [two_calls[key] for key in accuracy.PROBES] == ["yes", "no", "yes"]

    def ignores(images, texts, scale, **layout):
        return formula(images, texts[: len(images)], scale)

    assert [accuracy.examine(peer(ignores), CPU)[0][key] for key in accuracy.PROBES] == ["no"] * 3


@pytest.mark.parametrize("name", ["native", "torch", "open_clip", "checkpointed"])
def test_the_peers_of_a_cpu_compute_the_loss(name):
    found = LOSSES[name]
    if found.unavailable(CPU) is not None:
        pytest.skip(found.unavailable(CPU))
    images, texts = accuracy.problem("random", torch.float32, CPU)
    scale = torch.tensor(10.0)
    got = found.build(0, 1)(images, texts, scale)
    torch.testing.assert_close(got.double(), formula(images, texts, scale), rtol=1e-5, atol=0)


def test_blocks_of_rows_are_one_loss(monkeypatch):
    from benchmarks.peers import checkpointed

    monkeypatch.setattr(checkpointed, "ROWS", 7)
    assert accuracy.compare(checkpointed.loss, "random", "fp32", CPU)["passes"]


def test_an_absent_package_is_named():
    name = "no-such-thing"
    absent = Peer("none", lambda *_: None, package(name, gpu=False), linear, name)
    assert absent.unavailable(CPU) == "no-such-thing is not installed"
    (row,) = accuracy.rows_of(absent, CPU)
    assert row["not_run"] == "no-such-thing is not installed"
    assert row["passes"] is None
    abilities = ("hard_negatives", "margin", "unequal", "ranks")
    assert {row[key] for key in abilities} == {"untested"}
    assert package("torch", gpu=False)(CPU) is None
    assert package("torch", gpu=True)(CPU) == "needs a GPU"
