"""The C++ extension's whole loss on a CPU, one call forward and one backward: csrc/fused_cpu.cpp.

Tiles of similarities stay in cache between product and exponentials, and the gradients' products
are our own as well. It serves fp32 and bf16 features where the processor multiplies faster so than
by torch's products. Results do not depend on the number of threads.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import products
from ..problem import Problem, Weights

if TYPE_CHECKING:
    from ..engine import Sums

_DTYPES = (torch.float32, torch.bfloat16)


def serves(native: ModuleType | None, problem: Problem) -> bool:
    rows = problem.rows
    if native is None or rows.dtype not in _DTYPES or rows.numel() == 0 or not len(problem.cols):
        return False
    return native.fused(rows.dtype == torch.bfloat16, *problem.shape, rows.shape[1])


def statistics(problem: Problem, cache: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """row_rest [R], row_positive [R], col_rest [C], col_positive [C]: see `engine.statistics`."""
    from . import native

    assert native._native is not None
    R, C = problem.shape
    row_rest, row_positive = torch.empty(R), torch.empty(R)
    col_rest, col_positive = torch.empty(C), torch.empty(C)
    operands = native.Operands(problem)
    native._native.fused_statistics(
        *operands.arguments,
        **_features(problem, cache),
        row_rest=row_rest.data_ptr(),
        row_positive=row_positive.data_ptr(),
        col_rest=col_rest.data_ptr(),
        col_positive=col_positive.data_ptr(),
        threads=torch.get_num_threads(),
    )
    return row_rest, row_positive, col_rest, col_positive


def gradients(
    problem: Problem, weights: Weights, cache: Tensor, need: dict[str, bool]
) -> tuple[Tensor, ...]:
    """dX, dY, dscale, dbias and dmargin: see `engine.gradients`."""
    nothing = problem.rows.new_empty
    row_grad, col_grad = (
        torch.empty_like(features) if need[name] else nothing((0,))
        for name, features in (("rows", problem.rows), ("cols", problem.cols))
    )
    scale, bias, margin = _small_sums(problem, need)
    _call(
        problem, weights, cache,
        row_sum=0, row_out=_pointer(row_grad), row_add=False,
        col_sum=0, col_out=_pointer(col_grad), col_add=False,
        factor=float(problem.scale), sums=(scale, bias, margin),
    )  # fmt: skip
    if problem.bias is not None and problem.bias.ndim == 0:
        bias = bias.sum(dtype=torch.float64).to(torch.float32)
    return (
        row_grad,
        col_grad,
        scale[0].to(torch.float32) if need["scale"] else nothing((0,)),
        bias if need["bias"] else nothing((0,)),
        margin if need["margin"] else nothing((0,)),
    )


def add_gradients(sums: Sums, problem: Problem, weights: Weights, cache: Tensor) -> None:
    """Add all of the problem's matrix to `sums`: see `engine.add_gradients`."""
    need, (R, C) = sums.need, problem.shape
    scale, bias, margin = _small_sums(problem, need)
    _call(
        problem, weights, cache,
        row_sum=sums.rows.tensor().data_ptr() if need["rows"] else 0, row_out=0,
        row_add=sums.rows.written > 0,
        col_sum=sums.cols.tensor().data_ptr() if need["cols"] else 0, col_out=0,
        col_add=sums.cols.written > 0,
        factor=1.0, sums=(scale, bias, margin),
    )  # fmt: skip
    sums.rows.written, sums.cols.written = R, C
    if need["scale"]:
        sums.scale += scale[0]
    if need["bias"]:
        sums.bias += bias
    if need["margin"]:
        sums.margin += margin


def _small_sums(problem: Problem, need: dict[str, bool]) -> tuple[Tensor, Tensor, Tensor]:
    """dscale [1] fp64, dbias [C] and dmargin [R, K] fp32, all 0; empty where not needed."""
    margin = () if problem.margin is None else problem.margin.shape
    return (
        torch.zeros(1 if need["scale"] else 0, dtype=torch.float64),
        torch.zeros(problem.shape[1] if need["bias"] else 0, dtype=torch.float32),
        torch.zeros(margin if need["margin"] else (0,), dtype=torch.float32),
    )


def _call(
    problem: Problem,
    weights: Weights,
    cache: Tensor,
    *,
    sums: tuple[Tensor, Tensor, Tensor],
    **outputs: float,
) -> None:
    from . import native

    assert native._native is not None
    scale, bias, margin = sums
    operands = native.Operands(problem)
    native._native.fused_gradients(
        *operands.arguments,
        **_features(problem, cache),
        row_rest=weights.row_rest.data_ptr(),
        row_rest_grad=weights.row_rest_grad.data_ptr(),
        row_positive_grad=weights.row_positive_grad.data_ptr(),
        col_rest=weights.col_rest.data_ptr(),
        col_rest_grad=weights.col_rest_grad.data_ptr(),
        col_positive_grad=weights.col_positive_grad.data_ptr(),
        rounded=products.gradient_dtype(problem) == torch.bfloat16,
        scale_grad=_pointer(scale),
        bias_grad=_pointer(bias),
        margin_grad=_pointer(margin),
        threads=torch.get_num_threads(),
        **outputs,
    )


def _features(problem: Problem, cache: Tensor) -> dict[str, int | bool]:
    rows, cols = problem.rows, problem.cols
    return {
        "depth": rows.shape[1],
        "row_features": rows.data_ptr(),
        "col_features": cols.data_ptr(),
        "bf16": rows.dtype == torch.bfloat16,
        "kept": _pointer(cache),
        "kept_rows": cache.numel() // cols.shape[0],
    }


def _pointer(tensor: Tensor) -> int:
    """0 for an empty one."""
    return tensor.data_ptr() if tensor.numel() else 0
