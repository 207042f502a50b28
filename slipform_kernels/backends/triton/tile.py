# mypy: disable-error-code="no-untyped-def, import-untyped, no-untyped-call, untyped-decorator"
"""One tile of the matrix in registers: similarities, then logits, as both kernels need them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def similarity_tile(
    rows_ptr,
    cols_ptr,
    row_index,
    col_index,
    R,
    C,
    D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """<x_i, y_j> [BLOCK_R, BLOCK_C] in fp32; indices past the end are clamped, to be masked."""
    row_offset = tl.minimum(row_index, R - 1).to(tl.int64) * D
    col_offset = tl.minimum(col_index, C - 1).to(tl.int64) * D
    depth = tl.arange(0, BLOCK_D)
    similarity = tl.zeros((BLOCK_R, BLOCK_C), dtype=tl.float32)
    for start in tl.range(0, D, BLOCK_D):
        at = start + depth
        row_ptrs = rows_ptr + row_offset[:, None] + at[None, :]
        col_ptrs = cols_ptr + col_offset[None, :] + at[:, None]
        if D % BLOCK_D == 0:
            x = tl.load(row_ptrs)
            y = tl.load(col_ptrs)
        else:
            x = tl.load(row_ptrs, mask=at[None, :] < D, other=0.0)
            y = tl.load(col_ptrs, mask=at[:, None] < D, other=0.0)
        similarity = tl.dot(x, y, similarity, input_precision=PRECISION)
    return similarity


@triton.jit
def add_margins(
    similarity,
    row_index,
    col_index,
    hard_ptr,
    margin_ptr,
    R,
    K: tl.constexpr,
):
    """similarity_ij + sum_k margin_ik [hard_cols_ik = j]."""
    for k in tl.static_range(K):
        at = tl.minimum(row_index, R - 1).to(tl.int64) * K + k
        hard = tl.load(hard_ptr + at)
        margin = tl.load(margin_ptr + at)
        similarity += tl.where(hard[:, None] == col_index[None, :], margin[:, None], 0.0)
    return similarity


@triton.jit
def any_inside(index, start, size: tl.constexpr):
    """Whether any of `index` lies in [start, start + size), as a scalar 0 or 1."""
    inside = (index >= start) & (index < start + size)
    return tl.max(inside.to(tl.int32), 0)


@triton.jit
def any_hard_inside(hard_ptr, row_index, start, R, K: tl.constexpr, BLOCK_C: tl.constexpr):
    """Whether any hard column of these rows lies in [start, start + BLOCK_C)."""
    found = 0
    for k in tl.static_range(K):
        hard = tl.load(hard_ptr + tl.minimum(row_index, R - 1).to(tl.int64) * K + k)
        found = tl.maximum(found, any_inside(hard, start, BLOCK_C))
    return found
