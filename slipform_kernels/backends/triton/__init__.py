"""Fused Triton kernels: a tile of similarities lives in registers and feeds both directions.

`forward.py` and `backward.py` are the kernels, `tile.py` what they share, `configs.py` the table
of configurations, `launch.py` the grids. Triton itself is imported at the first use.
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ...engine import GradientBlock
from ...problem import Problem, Weights

name = "triton"
device_type = "cuda"
MAX_DEPTH = 2048
# Triton's interpreter takes bf16 for integers. The tests mend it, and say so here.
interprets_bf16 = False


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on CPU tensors: for tests, and only if named."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def unavailable() -> str | None:
    """None, or why the kernels cannot run in this process."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if interpreted():
        return None
    return None if torch.cuda.is_available() else "there is no CUDA device"


def supports(problem: Problem) -> str | None:
    """None for fp32, bf16 and fp16 on a GPU of compute capability 8.0 or newer, D up to 2048."""
    rows = problem.rows
    if interpreted() and rows.device.type != "cpu":
        return f"TRITON_INTERPRET is set: it computes on CPU tensors, not on {rows.device}"
    if interpreted() and rows.dtype == torch.bfloat16 and not interprets_bf16:
        return "TRITON_INTERPRET is set, and Triton's interpreter computes bf16 wrongly"
    if rows.device.type != "cuda" and not interpreted():
        return f"it computes on a CUDA device; the features are on {rows.device}"
    if rows.dtype == torch.float64:
        return "float64 is computed by the reference backend only"
    if rows.shape[1] > MAX_DEPTH:
        return f"features have D = {rows.shape[1]}; it serves up to {MAX_DEPTH}"
    if max(problem.shape) >= 2**31:
        return "it counts rows and columns in 32 bits"
    missing = unavailable()
    if missing is not None or interpreted():
        return missing
    if torch.cuda.get_device_capability(rows.device) < (8, 0):
        return "the GPU's compute capability is below 8.0"
    return None


def statistics(problem: Problem, cache: Tensor | None) -> tuple[Tensor, Tensor]:
    """See `engine.Backend`; similarities are never stored, so the cache stays unused."""
    from . import launch

    if cache is not None:
        cache.zero_()  # only the interpreter gets one, being on a CPU
    with _current(problem.rows.device):
        return launch.statistics(problem)


def workspace(problem: Problem, shape: tuple[int, int]) -> Tensor:
    from . import launch

    return launch.workspace(problem, shape)


def gradient(problem: Problem, weights: Weights, out: GradientBlock) -> None:
    from . import launch

    with _current(problem.rows.device):
        launch.gradient(problem, weights, out)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device, whatever device its arguments lie on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
