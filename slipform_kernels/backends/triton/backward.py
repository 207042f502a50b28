# mypy: disable-error-code="no-untyped-def, import-untyped, no-untyped-call, untyped-decorator"
"""Backward: dL of a block, recomputed tile by tile, and the sums over it.

    dL_ij = a_i exp(L_ij - row_rest_i) off row i's positive, b_i at it; columns likewise

Where all log-sum-exps lie close together, one exponential serves both directions: with a common
reference c, dL_ij = exp(L_ij - c) (a_i exp(c - row_rest_i) + a'_j exp(c - col_rest_j)), and the two
factors are computed beforehand (`prepare.py`). Special tiles take the formula as it stands: marked
ones, which hold a positive or a hard column, ragged ones, and all where the log-sum-exps lie apart.

Each program writes one tile of the workspace. Sums over a row's (column's) tiles go to a place of
their own and are added afterwards, in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tile import LOG2E, base2_logits, column_parts, margins, same_group, similarity_tile


@triton.jit
def _plain_tile(
    similarity, row_index, col_index, scale, bias_ptr, row_group_ptr, col_group_ptr,
    reference, row_factor_ptr, col_factor_ptr, BIAS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """dL of a tile that is not special, with one exponential."""
    logits = base2_logits(similarity, col_index, scale, bias_ptr, BIAS)
    row_factor = tl.load(row_factor_ptr + row_index)
    col_factor = tl.load(col_factor_ptr + col_index)
    grad = tl.exp2(logits - reference) * (row_factor[:, None] + col_factor[None, :])
    if GROUPS:
        same = same_group(row_index, col_index, row_group_ptr, col_group_ptr)
        grad = tl.where(same, 0.0, grad)
    return grad


@triton.jit
def _special_tile(
    similarity, row_index, col_index, R, C, scale, bias_ptr,
    row_target_ptr, col_target_ptr, row_group_ptr, col_group_ptr,
    row_rest_ptr, row_rest_grad_ptr, row_positive_grad_ptr,
    col_rest_ptr, col_rest_grad_ptr, col_positive_grad_ptr,
    BIAS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """dL of any tile, 0 past the end; `similarity` has its margins."""
    row = tl.minimum(row_index, R - 1)
    col = tl.minimum(col_index, C - 1)
    logits = base2_logits(similarity, col, scale, bias_ptr, BIAS)
    rest = tl.load(row_rest_ptr + row) * LOG2E
    by_row = tl.load(row_rest_grad_ptr + row)[:, None] * tl.exp2(logits - rest[:, None])
    rest = tl.load(col_rest_ptr + col) * LOG2E
    by_col = tl.load(col_rest_grad_ptr + col)[None, :] * tl.exp2(logits - rest[None, :])
    if GROUPS:
        same = same_group(row, col, row_group_ptr, col_group_ptr)
        by_row = tl.where(same, 0.0, by_row)
        by_col = tl.where(same, 0.0, by_col)
    hit = tl.load(row_target_ptr + row)[:, None] == col[None, :]
    by_row = tl.where(hit, tl.load(row_positive_grad_ptr + row)[:, None], by_row)
    hit = tl.load(col_target_ptr + col)[None, :] == row[:, None]
    by_col = tl.where(hit, tl.load(col_positive_grad_ptr + col)[None, :], by_col)
    # In two steps: a mask of both would spill a register on sm_90.
    grad = tl.where((row_index < R)[:, None], by_row + by_col, 0.0)
    return tl.where((col_index < C)[None, :], grad, 0.0)


@triton.jit
def _marked(
    marks_ptr, row_start, col_start, R, C, mark_cols,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Whether a tile that this one overlaps is marked: there are four where blocks start between
    multiples of the tile."""
    top, bottom = row_start // BLOCK_R, (tl.minimum(row_start + BLOCK_R, R) - 1) // BLOCK_R
    left, right = col_start // BLOCK_C, (tl.minimum(col_start + BLOCK_C, C) - 1) // BLOCK_C
    upper = marks_ptr + top.to(tl.int64) * mark_cols
    lower = marks_ptr + bottom.to(tl.int64) * mark_cols
    found = tl.load(upper + left) | tl.load(upper + right)
    return (found | tl.load(lower + left) | tl.load(lower + right)) > 0


@triton.jit
def _store_margin_grads(
    margin_grad_ptr, hard_ptr, grad, scale, row_index, row_at, col_index, col_start, col_end, R,
    K: tl.constexpr,
):  # fmt: skip
    """scale * dL at the hard columns that lie in [col_start, col_end), each in just one tile."""
    for k in tl.static_range(K):
        hard = tl.load(hard_ptr + tl.minimum(row_index, R - 1).to(tl.int64) * K + k)
        at_hard = tl.where(hard[:, None] == col_index[None, :], grad, 0.0)
        here = (hard >= col_start) & (hard < col_end) & (row_index < R)
        at = row_at.to(tl.int64) * K + k
        tl.store(margin_grad_ptr + at, scale * tl.sum(at_hard, 1), mask=here)


