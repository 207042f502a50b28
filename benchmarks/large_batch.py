"""Does the loss of a batch fit whose matrix could not be stored? The loss alone, on this CPU.

    python -m benchmarks.large_batch [--size 131072] [--dim 512] [--dtype bf16] [--backend native]

One forward and backward with random features. The memory is the growth of the process's peak over
what it held with the features in place, gradients included; the time is beside that of four
products U = 2 N N D at the rate of torch's matmul in the features' dtype, measured in the same
process on 8,192 rows.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import record
from benchmarks.memory import peak, reset_peak
from benchmarks.options import DTYPES
from slipform_kernels import ClipLoss

ROWS = 8192


def matmul_rate(D: int, dtype: torch.dtype) -> float:
    """Operations a second of [ROWS, D] x [D, ROWS], the median of five."""
    a, b = (torch.randn(ROWS, D).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        a @ b.T
        seconds.append(time.perf_counter() - start)
    return 2 * ROWS * ROWS * D / sorted(seconds)[2]


def measure(N: int, D: int, dtype: torch.dtype, backend: str | None) -> dict[str, Any]:
    """Time and memory of one forward and backward of ClipLoss."""
    loss = ClipLoss(backend=backend)
    scale = torch.tensor(50.0, requires_grad=True)
    rate = matmul_rate(D, dtype)
    result: dict[str, Any] = {"N": N, "D": D}
    for size in (64, N):  # the small one loads libraries and starts threads
        images, texts = (
            F.normalize(torch.randn(size, D), dim=1).to(dtype).requires_grad_() for _ in range(2)
        )
        before = reset_peak()
        start = time.perf_counter()
        value = loss(images, texts, scale)
        middle = time.perf_counter()
        value.backward()
        end = time.perf_counter()
    products = 4 * 2 * N * N * D / rate
    return result | {
        "matrix in fp32, GiB": 4 * N * N / 2**30,
        "extra memory, MiB": round((peak() - before) / 2**20),
        "forward, s": middle - start,
        "backward, s": end - middle,
        "time / 4U": (end - start) / products,
        "loss": float(value.detach()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=131072, help="N, rows and columns")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--backend", default=None)
    args = parser.parse_args()
    row = measure(args.size, args.dim, DTYPES[args.dtype], args.backend)
    record.save("large_batch_cpu", [row | {"features": args.dtype}])


if __name__ == "__main__":
    main()
