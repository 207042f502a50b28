"""How much memory does the loss add, forward and backward, beside open_clip's?

    python -m benchmarks.loss_memory [--sizes 1024 8192 65536] [--dim 512] [--eager-limit 16384]

Each figure is the growth of the peak resident memory in a process of its own, over what it held
with the features in place: gradients of the features included. open_clip's loss is left out above
--eager-limit, where its matrices would fill the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tqdm import tqdm

from benchmarks import record

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def child(variant: str, N: int, D: int, dtype: torch.dtype) -> int:
    """Bytes that one forward and backward adds to the peak of this process."""
    if variant == "open_clip":
        from open_clip.loss import ClipLoss
    else:
        from slipform_kernels import ClipLoss
    loss = ClipLoss()
    scale = torch.tensor(100.0, requires_grad=True)
    for size in (64, N):  # the small one loads libraries and starts threads
        images, texts = (
            F.normalize(torch.randn(size, D), dim=1).to(dtype).requires_grad_() for _ in range(2)
        )
        before = _reset_peak()
        loss(images, texts, scale).backward()
    return _peak() - before


def _reset_peak() -> int:
    """Make the peak what is resident now, where the system can; returns the peak in bytes."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def extra_bytes(variant: str, N: int, D: int, name: str) -> int:
    """`child` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.loss_memory", "--child", variant, name]
    run = subprocess.run(
        [*command, "--sizes", str(N), "--dim", str(D)],
        cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(json.loads(run.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 8192, 65536])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--eager-limit", type=int, default=16384)
    parser.add_argument("--child", nargs=2, metavar=("VARIANT", "DTYPE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        variant, name = args.child
        print(json.dumps(child(variant, args.sizes[0], args.dim, DTYPES[name])))
        return
    rows: list[dict[str, Any]] = []
    for N, name in tqdm([(N, name) for N in args.sizes for name in DTYPES], desc="cases"):
        ours = extra_bytes("slipform", N, args.dim, name)
        row = {"N": N, "D": args.dim, "features": name, "ours, MiB": round(ours / 2**20)}
        if args.eager_limit >= N:
            eager = extra_bytes("open_clip", N, args.dim, name)
            row |= {"open_clip, MiB": round(eager / 2**20), "open_clip / ours": eager / ours}
        else:
            row |= {"open_clip, MiB": "not run", "open_clip / ours": "-"}
        rows.append(row)
    record.save("loss_memory_cpu", rows)


if __name__ == "__main__":
    main()
