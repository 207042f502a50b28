"""The C++ extension: element-wise statistics and gradient on the CPU, over library products."""

from __future__ import annotations

import functools
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
from . import materialised

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


def statistics(problem: Problem, cache: Tensor | None) -> tuple[Tensor, Tensor]:
    return materialised.statistics(problem, cache, _similarities, _block_statistics)


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
        _similarities(block, similarity)
    kept = _operands(block)
    _native.gradient(
        *kept.arguments,
        similarities=similarity.data_ptr(),
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


def _similarities(block: Problem, out: Tensor) -> None:
    """The library's product, or our own where that is faster: csrc/similarities_avx512.cpp."""
    assert _native is not None
    bf16 = block.rows.dtype == torch.bfloat16
    if block.rows.dtype == torch.float16 or not _own_product(bf16):
        products.similarities(block, out)
        return
    r, c = block.shape
    _native.similarities(
        r,
        c,
        block.rows.shape[1],
        rows=block.rows.data_ptr(),
        cols=block.cols.data_ptr(),
        bf16=bf16,
        out=out.data_ptr(),
        threads=torch.get_num_threads(),
    )


@functools.cache
def _own_product(bf16: bool) -> bool:
    """With AMX the library's bf16 product is the faster one."""
    assert _native is not None
    return _native.has_similarities(bf16) and not (bf16 and torch.cpu._is_amx_tile_supported())


def _block_statistics(
    block: Problem, similarity: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    assert _native is not None
    r, c = block.shape
    row_max, row_sum = torch.empty(r), torch.empty(r)
    col_max, col_sum = torch.empty(c), torch.empty(c)
    kept = _operands(block)
    _native.statistics(
        *kept.arguments,
        similarities=similarity.data_ptr(),
        row_max=row_max.data_ptr(),
        row_sum=row_sum.data_ptr(),
        col_max=col_max.data_ptr(),
        col_sum=col_sum.data_ptr(),
        threads=torch.get_num_threads(),
    )
    return (row_max, row_sum), (col_max, col_sum)


class _operands:
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
