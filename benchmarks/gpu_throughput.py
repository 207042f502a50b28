"""How long does the loss take on this GPU, beside the matmul bound and what people use now?

    python -m benchmarks.gpu_throughput [--sizes 4096 16384 65536] [--dims 512 768]
        [--dtype bf16] [--rounds 10] [--seconds 240]

One process, everything in turn, medians by CUDA events. "U" is one product of the size of the
similarity matrix at the rate of torch's matmul, measured in the same run on 16,384 rows. Forward is
U at best, forward and backward 4 U without storing the matrix. Peers: open_clip's ClipLoss (from
open_clip where it is installed, else its lines), eager and compiled, up to the size whose matrices
fit; and torch in blocks (the `torch` backend). What no longer fits --seconds is left out and said.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import record
from slipform_kernels import ClipLoss, dispatch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
ROWS = 16_384
EAGER_LIMIT = 32_768
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def eager(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    """What open_clip's ClipLoss computes in one process."""
    target = torch.arange(len(images), device=images.device)
    per_image, per_text = scale * images @ texts.T, scale * texts @ images.T
    return (F.cross_entropy(per_image, target) + F.cross_entropy(per_text, target)) / 2


def milliseconds(step: Callable[[], object], rounds: int) -> float:
    """Median over the rounds, after two that warm up."""
    for _ in range(2):
        step()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def matmul_rate(D: int, dtype: torch.dtype, rounds: int) -> float:
    """Operations a second of [ROWS, D] x [D, ROWS]."""
    a, b = (torch.randn(ROWS, D, device="cuda").to(dtype) for _ in range(2))
    return 2e3 * ROWS * ROWS * D / milliseconds(lambda: a @ b.T, rounds)


def losses(N: int) -> dict[str, Loss]:
    """The variants that can run at this size on this machine."""
    found: dict[str, Loss] = {}
    if dispatch.triton_backend.unavailable() is None:
        found["triton"] = ClipLoss(backend="triton")
    if dispatch.native_cuda.unavailable() is None:
        found["native"] = ClipLoss(backend="native")
    found["torch"] = ClipLoss(backend="torch")
    if N <= EAGER_LIMIT:
        try:
            from open_clip.loss import ClipLoss as OpenClipLoss

            peer: Loss = OpenClipLoss()
        except ImportError:
            peer = eager
        found["open_clip"] = peer
        found["open_clip compiled"] = torch.compile(peer)
    return found


def measure(
    name: str, loss: Loss, N: int, D: int, dtype: torch.dtype, rate: float, rounds: int
) -> dict[str, Any]:
    """One line of the table; an out-of-memory error is a result."""
    row: dict[str, Any] = {"N": N, "D": D, "loss": name}
    images, texts = (
        F.normalize(torch.randn(N, D, device="cuda"), dim=1).to(dtype).requires_grad_()
        for _ in range(2)
    )
    scale = torch.tensor(50.0, device="cuda", requires_grad=True)
    U = 2e3 * N * N * D / rate  # milliseconds

    def forward() -> Tensor:
        with torch.no_grad():
            return loss(images, texts, scale)

    def both() -> None:
        images.grad = texts.grad = scale.grad = None
        loss(images, texts, scale).backward()

    try:
        of_forward = milliseconds(forward, rounds)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        of_both = milliseconds(both, rounds)
        peak = torch.cuda.max_memory_allocated() - before
    except torch.OutOfMemoryError:
        return row | {"forward, ms": "out of memory"}
    return row | {
        "forward, ms": of_forward,
        "forward and backward, ms": of_both,
        "U / forward": U / of_forward,
        "4U / both": 4 * U / of_both,
        "extra memory, MiB": round(peak / 2**20),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 16384, 65536])
    parser.add_argument("--dims", type=int, nargs="+", default=[512, 768])
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=240.0, help="after which it stops")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    dtype, rows, left_out = DTYPES[args.dtype], [], []
    for D in args.dims:
        rate = matmul_rate(D, dtype, args.rounds)
        rows.append({"N": ROWS, "D": D, "loss": f"matmul, {rate / 1e12:.0f} TFLOP/s"})
        for N in args.sizes:
            for name, loss in losses(N).items():
                if time.monotonic() > end:
                    left_out.append(f"{name} at N = {N}, D = {D}")
                    continue
                rows.append(measure(name, loss, N, D, dtype, rate, args.rounds))
                print(rows[-1], flush=True)
    record.save(f"gpu_throughput_{args.dtype}", rows)
    if left_out:
        print(f"left out after {args.seconds:.0f} s: {'; '.join(left_out)}")


if __name__ == "__main__":
    main()
