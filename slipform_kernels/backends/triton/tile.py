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
    rows, cols, row_start, col_start, R, C, D: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """<x_i, y_j> [BLOCK_R, BLOCK_C] in fp32; what lies past the end is finite or a copy of a valid
    row's or column's, to be masked.

    `rows` and `cols` are tensor descriptors where TMA is set, else pointers.
    """
    similarity = tl.zeros((BLOCK_R, BLOCK_C), dtype=tl.float32)
    if TMA:
        for start in tl.range(0, D, BLOCK_D):
            x = rows.load([row_start, start])
            y = cols.load([col_start, start])
            similarity = tl.dot(x, y.T, similarity, input_precision=PRECISION)
    else:
        row_index = tl.minimum(row_start + tl.arange(0, BLOCK_R), R - 1)
        col_index = tl.minimum(col_start + tl.arange(0, BLOCK_C), C - 1)
        depth = tl.arange(0, BLOCK_D)
        for start in tl.range(0, D, BLOCK_D):
            at = start + depth
            row_ptrs = rows + row_index.to(tl.int64)[:, None] * D + at[None, :]
            col_ptrs = cols + col_index.to(tl.int64)[None, :] * D + at[:, None]
            if D % BLOCK_D == 0:
                x = tl.load(row_ptrs)
                y = tl.load(col_ptrs)
            else:
                x = tl.load(row_ptrs, mask=at[None, :] < D, other=0.0)
                y = tl.load(col_ptrs, mask=at[:, None] < D, other=0.0)
            similarity = tl.dot(x, y, similarity, input_precision=PRECISION)
    return similarity


@triton.jit
def _halves(tile):
    pairs = tl.reshape(tile, (tile.shape[0], 2, tile.shape[1] // 2))
    return tl.split(tl.permute(pairs, (0, 2, 1)))


@triton.jit
def _quarters(tile):
    left, right = _halves(tile)
    return _halves(left) + _halves(right)


@triton.jit
def column_parts(tile, PARTS: tl.constexpr):
    """The tile cut into 1, 2, 4 or 8 ranges of columns, as a tuple in order.

    In the layout of a product a thread holds many columns, so vectors over the columns cost many
    registers; an epilogue that takes the tile in parts keeps them short.
    """
    if PARTS == 1:
        parts = (tile,)
    elif PARTS == 2:
        parts = _halves(tile)
    elif PARTS == 4:
        parts = _quarters(tile)
    else:
        left, right = _halves(tile)
        parts = _quarters(left) + _quarters(right)
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
