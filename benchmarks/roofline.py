"""The least time that a pass can take by a GPU's peak figures: an estimate, never a measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slipform_kernels.backends.triton.configs import TABLE
from slipform_kernels.engine import GPU_WORKSPACE_BYTES


@dataclass(frozen=True)
class Peak:
    """Dense bf16 products, memory, and special-function results a second."""

    name: str
    source: str
    flops: float
    bytes: float
    exponentials: float


# 16 special-function results a clock and multiprocessor: CUDA C++ Programming Guide, "Arithmetic
# Instructions"; times multiprocessors and boost clock.
PEAKS = {
    80: Peak("A100 SXM 80 GB", "NVIDIA A100 data sheet", 312e12, 2.04e12, 16 * 108 * 1.41e9),
    90: Peak("H100 SXM", "NVIDIA H100 data sheet", 989e12, 3.35e12, 16 * 132 * 1.83e9),
    100: Peak("B200", "NVIDIA HGX B200 data sheet", 2250e12, 7.7e12, 16 * 148 * 1.85e9),
}
NOTES = """\
Roofline, bf16, R = C = N, in milliseconds: an estimate from peak figures, not a measurement.
"matmul": 2 N^2 D flops (forward) and three times that (backward) at the peak rate of dense bf16.
"memory": features read and gradients written once, the tiles' statistics written and read, dL
written once and read twice (in fact mostly from the L2 cache, where a block of it fits).
"exponentials": one an entry and pass. No pass can take less than the largest of the three ("bound
by"); all three together is what it would take without any overlap. "flop / byte" is what a tile
does a byte that it loads from the L2 cache, "L2, TB/s" the rate that the peak then asks for."""


def estimate(architecture: int, D: int, N: int) -> dict[str, Any]:
    """One line of the table."""
    peak = PEAKS[architecture]
    tile = TABLE["statistics", architecture, "half"]
    unit = 2.0 * N * N * D
    features = 2 * N * D * 2
    partials = 2 * 8 * N * (N / tile.rows)
    logits_grad = 3 * 2 * N * N
    # dX and dY are accumulated in fp32 over blocks of the workspace, read and written each time.
    entries = GPU_WORKSPACE_BYTES // 2
    passes = max(1.0, N / (2 * entries) ** 0.5)
    accumulated = 2 * passes * 2 * 4 * N * D
    forward = _bounds(peak, unit, features + partials, N * N)
    backward = _bounds(peak, 3 * unit, 2 * features + logits_grad + accumulated, N * N)
    intensity = tile.rows * tile.cols / (tile.rows + tile.cols)
    return {
        "GPU": peak.name,
        "D": D,
        "N": N,
        **{f"forward: {name}": value for name, value in forward.items()},
        **{f"backward: {name}": value for name, value in backward.items()},
        "flop / byte": intensity,
        "L2, TB/s": peak.flops / intensity / 1e12,
    }


def _bounds(peak: Peak, flops: float, moved: float, exponentials: float) -> dict[str, Any]:
    times = {
        "matmul": 1e3 * flops / peak.flops,
        "memory": 1e3 * moved / peak.bytes,
        "exponentials": 1e3 * exponentials / peak.exponentials,
    }
    return {**times, "bound by": max(times, key=lambda name: times[name])}
