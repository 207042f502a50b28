# mypy: disable-error-code="no-untyped-def, import-untyped, no-untyped-call, untyped-decorator"
"""What the kernels need beside the features, computed once a pass on the device.

Indices in 32 bits; a mark on every tile that holds a positive or a hard column, so that all other
tiles skip the comparisons; and, for the backward, the factors of `backward.py`.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ...problem import Problem, Weights
from .configs import Config
from .tile import LOG2E, RANGE
from .tuned import hard_count

BLOCK = 256
REFERENCE_BLOCK = 4096


@triton.jit
def _mark(marks_ptr, row, col, C, tiles, valid, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    at = (row // BLOCK_R).to(tl.int64) * tiles + col // BLOCK_C
    # An index past the end, which only the CPU can check beforehand, must not be written through.
    one = tl.full(at.shape, 1, tl.uint8)
    tl.store(marks_ptr + at, one, mask=valid & (col >= 0) & (col < C))


@triton.jit(do_not_specialize=["R", "C"])
def index_kernel(
    row_target_ptr,
    col_target_ptr,
    hard_ptr,
    row_target_out,
    col_target_out,
    hard_out,
    marks_ptr,  # [row tiles, col tiles], zeros
    R,
    C,
    K: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """int64 indices to int32, and 1 in `marks` for every tile that one of them points into.

    Programs may write the same 1 at the same time, which is the same result in any order.
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tiles = tl.cdiv(C, BLOCK_C)
    is_row, is_col = index < R, index < C
    target = tl.load(row_target_ptr + index, mask=is_row, other=-1).to(tl.int32)
    tl.store(row_target_out + index, target, mask=is_row)
    _mark(marks_ptr, index, target, C, tiles, is_row, BLOCK_R, BLOCK_C)
    target = tl.load(col_target_ptr + index, mask=is_col, other=-1).to(tl.int32)
    tl.store(col_target_out + index, target, mask=is_col)
    is_col &= (target >= 0) & (target < R)
    _mark(marks_ptr, target, index, C, tiles, is_col, BLOCK_R, BLOCK_C)
    for k in tl.static_range(K):
        at = index.to(tl.int64) * K + k
        hard = tl.load(hard_ptr + at, mask=is_row, other=-1).to(tl.int32)
        tl.store(hard_out + at, hard, mask=is_row)
        _mark(marks_ptr, index, hard, C, tiles, is_row, BLOCK_R, BLOCK_C)


@triton.jit
def _extend(rest_ptr, N, high, low, BLOCK: tl.constexpr):
    """The range of the finite values with these added."""
    for start in tl.range(0, N, BLOCK):
        index = start + tl.arange(0, BLOCK)
        rest = tl.load(rest_ptr + index, mask=index < N, other=float("inf"))
        finite = tl.abs(rest) < float("inf")
        high = tl.maximum(high, tl.where(finite, rest, float("-inf")))
        low = tl.minimum(low, tl.where(finite, rest, float("inf")))
    return high, low


@triton.jit(do_not_specialize=["R", "C"])
def reference_kernel(row_rest_ptr, col_rest_ptr, reference_ptr, R, C, BLOCK: tl.constexpr):
    """The largest log-sum-exp in base 2, or inf where one exponential cannot serve them all.

    Of the finite ones: whatever the reference, dL is 0 for a rest of inf and nan for one of nan.
    """
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    low = tl.full((BLOCK,), float("inf"), tl.float32)
    high, low = _extend(row_rest_ptr, R, high, low, BLOCK)
    high, low = _extend(col_rest_ptr, C, high, low, BLOCK)
    highest, lowest = tl.max(high, 0) * LOG2E, tl.min(low, 0) * LOG2E
    reference = tl.where(highest == float("-inf"), 0.0, highest)
    tl.store(reference_ptr, tl.where(highest - lowest < RANGE, reference, float("inf")))


@triton.jit
def _factor(rest_ptr, weight_ptr, out_ptr, reference, index, N):
    rest = tl.load(rest_ptr + index, mask=index < N, other=0.0)
    weight = tl.load(weight_ptr + index, mask=index < N, other=0.0)
    tl.store(out_ptr + index, weight * tl.exp2(reference - rest * LOG2E), mask=index < N)


@triton.jit(do_not_specialize=["R", "C"])
def factor_kernel(
    row_rest_ptr,
    row_rest_grad_ptr,
    col_rest_ptr,
    col_rest_grad_ptr,
    reference_ptr,
    row_factor_ptr,
    col_factor_ptr,
    R,
    C,
    BLOCK: tl.constexpr,
):
    """rest_grad * exp(reference - rest) of rows and columns."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    reference = tl.load(reference_ptr)
    _factor(row_rest_ptr, row_rest_grad_ptr, row_factor_ptr, reference, index, R)
    _factor(col_rest_ptr, col_rest_grad_ptr, col_factor_ptr, reference, index, C)


@dataclass(frozen=True)
class Operands:
    """A problem as the kernels take it: aligned, indices in int32, tiles marked."""

    rows: Tensor | TensorDescriptor  # [R, D]
    cols: Tensor | TensorDescriptor  # [C, D]
    scale: Tensor
    bias: Tensor | None
    row_target: Tensor  # [R] int32
    col_target: Tensor  # [C] int32
    hard_cols: Tensor | None  # [R, K] int32; None where there are no margins
    margin: Tensor | None
    row_group: Tensor | None  # [R] int32, ranks of the ids
    col_group: Tensor | None
    marks: Tensor  # [row tiles, col tiles] uint8: 1 where a positive or a hard column lies

    def arguments(self) -> tuple[Any, ...]:
        """In the kernels' order; one that is not given is any tensor, and is never read."""
        given = vars(self).values()
        return tuple(self.scale if tensor is None else tensor for tensor in given)


