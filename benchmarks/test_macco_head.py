"""What does predicting only MACCO's masked words save, in memory and in time?

    python -m pytest benchmarks/test_macco_head.py [--batches 32 64 256] [--rounds 5]

Sizes of ViT-B/32: 77 positions, 49 patches, 512 features, 49,408 words; about two masked words a
sample. "release" is the paper's released way: the predictor and the vocabulary at all positions,
log_softmax over all of them, then the masked ones are taken; its predictor is the same module.

Memory is that of the masked-word loss, forward and backward, in a process of its own, with states
and vocabulary in place, gradients included. Time is that of predictor and loss, forward and
backward, both ways in turn. Ratios are the release's over ours.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from benchmarks.memory import added_bytes, lacking
from benchmarks.paired import Pairing, median_ratio, ratio_iqr
from benchmarks.rows import stop_unless_run
from slipform_training.macco.losses import masked_word_loss
from slipform_training.macco.predictors import MaskedTokens, TextPredictor

QUESTION = "macco_head"
BATCHES = (32,)
POSITIONS, PATCHES, WIDTH, VOCABULARY, MASKED = 77, 49, 512, 49408, 2
# Logits at all positions, their log-softmax, and the gradient of one of them.
RELEASE_COPIES = 3


class Case:
    """A predictor and the features of `count` samples."""

    def __init__(self, count: int) -> None:
        torch.manual_seed(0)
        self.predictor = TextPredictor(WIDTH, layers=2, heads=8, vocabulary=VOCABULARY)
        self.texts = torch.randint(0, VOCABULARY, (count, POSITIONS))
        # Words lie among the first positions; each of 12 is masked with probability 1/6.
        self.mask = torch.zeros(count, POSITIONS, dtype=torch.bool)
        self.mask[:, 1:13] = torch.rand(count, 12) < MASKED / 12
        self.states = torch.randn(count, POSITIONS, WIDTH).requires_grad_()
        self.patches = torch.randn(count, PATCHES, WIDTH)

    def loss(self, variant: str, states: Tensor) -> Tensor:
        """Masked-word loss from states after the predictor: [n, D], or [N, L, D] for "release"."""
        masked = MaskedTokens(self.mask)
        head = self.predictor.vocabulary
        if variant == "ours":
            return masked_word_loss(states, head, self.texts, masked).mean()
        log_p = log_softmax(head(states), dim=-1)
        nll = -log_p.gather(-1, self.texts[..., None])[..., 0]
        return masked.mean_of_samples(masked.taken(nll)).mean()

    def head_step(self, variant: str) -> None:
        states = self.states
        if variant == "ours":
            states = MaskedTokens(self.mask).taken(states)
        self.loss(variant, states).backward()

    def whole_step(self, variant: str) -> None:
        queried = self.mask if variant == "ours" else torch.ones_like(self.mask)
        found = self.predictor(self.states, self.patches, MaskedTokens(queried))
        if variant == "release":
            found = found.view(self.states.shape)
        self.loss(variant, found).backward()


class WholeStep:
    """Predictor and loss, forward and backward."""

    def __init__(self, case: Case, variant: str):
        self.case, self.variant = case, variant

    def prepare(self) -> None:
        self.release()

    def run(self) -> None:
        self.case.whole_step(self.variant)

    def release(self) -> None:
        self.case.predictor.zero_grad(set_to_none=True)
        self.case.states.grad = None


def head(*, variant: str, count: int, threads: int) -> Callable[[], None]:
    """The loss alone, forward and backward."""
    torch.set_num_threads(threads)
    case = Case(count)
    return lambda: case.head_step(variant)


def extra_bytes(variant: str, batch: int, threads: int) -> int:
    arguments = {"variant": variant, "threads": threads}
    function = "benchmarks.test_macco_head:head"
    return added_bytes(function, {**arguments, "count": 2}, {**arguments, "count": batch})


def test_macco_head(benchmark: Any, batch: int, settings: Any, save_row: Any) -> None:
    needed = RELEASE_COPIES * 4 * batch * POSITIONS * VOCABULARY
    stop_unless_run(lacking(needed, torch.device("cpu")))
    ours, release = (extra_bytes(name, batch, settings.threads) for name in ("ours", "release"))
    case = Case(batch)
    pairing = Pairing(WholeStep(case, "ours"), {"release": WholeStep(case, "release")})
    seconds = pairing.measure(benchmark, settings.rounds)
    save_row(
        masked_words=int(case.mask.sum()),
        extra_bytes=ours,
        release_extra_bytes=release,
        memory_ratio=release / ours,
        seconds=statistics.median(seconds),
        release_seconds=statistics.median(pairing.times["release"]),
        time_ratio=median_ratio(pairing.times["release"], seconds),
        time_ratio_iqr=ratio_iqr(pairing.times["release"], seconds),
        rounds=len(seconds),
    )
