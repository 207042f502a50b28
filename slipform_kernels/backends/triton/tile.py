# mypy: disable-error-code="no-untyped-def, import-untyped, no-untyped-call, untyped-decorator"
"""One tile of the matrix in registers: similarities, and what both kernels do to them."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
# One exponential serves both directions where the log-sum-exps, or the maxima, of rows and columns
# lie this close together, in base 2: what then underflows is below 2^-46 of its row's sum.
RANGE = tl.constexpr(80.0)


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
def _halves(tile, ROWS: tl.constexpr, COLS: tl.constexpr):
    return tl.split(tl.permute(tl.reshape(tile, (ROWS, 2, COLS // 2)), (0, 2, 1)))


@triton.jit
def column_parts(tile, ROWS: tl.constexpr, COLS: tl.constexpr, PARTS: tl.constexpr):
    """The tile cut into 1, 2 or 4 ranges of columns, as a tuple in order.

    In the layout of a product a thread holds many columns, so vectors over the columns cost many
    registers; an epilogue that takes the tile in parts keeps them short.
    """
    if PARTS == 1:
        parts = (tile,)
    elif PARTS == 2:
        parts = _halves(tile, ROWS, COLS)
    else:
        left, right = _halves(tile, ROWS, COLS)
        first, second = _halves(left, ROWS, COLS // 2)
        third, fourth = _halves(right, ROWS, COLS // 2)
        parts = (first, second, third, fourth)  # type: ignore[assignment]
    return parts


@triton.jit
def margins(row_index, col_index, hard_ptr, margin_ptr, R, K: tl.constexpr):
    """sum_k margin_ik [hard_cols_ik = j]."""
    total = tl.zeros((row_index.shape[0], col_index.shape[0]), tl.float32)
    for k in tl.static_range(K):
        at = tl.minimum(row_index, R - 1).to(tl.int64) * K + k
        hard = tl.load(hard_ptr + at)
        margin = tl.load(margin_ptr + at)
        total += tl.where(hard[:, None] == col_index[None, :], margin[:, None], 0.0)
    return total


@triton.jit
def base2_logits(similarity, col_index, scale, bias_ptr, BIAS: tl.constexpr):
    """(scale * similarity + bias) / ln 2, for a `scale` that is divided already."""
    logits = similarity * scale
    if BIAS == "vector":
        logits += tl.load(bias_ptr + col_index)[None, :] * LOG2E
    elif BIAS == "scalar":
        logits += tl.load(bias_ptr) * LOG2E
    return logits


@triton.jit
def same_group(row_index, col_index, row_group_ptr, col_group_ptr):
    """[row_group_i = col_group_j]"""
    row_group = tl.load(row_group_ptr + row_index)
    col_group = tl.load(col_group_ptr + col_index)
    return row_group[:, None] == col_group[None, :]
