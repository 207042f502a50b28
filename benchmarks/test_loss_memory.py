"""How much memory does the loss add, forward and backward, beside its peers?

    python -m pytest benchmarks/test_loss_memory.py [--sizes 1024 8192 65536] [--dims 512]

Each figure is of a process of its own, over what it held with the features in place, gradients of
the features included: on a CPU the growth of the peak resident memory, on a GPU that of torch's
allocator. `eager_ratio` is open_clip's figure over the peer's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import options, throughput
from benchmarks.memory import added_bytes
from benchmarks.peers import BASELINE, LOSSES
from benchmarks.rows import stop_unless_run
from benchmarks.steps import SCALE, LossStep, features, parameters

QUESTION = "loss_memory"
SIZES = (1024, 8192)
DIMS = (512,)
DTYPES = ("fp32", "bf16")
PEERS = LOSSES
# The small run that loads libraries and starts threads.
WARM_UP = 64
# Less than that is the process's own coming and going, and no ratio is taken.
NOISE = 2**20


def step(*, peer: str, N: int, D: int, dtype: str, device: str, threads: int) -> Callable[[], None]:
    """Forward and backward of a peer, with features in place."""
    torch.set_num_threads(threads)
    where = torch.device(device)
    leaves = [*features(N, D, options.DTYPES[dtype], where), *parameters((SCALE,), where)]
    measured = LossStep(LOSSES[peer].build(0, 1), leaves, "both")
    if LOSSES[peer].compiles:
        measured.run()
    measured.prepare()
    return measured.run


@functools.cache
def extra_bytes(peer: str, N: int, D: int, dtype: str, device: str, threads: int) -> int:
    arguments = {"peer": peer, "D": D, "dtype": dtype, "device": device, "threads": threads}
    function = "benchmarks.test_loss_memory:step"
    return added_bytes(function, {**arguments, "N": WARM_UP}, {**arguments, "N": N})


def test_loss_memory(peer: Any, N: int, D: int, dtype: str, settings: Any, save_row: Any) -> None:
    kind, device = options.DTYPES[dtype], settings.device
    stop_unless_run(throughput.missing(peer, N, D, kind, device))
    case = (N, D, dtype, device.type, settings.threads)
    found = extra_bytes(peer.name, *case)
    measured: dict[str, Any] = {"extra_bytes": found}
    if throughput.missing(BASELINE, N, D, kind, device) is None:
        eager = extra_bytes(BASELINE.name, *case)
        if min(eager, found) >= NOISE:
            measured["eager_ratio"] = eager / found
    save_row(**measured)
