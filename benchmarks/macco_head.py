"""What does predicting only MACCO's masked words save, in memory and in time?

    python -m benchmarks.macco_head [--batches 32 64 256] [--time-limit 64] [--rounds 5]
        [--threads 2]

Sizes of ViT-B/32: 77 positions, 49 patches, 512 features, 49,408 words; about two masked words a
sample. "release" is the paper's released way: the predictor and the vocabulary at all positions,
log_softmax over all of them, then the masked ones are taken; its predictor is the same module.

Memory is that of the masked-word loss, forward and backward: the growth of the peak in a process of
its own, with states and vocabulary in place, gradients included. Time is that of predictor and
loss, forward and backward, both ways in turn in one process, as medians; not above --time-limit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax
from tqdm import tqdm

from benchmarks import record
from benchmarks.loss_memory import _peak, _reset_peak
from slipform_training.macco.losses import masked_word_loss
from slipform_training.macco.predictors import MaskedTokens, TextPredictor

POSITIONS, PATCHES, WIDTH, VOCABULARY, MASKED = 77, 49, 512, 49408, 2
VARIANTS = ("ours", "release")


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
        self.predictor.zero_grad(set_to_none=True)
        self.states.grad = None
        queried = self.mask if variant == "ours" else torch.ones_like(self.mask)
        found = self.predictor(self.states, self.patches, MaskedTokens(queried))
        if variant == "release":
            found = found.view(self.states.shape)
        self.loss(variant, found).backward()


def child(variant: str, count: int) -> int:
    """Bytes that the loss adds to the peak of this process."""
    for size in (2, count):  # the small one loads libraries and starts threads
        case = Case(size)
        before = _reset_peak()
        case.head_step(variant)
    return _peak() - before


def extra_bytes(variant: str, count: int, threads: int) -> int:
    """`child` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.macco_head", "--child", variant]
    run = subprocess.run(
        [*command, "--batches", str(count), "--threads", str(threads)],
        cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(json.loads(run.stdout.splitlines()[-1]))


def seconds(count: int, rounds: int) -> dict[str, float]:
    """Median of each way."""
    case = Case(count)
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    case.whole_step("ours")
    for _ in range(rounds):
        for name in VARIANTS:
            start = time.perf_counter()
            case.whole_step(name)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def row(count: int, args: argparse.Namespace) -> dict[str, Any]:
    memory = {name: extra_bytes(name, count, args.threads) for name in VARIANTS}
    found: dict[str, Any] = {
        "batch": count,
        "masked words": int(Case(count).mask.sum()),
        "ours, MiB": round(memory["ours"] / 2**20),
        "release, MiB": round(memory["release"] / 2**20),
        "release / ours, memory": memory["release"] / memory["ours"],
    }
    if count > args.time_limit:
        return found | {"ours, s": "not run", "release, s": "not run", "release / ours, time": "-"}
    median = seconds(count, args.rounds)
    return found | {
        "ours, s": median["ours"],
        "release, s": median["release"],
        "release / ours, time": median["release"] / median["ours"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 64, 256])
    parser.add_argument("--time-limit", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", metavar="VARIANT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.child:
        print(json.dumps(child(args.child, args.batches[0])))
        return
    rows = [row(count, args) for count in tqdm(args.batches, desc="cases")]
    record.save("macco_head_cpu", rows)


if __name__ == "__main__":
    main()
