"""How long does the loss take, forward and backward, beside its peers and the matmul bound?

    python -m pytest benchmarks/test_loss_throughput.py [--sizes 256 8192] [--dims 512]
        [--dtypes fp32 bf16] [--passes both] [--peers native open_clip] [--rounds 5] [--threads 2]

Features are random, seeded, of unit norm; the scale is 100 and gets a gradient, as in training.
Forward is that of training, which keeps what backward needs. Every round of a peer runs open_clip's
ClipLoss of the same dtype and a band of rows of the N x N product beside it; `eager_ratio` is the
median of open_clip's time over the peer's, `product_ratio` that of the peer's over one whole
product's of 2 N N D operations at torch.mm's fp32 rate (4 is the floor of a loss that does not
store the matrix, 3 of one that does), `product_dtype_ratio` the same at the rate in the row's own
dtype. `passes` is whether the peer meets the accuracy bar in that dtype (`accuracy.py`).
"""

from __future__ import annotations

from typing import Any

from benchmarks import accuracy, options, throughput
from benchmarks.peers import BASELINE, LOSSES
from benchmarks.rows import stop_unless_run
from benchmarks.steps import SCALE

QUESTION = "loss_throughput"
SIZES = (256, 2048)
DIMS = (512,)
DTYPES = ("fp32", "bf16")
PASSES = options.PASSES
PEERS = LOSSES


def test_loss_throughput(
    benchmark: Any, peer: Any, which: str, N: int, D: int, dtype: str, settings: Any, save_row: Any
) -> None:
    kind = options.DTYPES[dtype]
    stop_unless_run(throughput.missing(peer, N, D, kind, settings.device))
    measured = throughput.measure(
        benchmark, peer, BASELINE, values=(SCALE,), which=which, N=N, D=D, dtype=kind,
        device=settings.device, rounds=options.rounds_at(N, settings.rounds),
    )  # fmt: skip
    save_row(**measured, passes=accuracy.verdict(peer, dtype, settings.device))
