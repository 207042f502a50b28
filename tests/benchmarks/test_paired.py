"""Pairing, on a clock that only moves when a step says so: every number is computed by hand."""

from __future__ import annotations

import pytest
import torch

from benchmarks.paired import WARM_UP, Pairing, median_ratio, ratio_iqr
from benchmarks.steps import LossStep, Product, features, parameters
from benchmarks.throughput import in_products


class Clock:
    """Seconds, moved by steps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now


class Scripted:
    """Takes the next of `seconds` at each run, and a long time for what must not be timed."""

    def __init__(self, clock: Clock, name: str, *seconds: float):
        self.clock, self.name, self.seconds = clock, name, list(seconds)
        self.holds = False

    def prepare(self) -> None:
        self.clock.now += 1000

    def run(self) -> None:
        self.clock.log.append(self.name)
        self.holds = True
        self.clock.now += self.seconds.pop(0)

    def release(self) -> None:
        self.holds = False
        self.clock.now += 1000


class Benchmark:
    """pytest-benchmark's `pedantic` on the scripted clock; a set-up comes before every run."""

    def __init__(self, clock: Clock):
        self.clock, self.data = clock, []
        self.stats = self

    def pedantic(self, run, *, setup, rounds, warmup_rounds):
        for index in range(warmup_rounds + rounds):
            setup()
            start = self.clock()
            run()
            if index >= warmup_rounds:
                self.data.append(self.clock() - start)


def test_every_round_is_beside_its_own_baseline_and_product():
    clock = Clock()
    assert WARM_UP == 2
    pairing = Pairing(
        Scripted(clock, "peer", 70, 70, 1, 2, 3),
        {
            "eager": Scripted(clock, "eager", 50, 50, 2, 4, 9),
            "product": Scripted(clock, "product", 30, 30, 0.5, 0.5, 0.25),
        },
        clock=clock,
    )
    seconds = pairing.measure(Benchmark(clock), 3)
    assert clock.log == ["eager", "product", "peer"] * 5
    assert seconds == [1, 2, 3]
    assert pairing.times == {"eager": [2, 4, 9], "product": [0.5, 0.5, 0.25]}
    # 2, 2 and 3 times as fast; the quartiles of that are 2 and 2.5
    assert median_ratio(pairing.times["eager"], seconds) == 2
    assert ratio_iqr(pairing.times["eager"], seconds) == 0.5
    # 2, 4 and 12 bands of an eighth of the product
    assert in_products(seconds, pairing.times["product"], 1 / 8) == 0.5


def test_nothing_runs_while_another_holds_its_results():
    clock = Clock()
    steps = [Scripted(clock, name, *[1] * 5) for name in ("peer", "eager", "product")]
    peer, *others = steps

    def alone(step, run):
        def checked():
            assert not any(other.holds for other in steps)
            run()

        step.run = checked

    for step in steps:
        alone(step, step.run)
    pairing = Pairing(peer, dict(zip(("eager", "product"), others, strict=True)), clock=clock)
    pairing.measure(Benchmark(clock), 3)
    assert not peer.holds


def test_the_ratio_is_that_within_a_round_and_not_that_of_medians():
    # A machine that turns ten times slower between rounds: medians would give 10 / 5 = 2.
    assert median_ratio([1, 10, 100], [0.5, 10, 5]) == 2
    assert median_ratio([1, 10, 10], [1, 1, 5]) == 2
    assert median_ratio([4, 40, 30], [1, 10, 100]) == 4


def test_a_single_round_has_no_spread_and_unpaired_rounds_are_an_error():
    assert ratio_iqr([3], [1]) == 0
    with pytest.raises(ValueError, match="zip"):
        median_ratio([1, 2], [1])


def test_a_product_of_few_rows_is_known_to_be_a_share():
    images, texts = torch.rand(4096, 2), torch.rand(4096, 2)
    product = Product(images, texts, torch.float32)
    product.run()
    assert product.share == 0.5
    assert torch.allclose(product.result, images[:2048] @ texts.T)


@pytest.mark.parametrize("which", ["forward", "backward", "both"])
def test_only_the_pass_is_timed(which):
    """Gradients are cleared before, and a forward that backward needs has run before."""
    log = []

    def loss(images, texts, scale):
        log.append("forward")
        value = scale * (images * texts).sum()
        value.register_hook(lambda gradient: log.append("backward"))
        return value

    device = torch.device("cpu")
    leaves = [*features(4, 3, torch.float32, device), *parameters((100.0,), device)]
    step = LossStep(loss, leaves, which)
    for _ in range(2):
        step.prepare()
        assert all(leaf.grad is None for leaf in leaves)
        assert log == (["forward"] if which == "backward" else [])
        log.clear()
        step.run()
        assert log == {"both": ["forward", "backward"]}.get(which, [which])
        log.clear()
    if which != "forward":
        # The gradient of one run, not of two.
        torch.testing.assert_close(leaves[2].grad, (leaves[0] * leaves[1]).sum().detach())


def test_features_are_of_unit_norm_and_the_same_in_every_process():
    first, again = (features(5, 8, torch.float32, torch.device("cpu")) for _ in range(2))
    torch.rand(3)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    torch.testing.assert_close(first[0].norm(dim=1), torch.ones(5))
    assert not torch.equal(*first)
