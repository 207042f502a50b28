"""How long does SigLipLoss take, forward and backward, beside open_clip's and the matmul bound?

    python -m benchmarks.loss_siglip [--sizes 256 1024 8192] [--dim 512] [--rounds 7] [--threads 2]

As in `loss_throughput`; the floor is "3U", three products of the size of the matrix.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from open_clip.loss import SigLipLoss as OpenClipLoss
from torch import nn
from tqdm import tqdm

from benchmarks import record
from slipform_kernels import SigLipLoss

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def measure(N: int, D: int, dtype: torch.dtype, rounds: int) -> dict[str, float]:
    """Median seconds of each variant."""
    images, texts = (
        F.normalize(torch.randn(N, D), dim=1).to(dtype).requires_grad_() for _ in range(2)
    )
    scale, bias = (torch.tensor(value, requires_grad=True) for value in (10.0, -10.0))
    leaves = images, texts, scale, bias

    def step(loss: nn.Module) -> None:
        for leaf in leaves:
            leaf.grad = None
        loss(*leaves).backward()

    band = min(N, 2048)
    left, right = images.detach().float()[:band], texts.detach().float()
    product = torch.empty(band, N)
    ours, theirs = SigLipLoss(), OpenClipLoss()
    variants: dict[str, Callable[[], object]] = {
        "open_clip": lambda: step(theirs),
        "slipform": lambda: step(ours),
        "band": lambda: torch.mm(left, right.T, out=product),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for run in variants.values():
        run()
    for _ in range(rounds):
        for name, run in variants.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    median = {name: statistics.median(values) for name, values in times.items()}
    median["3U"] = 3 * median.pop("band") * N / band
    return median


def row(N: int, D: int, name: str, rounds: int) -> dict[str, Any]:
    seconds = measure(N, D, DTYPES[name], rounds)
    return {
        "N": N,
        "D": D,
        "features": name,
        "times open_clip": seconds["open_clip"] / seconds["slipform"],
        "slipform / 3U": seconds["slipform"] / seconds["3U"],
        "open_clip / 3U": seconds["open_clip"] / seconds["3U"],
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
    rows = []
    for N, name in tqdm([(N, name) for N in args.sizes for name in DTYPES], desc="cases"):
        # Small cases are cheap and noisy: more rounds.
        rows.append(row(N, args.dim, name, args.rounds * max(1, min(20, 2048 // N))))
    record.save("loss_siglip_cpu", rows)


if __name__ == "__main__":
    main()
