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
    new = problem.rows.new_empty
    row_rest, row_positive = new((R,), dtype=torch.float32), new((R,), dtype=torch.float32)
    col_rest, col_positive = new((C,), dtype=torch.float32), new((C,), dtype=torch.float32)
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
    rows, cols = problem.rows, problem.cols
    nothing = rows.new_empty
    row_grad = torch.empty_like(rows) if need["rows"] else nothing((0,))
    col_grad = torch.empty_like(cols) if need["cols"] else nothing((0,))
    scale, bias, margin = _call(
        problem, weights, cache, need,
        row_sum=0, row_out=_pointer(row_grad), row_add=False,
        col_sum=0, col_out=_pointer(col_grad), col_add=False, factor=float(problem.scale),
    )  # fmt: skip
    if bias is not None and problem.bias is not None and problem.bias.ndim == 0:
        bias = bias.sum(dtype=torch.float64).to(torch.float32)
    return (
        row_grad,
        col_grad,
        rows.new_full((), scale, dtype=torch.float32) if need["scale"] else nothing((0,)),
        nothing((0,)) if bias is None else bias,
        nothing((0,)) if margin is None else margin,
    )


def add_gradients(sums: Sums, problem: Problem, weights: Weights, cache: Tensor) -> None:
    """Add all of the problem's matrix to `sums`: see `engine.add_gradients`."""
    need = sums.need
    scale, bias, margin = _call(
        problem, weights, cache, need,
        row_sum=sums.rows.tensor().data_ptr() if need["rows"] else 0, row_out=0,
        row_add=sums.rows.written > 0,
        col_sum=sums.cols.tensor().data_ptr() if need["cols"] else 0, col_out=0,
        col_add=sums.cols.written > 0, factor=1.0,
    )  # fmt: skip
    sums.rows.written, sums.cols.written = problem.shape
    if need["scale"]:
        sums.scale += scale
    if bias is not None:
        sums.bias += bias
    if margin is not None:
        sums.margin += margin


def _call(
    problem: Problem, weights: Weights, cache: Tensor, need: dict[str, bool], **outputs: float
) -> tuple[float, Tensor | None, Tensor | None]:
    """The scale's gradient, dbias [C] and dmargin [R, K], fp32; None where not needed."""
    from . import native

    assert native._native is not None
    new = problem.rows.new_zeros
    bias = new((problem.shape[1],), dtype=torch.float32) if need["bias"] else None
    margin = None
    if need["margin"] and problem.margin is not None:
        margin = new(problem.margin.shape, dtype=torch.float32)
    operands = native.Operands(problem)
    scale = native._native.fused_gradients(
        *operands.arguments,
        **_features(problem, cache),
        row_rest=weights.row_rest.data_ptr(),
        row_rest_grad=weights.row_rest_grad.data_ptr(),
        row_positive_grad=weights.row_positive_grad.data_ptr(),
        col_rest=weights.col_rest.data_ptr(),
        col_rest_grad=weights.col_rest_grad.data_ptr(),
        col_positive_grad=weights.col_positive_grad.data_ptr(),
        rounded=products.gradient_dtype(problem) == torch.bfloat16,
        scale_wanted=need["scale"],
        bias_grad=0 if bias is None else bias.data_ptr(),
        margin_grad=0 if margin is None else margin.data_ptr(),
        threads=torch.get_num_threads(),
        **outputs,
    )
    return scale, bias, margin


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