@triton.jit
def _write_part(
    similarity, special, out, row_index, col_index, row_at, R, C, scale, bias_ptr,
    row_target_ptr, col_target_ptr, hard_ptr, margin_ptr, row_group_ptr, col_group_ptr,
    reference, row_factor_ptr, col_factor_ptr,
    row_rest_ptr, row_rest_grad_ptr, row_positive_grad_ptr,
    col_rest_ptr, col_rest_grad_ptr, col_positive_grad_ptr, margin_grad_ptr,
    col_start, WIDTH: tl.constexpr, K: tl.constexpr, BIAS: tl.constexpr, GROUPS: tl.constexpr,
    MARGIN_GRAD: tl.constexpr,
):  # fmt: skip
    """Store dL of a part of the tile; returns it, and the similarities with margins.

    Past the end dL is 0, and the similarity 0 or that of a valid entry: sums over both hold.
    """
    if special:
        if K > 0:
            similarity += margins(row_index, col_index, hard_ptr, margin_ptr, R, K)
        grad = _special_tile(
            similarity, row_index, col_index, R, C, scale * LOG2E, bias_ptr,
            row_target_ptr, col_target_ptr, row_group_ptr, col_group_ptr,
            row_rest_ptr, row_rest_grad_ptr, row_positive_grad_ptr,
            col_rest_ptr, col_rest_grad_ptr, col_positive_grad_ptr, BIAS, GROUPS,
        )  # fmt: skip
        valid = (row_index < R)[:, None] & (col_index < C)[None, :]
        tl.store(out, grad.to(out.dtype.element_ty), mask=valid)
        if MARGIN_GRAD:
            _store_margin_grads(
                margin_grad_ptr, hard_ptr, grad, scale, row_index, row_at, col_index,
                col_start, tl.minimum(col_start + WIDTH, C), R, K,
            )  # fmt: skip
    else:
        grad = _plain_tile(
            similarity, row_index, col_index, scale * LOG2E, bias_ptr,
            row_group_ptr, col_group_ptr, reference, row_factor_ptr, col_factor_ptr, BIAS, GROUPS,
        )  # fmt: skip
        tl.store(out, grad.to(out.dtype.element_ty))
    return grad, similarity


@triton.jit(do_not_specialize=["R", "C", "first_row", "first_col", "stride16", "mark_cols"])
def gradient_kernel(
    rows_ptr, cols_ptr, scale_ptr, bias_ptr, row_target_ptr, col_target_ptr, hard_ptr, margin_ptr,
    row_group_ptr, col_group_ptr,
    marks_ptr,  # [row tiles, mark_cols] of the whole problem, see `prepare.py`
    reference_ptr, row_factor_ptr, col_factor_ptr,
    row_rest_ptr, row_rest_grad_ptr, row_positive_grad_ptr,
    col_rest_ptr, col_rest_grad_ptr, col_positive_grad_ptr,
    logits_grad_ptr,  # [r, 16 stride16]
    scale_grad_ptr,  # [col blocks, r]
    bias_grad_ptr,  # [row blocks, c]
    margin_grad_ptr,  # [r, K]
    R, C,  # end of the block's rows and columns in the whole problem
    first_row, first_col,  # and where they start
    stride16, mark_cols,
    D: tl.constexpr, K: tl.constexpr, BIAS: tl.constexpr, GROUPS: tl.constexpr,
    SCALE_GRAD: tl.constexpr, BIAS_GRAD: tl.constexpr, MARGIN_GRAD: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
    PARTS: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    row_block, col_block = tl.program_id(0), tl.program_id(1)
    row_start = first_row + row_block * BLOCK_R
    col_start = first_col + col_block * BLOCK_C
    row_at = row_block * BLOCK_R + tl.arange(0, BLOCK_R)
    row_index = first_row + row_at
    tile = similarity_tile(
        rows_ptr, cols_ptr, row_start, col_start, R, C,
        D, BLOCK_R, BLOCK_C, BLOCK_D, PRECISION, TMA,
    )  # fmt: skip
    reference = tl.load(reference_ptr)
    ragged = (row_start + BLOCK_R > R) | (col_start + BLOCK_C > C)
    marked = _marked(marks_ptr, row_start, col_start, R, C, mark_cols, BLOCK_R, BLOCK_C)
    special = ragged | marked | (reference == float("inf"))
    scale = tl.load(scale_ptr)
    parts = column_parts(tile, PARTS)
    WIDTH: tl.constexpr = BLOCK_C // PARTS
    scale_grad = tl.zeros((BLOCK_R,), tl.float32)
    for part in tl.static_range(PARTS):
        col_at = col_block * BLOCK_C + part * WIDTH + tl.arange(0, WIDTH)
        col_index = first_col + col_at
        out = logits_grad_ptr + row_at.to(tl.int64)[:, None] * (stride16 * 16) + col_at[None, :]
        grad, similarity = _write_part(
            parts[part], special, out, row_index, col_index, row_at, R, C, scale, bias_ptr,
            row_target_ptr, col_target_ptr, hard_ptr, margin_ptr, row_group_ptr, col_group_ptr,
            reference, row_factor_ptr, col_factor_ptr,
            row_rest_ptr, row_rest_grad_ptr, row_positive_grad_ptr,
            col_rest_ptr, col_rest_grad_ptr, col_positive_grad_ptr, margin_grad_ptr,
            col_start + part * WIDTH, WIDTH, K, BIAS, GROUPS, MARGIN_GRAD,
        )  # fmt: skip
        if SCALE_GRAD:
            scale_grad += tl.sum(grad * similarity, 1)
        if BIAS_GRAD:
            bias_at = row_block.to(tl.int64) * (C - first_col) + col_at
            tl.store(bias_grad_ptr + bias_at, tl.sum(grad, 0), mask=col_index < C)
    if SCALE_GRAD:
        at = col_block.to(tl.int64) * (R - first_row) + row_at
        tl.store(scale_grad_ptr + at, scale_grad, mask=row_index < R)
