"""The C++ extension on the CPU: fused with products of its own where those are the faster ones (see
native_fused.py), else element-wise over library products.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .. import products
from ..engine import GradientBlock
from ..problem import Problem, Weights
from . import materialised, native_fused

name = "native"
device_type = "cpu"

_native: ModuleType | None = None
_import_error = ""
try:
    _native = importlib.import_module("slipform_kernels._native")
except ImportError as error:
    _import_error = str(error)


def unavailable() -> str | None:
    """None, or why the extension cannot be used in this process."""
    if _native is None:
        return f"the extension is not installed: {build_record().get('reason') or _import_error}"
    try:
        _native.level()
    except RuntimeError as error:
        return str(error)
    return None


def build_record() -> dict[str, Any]:
    """What the build has noted of itself; empty where there is no record."""
    try:
        return json.loads((Path(__file__).parent.parent / "_build_info.json").read_text())
    except (OSError, ValueError):
        return {}


def supports(problem: Problem) -> str | None:
    """None for fp32, bf16 and fp16 on the CPU, where the extension is built."""
    if problem.rows.device.type != "cpu":
        return f"it computes on the CPU; the features are on {problem.rows.device}"
    if problem.rows.dtype == torch.float64:
        return "float64 is computed by the reference backend only"
    return unavailable()


def whole(problem: Problem) -> ModuleType | None:
    """What computes the problem in two calls, see `engine.whole`, or None."""
    return native_fused if native_fused.serves(_native, problem) else None


def memory(entries: int) -> Tensor:
    """[entries] fp32, uninitialised, in memory that the process keeps from one step to the next.

    Fresh memory of the size of the matrix costs as much, page by page, as computing it anew.
    """
    if _native is None or entries == 0:
        return torch.empty(entries, dtype=torch.float32)
    return torch.frombuffer(_native.Memory(4 * entries), dtype=torch.float32)


def computes(rest: Tensor) -> bool:
    """Whether the three functions below serve: on fp32 numbers of a CPU, with the extension."""
    return _native is not None and rest.device.type == "cpu" and rest.dtype == torch.float32


def positive_loss(rest: Tensor, positive: Tensor, target: Tensor | None) -> Tensor:
    """`reference.positive_loss` without a graph; all [A], contiguous."""
    loss = torch.empty_like(rest)
    _positive_losses(rest, positive, target, loss)
    return loss


def positive_loss_sum(rest: Tensor, positive: Tensor, target: Tensor | None) -> float:
    """Sum of `positive_loss`."""
    return _positive_losses(rest, positive, target, None)


def _positive_losses(
    rest: Tensor, positive: Tensor, target: Tensor | None, loss: Tensor | None
) -> float:
    assert _native is not None
    target = None if target is None else target.contiguous()
    return _native.positive_losses(
        len(rest), rest.data_ptr(), positive.data_ptr(), _pointer(target), _pointer(loss)
    )


def pulls(
    grad: Tensor, rest: Tensor, positive: Tensor, target: Tensor | None, factor: float
) -> tuple[Tensor, Tensor]:
    """`ops.pulls`; all [A], or `grad` of one number."""
    assert _native is not None
    pull, minus_pull = torch.empty_like(rest), torch.empty_like(rest)
    target = None if target is None else target.contiguous()
    grad = grad.contiguous()
    _native.pulls(
        len(rest), rest.data_ptr(), positive.data_ptr(), _pointer(target), grad.data_ptr(),
        grad.ndim, factor, pull.data_ptr(), minus_pull.data_ptr(),
    )  # fmt: skip
    return pull, minus_pull


def statistics(problem: Problem, cache: Tensor | None) -> tuple[Tensor, Tensor]:
    return materialised.statistics(problem, cache, products.similarities, _block_statistics)


def workspace(problem: Problem, shape: tuple[int, int]) -> Tensor:
    return problem.rows.new_empty(shape, dtype=products.gradient_dtype(problem))


def gradient(problem: Problem, weights: Weights, out: GradientBlock) -> None:
    """dL of the block and its sums; the formulas stand in csrc/elementwise_cpu.cpp."""
    assert _native is not None
    block, weights = problem.block(out.rows, out.cols), weights.block(out.rows, out.cols)
    similarity = out.cache
    if similarity is None:
        similarity = out.logits
        if similarity.dtype != torch.float32:
            similarity = torch.empty(block.shape, dtype=torch.float32)
        products.similarities(block, similarity)
    kept = Operands(block)
    _native.gradient(
        *kept.arguments,
        similarities=similarity.data_ptr(),
        stride=similarity.stride(0),
        row_rest=weights.row_rest.data_ptr(),
        row_rest_grad=weights.row_rest_grad.data_ptr(),
        row_positive_grad=weights.row_positive_grad.data_ptr(),
        col_rest=weights.col_rest.data_ptr(),
        col_rest_grad=weights.col_rest_grad.data_ptr(),
        col_positive_grad=weights.col_positive_grad.data_ptr(),
        logits_grad=out.logits.data_ptr(),
        bf16=out.logits.dtype == torch.bfloat16,
        scale_grad=_pointer(out.scale),
        bias_grad=_pointer(out.bias),
        margin_grad=_pointer(out.margin),
        threads=torch.get_num_threads(),
    )


def _block_statistics(
    block: Problem, similarity: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    assert _native is not None
    r, c = block.shape
    row_max, row_sum = similarity.new_empty((2, r)).unbind()
    col_max, col_sum = similarity.new_empty((2, c)).unbind()
    kept = Operands(block)
    _native.statistics(
        *kept.arguments,
        similarities=similarity.data_ptr(),
        stride=similarity.stride(0),
        row_max=row_max.data_ptr(),
        row_sum=row_sum.data_ptr(),
        col_max=col_max.data_ptr(),
        col_sum=col_sum.data_ptr(),
        threads=torch.get_num_threads(),
    )
    return (row_max, row_sum), (col_max, col_sum)


class Operands:
    """The block's sizes and pointers in the order of csrc's `Block`, keeping the tensors alive."""

    def __init__(self, block: Problem):
        r, c = block.shape
        bias = block.bias
        self.bias = bias if bias is not None and bias.ndim == 1 else None
        scalar_bias = float(bias) if bias is not None and bias.ndim == 0 else 0.0
        self.block = block
        self.arguments = (
            r,
            c,
            0 if block.hard_cols is None else block.hard_cols.shape[1],
            float(block.scale),
            scalar_bias,
            _pointer(self.bias),
            block.row_target.data_ptr(),
            block.col_target.data_ptr(),
            _pointer(block.hard_cols),
            _pointer(block.margin),
            _pointer(block.row_group),
            _pointer(block.col_group),
        )


def _pointer(tensor: Tensor | None) -> int:
    if tensor is None:
        return 0
    assert tensor.is_contiguous()
    return tensor.data_ptr()
