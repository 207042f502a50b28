"""One row of a throughput table: a peer beside the baseline and the machine's matrix product."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from benchmarks.memory import lacking
from benchmarks.paired import Pairing, Step, median_ratio, ratio_iqr
from benchmarks.peers.base import Peer
from benchmarks.steps import LossStep, Product, features, parameters

FP32, OWN = "product", "product in dtype"


def needed_bytes(peer: Peer, N: int, D: int, dtype: torch.dtype) -> int:
    """An estimate for one step of the peer, features included."""
    return peer.extra_bytes(N, D, dtype.itemsize) + 2 * N * D * dtype.itemsize


def measure(
    benchmark: Any, peer: Peer, baseline: Peer, *, values: tuple[float, ...], which: str,
    N: int, D: int, dtype: torch.dtype, device: torch.device, rounds: int,
) -> dict[str, Any]:  # fmt: skip
    """Seconds and ratios of one pass of the peer; without `eager_ratio` if the baseline cannot run.

    `values` are those of the parameters, the scale first, which all get gradients.
    """
    leaves = [*features(N, D, dtype, device), *parameters(values, device)]
    product = Product(*leaves[:2], torch.float32)
    beside: dict[str, Step] = {FP32: product}
    if dtype != torch.float32:
        beside[OWN] = Product(*leaves[:2], dtype)
    if missing(baseline, N, D, dtype, device) is None:
        beside["eager"] = LossStep(baseline.build(0, 1), leaves, which)
    pairing = Pairing(LossStep(peer.build(0, 1), leaves, which), beside)
    seconds = pairing.measure(benchmark, rounds)
    own = OWN if OWN in beside else FP32
    row = {
        "seconds": statistics.median(seconds),
        "product_ratio": in_products(seconds, pairing.times[FP32], product.share),
        "product_dtype_ratio": in_products(seconds, pairing.times[own], product.share),
        "rounds": len(seconds),
    }
    if "eager" in beside:
        row["eager_ratio"] = median_ratio(pairing.times["eager"], seconds)
        row["eager_ratio_iqr"] = ratio_iqr(pairing.times["eager"], seconds)
    return row


def in_products(seconds: list[float], bands: list[float], share: float) -> float:
    """The peer's time in whole N x N products, where a band of that share took so long."""
    return share * median_ratio(seconds, bands)


def missing(peer: Peer, N: int, D: int, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the peer is not run at this size, or None."""
    return peer.unavailable(device) or lacking(needed_bytes(peer, N, D, dtype), device)
