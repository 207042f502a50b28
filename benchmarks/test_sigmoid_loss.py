"""How long does SigLIP's loss take, forward and backward, beside its peers and the matmul bound?

    python -m pytest benchmarks/test_sigmoid_loss.py [--sizes 256 8192] [--passes both]

As in `test_loss_throughput`, at a scale of 10 and a bias of -10, beside open_clip's SigLipLoss. The
floor is a `product_ratio` of 3.
"""

from __future__ import annotations

from typing import Any

from benchmarks import options, throughput
from benchmarks.peers import SIGMOID_BASELINE, SIGMOID_LOSSES
from benchmarks.rows import stop_unless_run

QUESTION = "sigmoid_throughput"
SIZES = (256, 1024)
DIMS = (512,)
DTYPES = ("fp32", "bf16")
PASSES = ("both",)
PEERS = SIGMOID_LOSSES


def test_sigmoid_loss(
    benchmark: Any, peer: Any, which: str, N: int, D: int, dtype: str, settings: Any, save_row: Any
) -> None:
    kind = options.DTYPES[dtype]
    stop_unless_run(throughput.missing(peer, N, D, kind, settings.device))
    measured = throughput.measure(
        benchmark, peer, SIGMOID_BASELINE, values=(10.0, -10.0), which=which, N=N, D=D,
        dtype=kind, device=settings.device, rounds=options.rounds_at(N, settings.rounds),
    )  # fmt: skip
    save_row(**measured)
