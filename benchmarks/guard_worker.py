"""The process that `guard.py` starts for one tree: it times steps on request.

    PYTHONPATH=TREE python guard_worker.py timings      # or: memory

A line of json with the request on stdin, such as {"N": 1024, "D": 512, "dtype": "bf16"}, is
answered with a line on stdout. It needs of the package nothing but ClipLoss, so that it serves
releases of any age, and imports nothing of this folder.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.pop(0)  # this folder: the trees are on PYTHONPATH

import torch
import torch.nn.functional as F
from torch import Tensor

import slipform_kernels
from slipform_kernels import ClipLoss

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SCALE = 100.0
BAND = 2048
# A timing is of as many steps as make it long beside the clock and the call, and the least of a few
# of them, taken in turn: what others do on the machine only ever adds to it.
SMALLEST_WORK, TRIES = 2048, 3


def eager(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    """What open_clip's ClipLoss computes in one process."""
    target = torch.arange(len(images))
    per_image, per_text = scale * images @ texts.T, scale * texts @ images.T
    return (F.cross_entropy(per_image, target) + F.cross_entropy(per_text, target)) / 2


def leaves(N: int, D: int, dtype: torch.dtype) -> list[Tensor]:
    """Images, texts and the scale, seeded."""
    generator = torch.Generator().manual_seed(N + D)
    features = [
        F.normalize(torch.randn(N, D, generator=generator), dim=1).to(dtype).requires_grad_()
        for _ in range(2)
    ]
    return [*features, torch.tensor(SCALE, requires_grad=True)]


class Case:
    """The steps of one size and dtype, warmed up."""

    def __init__(self, N: int, D: int, dtype: str) -> None:
        self.N = N
        self.inputs = leaves(N, D, DTYPES[dtype])
        left, right = (x.detach().float() for x in self.inputs[:2])
        out = torch.empty(min(N, BAND), N)
        loss = ClipLoss()
        self.steps: dict[str, Callable[[], object]] = {
            "eager": lambda: self._backward(eager),
            "ours": lambda: self._backward(loss),
            "product": lambda: torch.mm(left[:BAND], right.T, out=out),
        }
        for step in self.steps.values():
            step()

    def _backward(self, loss: Callable[..., Tensor]) -> None:
        for leaf in self.inputs:
            leaf.grad = None
        loss(*self.inputs).backward()

    def seconds(self) -> dict[str, float]:
        """Of a step of each; of the whole N x N product, from a band of its rows."""
        count = max(1, SMALLEST_WORK // self.N)
        found = dict.fromkeys(self.steps, float("inf"))
        for _ in range(TRIES):
            for name, step in self.steps.items():
                start = time.perf_counter()
                for _ in range(count):
                    step()
                found[name] = min(found[name], (time.perf_counter() - start) / count)
        found["product"] *= self.N / min(self.N, BAND)
        return found


def peak_bytes() -> int:
    """Of this process's resident memory, since it was reset where the system can."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def extra_bytes(N: int, D: int, dtype: str) -> int:
    """Growth of the peak in a forward and backward, gradients included; once a process."""
    loss = ClipLoss()
    for size in (64, N):  # the small one loads libraries and starts threads
        inputs = leaves(size, D, DTYPES[dtype])
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # makes the peak what is resident
        before = peak_bytes()
        loss(*inputs).backward()
    return peak_bytes() - before


def main() -> None:
    what, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    print(json.dumps({"file": slipform_kernels.__file__}), flush=True)
    cases: dict[str, Case] = {}
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if what == "memory":
            print(json.dumps({"bytes": extra_bytes(**request)}), flush=True)
            continue
        if line not in cases:
            cases = {line: Case(**request)}  # one at a time: the last one's memory is let go
        print(json.dumps(cases[line].seconds()), flush=True)


if __name__ == "__main__":
    main()
