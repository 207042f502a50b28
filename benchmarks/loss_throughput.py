"""How long does the loss take, forward and backward, beside open_clip's and the matmul bound?

    python -m benchmarks.loss_throughput [--sizes 256 1024 8192] [--dim 512] [--rounds 7]
        [--threads 2]

All variants run in turn in one process; the figures are ratios of medians. "4U" is four products of
the size of the similarity matrix, at the fp32 matmul rate of the same run: the floor of a loss that
does not store the matrix.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from open_clip.loss import ClipLoss as OpenClipLoss
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks import record
from slipform_kernels import ClipLoss

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def measure(N: int, D: int, dtype: torch.dtype, rounds: int) -> dict[str, float]:
    """Median seconds of each variant."""
    images, texts = (
        F.normalize(torch.randn(N, D), dim=1).to(dtype).requires_grad_() for _ in range(2)
    )
    scale = torch.tensor(100.0, requires_grad=True)
    band = min(N, 2048)
    left, right = images.detach().float()[:band], texts.detach().float()
    product = torch.empty(band, N)
    variants: dict[str, Callable[[], object]] = {
        "open_clip": _step(OpenClipLoss(), images, texts, scale),
        "native": _step(ClipLoss(backend="native"), images, texts, scale),
        "torch": _step(ClipLoss(backend="torch"), images, texts, scale),
        "band": lambda: torch.mm(left, right.T, out=product),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for step in variants.values():
        step()
    for _ in range(rounds):
        for name, step in variants.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    median = {name: statistics.median(values) for name, values in times.items()}
    median["4U"] = 4 * median.pop("band") * N / band
    return median


def _step(loss: nn.Module, images: Tensor, texts: Tensor, scale: Tensor) -> Callable[[], None]:
    def step() -> None:
        images.grad = texts.grad = scale.grad = None
        loss(images, texts, scale).backward()

    return step


def row(N: int, D: int, name: str, rounds: int) -> dict[str, Any]:
    seconds = measure(N, D, DTYPES[name], rounds)
    return {
        "N": N,
        "D": D,
        "features": name,
        "native, times open_clip": seconds["open_clip"] / seconds["native"],
        "torch, times open_clip": seconds["open_clip"] / seconds["torch"],
        "native / 4U": seconds["native"] / seconds["4U"],
        "open_clip / 4U": seconds["open_clip"] / seconds["4U"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 8192])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    cases = [(N, name) for N in args.sizes for name in DTYPES]
    rows = []
    for N, name in tqdm(cases, desc="cases"):
        # Small cases are cheap and noisy: more rounds.
        rounds = args.rounds * max(1, min(20, 2048 // N))
        rows.append(row(N, args.dim, name, rounds))
    record.save("loss_throughput_cpu", rows)


if __name__ == "__main__":
    main()