@dataclass(frozen=True)
class Factors:
    """The weights' products with exponentials; see `backward.py`."""

    reference: Tensor  # [], base 2, or inf: use two exponentials
    row: Tensor  # [R]
    col: Tensor  # [C]
    weights: Weights

    def arguments(self) -> tuple[Tensor, ...]:
        """In the kernel's order."""
        return (self.reference, self.row, self.col, *vars(self.weights).values())


def depth(features: Tensor) -> int:
    """D of the features as the kernels take them: their rows start at multiples of 16 bytes."""
    entries = 16 // features.element_size()
    return triton.cdiv(features.shape[1], entries) * entries


def _features(features: Tensor, block: list[int], tma: bool) -> Tensor | TensorDescriptor:
    """Other widths would load 2 to 8 bytes at a time, and spill: zeros are added to their rows."""
    padding = depth(features) - features.shape[1]
    features = F.pad(features, (0, padding)) if padding else _aligned(features)
    return TensorDescriptor.from_tensor(features, block) if tma else features


def operands(problem: Problem, config: Config) -> Operands:
    """Nothing of it waits for the device."""
    R, C = problem.shape
    device = problem.rows.device
    K = hard_count(problem)
    hard = problem.hard_cols if K else None
    row_target = torch.empty(R, dtype=torch.int32, device=device)
    col_target = torch.empty(C, dtype=torch.int32, device=device)
    hard_cols = torch.empty((R, K), dtype=torch.int32, device=device) if K else None
    tiles = triton.cdiv(R, config.rows), triton.cdiv(C, config.cols)
    marks = torch.zeros(tiles, dtype=torch.uint8, device=device)
    index_kernel[(triton.cdiv(max(R, C), BLOCK),)](
        _aligned(problem.row_target), _aligned(problem.col_target),
        _aligned(problem.row_target if hard is None else hard),
        row_target, col_target, row_target if hard_cols is None else hard_cols, marks, R, C,
        K=K, BLOCK_R=config.rows, BLOCK_C=config.cols, BLOCK=BLOCK,
    )  # fmt: skip
    row_group, col_group = _ranks(problem.row_group, problem.col_group)
    return Operands(
        _features(problem.rows, [config.rows, config.depth], config.tma),
        _features(problem.cols, [config.cols, config.depth], config.tma),
        _aligned(problem.scale),
        None if problem.bias is None else _aligned(problem.bias),
        row_target, col_target, hard_cols,
        None if hard_cols is None or problem.margin is None else _aligned(problem.margin),
        row_group, col_group, marks,
    )  # fmt: skip


def factors(weights: Weights) -> Factors:
    R, C = len(weights.row_rest), len(weights.col_rest)
    weights = Weights(*map(_aligned, vars(weights).values()))
    new = weights.row_rest.new_empty
    result = Factors(new(()), new(R), new(C), weights)
    reference_kernel[(1,)](
        weights.row_rest, weights.col_rest, result.reference, R, C, BLOCK=REFERENCE_BLOCK
    )
    factor_kernel[(triton.cdiv(max(R, C), BLOCK),)](
        weights.row_rest, weights.row_rest_grad, weights.col_rest, weights.col_rest_grad,
        result.reference, result.row, result.col, R, C, BLOCK=BLOCK,
    )  # fmt: skip
    return result


_operands: weakref.WeakKeyDictionary[Problem, tuple[Config, Operands]] = weakref.WeakKeyDictionary()
_factors: weakref.WeakKeyDictionary[Weights, Factors] = weakref.WeakKeyDictionary()


def operands_of_pass(problem: Problem, config: Config) -> Operands:
    """`operands`, kept while the backward walks over the blocks of one problem in one config."""
    kept = _operands.get(problem)
    if kept is None or kept[0] != config:
        kept = _operands[problem] = config, operands(problem, config)
    return kept[1]


def factors_of_pass(weights: Weights) -> Factors:
    """`factors`, likewise."""
    if weights not in _factors:
        _factors[weights] = factors(weights)
    return _factors[weights]


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor at an address that 16-byte loads can use; only a view can lie elsewhere."""
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _ranks(row_group: Tensor | None, col_group: Tensor | None) -> tuple[Tensor | None, ...]:
    """The ids' ranks among all ids: equal where the ids are, and 32 bits wide."""
    if row_group is None or col_group is None:
        return None, None
    ids = torch.cat((row_group, col_group)).sort()[0]
    return tuple(torch.searchsorted(ids, group, out_int32=True) for group in (row_group, col_group))
