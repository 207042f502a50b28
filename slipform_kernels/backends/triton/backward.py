# mypy: disable-error-code="no-untyped-def, import-untyped, no-untyped-call, untyped-decorator"
"""Backward: dL of a block, recomputed tile by tile, and the sums over it.

    dL_ij = a_i exp(L_ij - row_rest_i) off row i's positive, b_i at it; columns likewise

Each program writes one tile of the workspace. Sums over a row's (column's) tiles go to a place of
their own and are added afterwards, in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tile import add_margins, any_hard_inside, any_inside, similarity_tile

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["R", "C", "first_row", "first_col", "stride16"])
def gradient_kernel(
    rows_ptr,
    cols_ptr,
    scale_ptr,
    bias_ptr,
    row_target_ptr,
    col_target_ptr,
    hard_ptr,
    margin_ptr,
    row_group_ptr,
    col_group_ptr,
    row_rest_ptr,
    row_rest_grad_ptr,
    row_positive_grad_ptr,
    col_rest_ptr,
    col_rest_grad_ptr,
    col_positive_grad_ptr,
    logits_grad_ptr,  # [R, stride]
    scale_grad_ptr,  # [col blocks, R]
    bias_grad_ptr,  # [row blocks, C]
    margin_grad_ptr,  # [R, K]
    R,  # end of the block's rows and columns in the whole problem
    C,
    first_row,  # and where they start
    first_col,
    stride16,
    D: tl.constexpr,
    K: tl.constexpr,
    BIAS: tl.constexpr,
    GROUPS: tl.constexpr,
    SCALE_GRAD: tl.constexpr,
    BIAS_GRAD: tl.constexpr,
    MARGIN_GRAD: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row_block = tl.program_id(0)
    col_block = tl.program_id(1)
    row_start = first_row + row_block * BLOCK_R
    col_start = first_col + col_block * BLOCK_C
    row_index = row_start + tl.arange(0, BLOCK_R)
    col_index = col_start + tl.arange(0, BLOCK_C)
    row_valid = row_index < R
    col_valid = col_index < C
    similarity = similarity_tile(
        rows_ptr, cols_ptr, row_index, col_index, R, C, D, BLOCK_R, BLOCK_C, BLOCK_D, PRECISION
    )
    has_hard = 0
    if K > 0:
        has_hard = any_hard_inside(hard_ptr, row_index, col_start, R, K, BLOCK_C)
        if has_hard > 0:
            similarity = add_margins(similarity, row_index, col_index, hard_ptr, margin_ptr, R, K)
    logits = similarity * (tl.load(scale_ptr) * LOG2E)
    if BIAS == "vector":
        bias = tl.load(bias_ptr + col_index, mask=col_valid, other=0.0) * LOG2E
        logits += bias[None, :]
    elif BIAS == "scalar":
        logits += tl.load(bias_ptr) * LOG2E
    row_rest = tl.load(row_rest_ptr + row_index, mask=row_valid, other=float("inf")) * LOG2E
    col_rest = tl.load(col_rest_ptr + col_index, mask=col_valid, other=float("inf")) * LOG2E
    row_weight = tl.load(row_rest_grad_ptr + row_index, mask=row_valid, other=0.0)
    col_weight = tl.load(col_rest_grad_ptr + col_index, mask=col_valid, other=0.0)
    by_row = row_weight[:, None] * tl.exp2(logits - row_rest[:, None])
    by_col = col_weight[None, :] * tl.exp2(logits - col_rest[None, :])
    if GROUPS:
        row_group = tl.load(row_group_ptr + row_index, mask=row_valid, other=0)
        col_group = tl.load(col_group_ptr + col_index, mask=col_valid, other=0)
        same = row_group[:, None] == col_group[None, :]
        by_row = tl.where(same, 0.0, by_row)
        by_col = tl.where(same, 0.0, by_col)
    row_target = tl.load(row_target_ptr + row_index, mask=row_valid, other=-1)
    col_target = tl.load(col_target_ptr + col_index, mask=col_valid, other=-1)
    if any_inside(row_target, col_start, BLOCK_C) > 0:
        own = tl.load(row_positive_grad_ptr + row_index, mask=row_valid, other=0.0)
        by_row = tl.where(row_target[:, None] == col_index[None, :], own[:, None], by_row)
    if any_inside(col_target, row_start, BLOCK_R) > 0:
        own = tl.load(col_positive_grad_ptr + col_index, mask=col_valid, other=0.0)
        by_col = tl.where(col_target[None, :] == row_index[:, None], own[None, :], by_col)
    grad = by_row + by_col
    valid = row_valid[:, None] & col_valid[None, :]
    if (row_start + BLOCK_R > R) | (col_start + BLOCK_C > C):
        grad = tl.where(valid, grad, 0.0)
    row_at = row_block * BLOCK_R + tl.arange(0, BLOCK_R)
    col_at = col_block * BLOCK_C + tl.arange(0, BLOCK_C)
    out = logits_grad_ptr + row_at.to(tl.int64)[:, None] * (stride16 * 16) + col_at[None, :]
    tl.store(out, grad.to(logits_grad_ptr.dtype.element_ty), mask=valid)
    if SCALE_GRAD:
        at = col_block.to(tl.int64) * (R - first_row) + row_at
        # A clamped row or column past the end may hold inf or nan; its dL is 0.
        product = tl.where(grad == 0.0, 0.0, grad * similarity)
        tl.store(scale_grad_ptr + at, tl.sum(product, 1), mask=row_valid)
    if BIAS_GRAD:
        at = row_block.to(tl.int64) * (C - first_col) + col_at
        tl.store(bias_grad_ptr + at, tl.sum(grad, 0), mask=col_valid)
    if MARGIN_GRAD and has_hard > 0:
        scale = tl.load(scale_ptr)
        for k in tl.static_range(K):
            hard = tl.load(hard_ptr + row_index.to(tl.int64) * K + k, mask=row_valid, other=-1)
            hit = hard[:, None] == col_index[None, :]
            value = scale * tl.sum(tl.where(hit & col_valid[None, :], grad, 0.0), 1)
            here = (hard >= col_start) & (hard < tl.minimum(col_start + BLOCK_C, C))
            at = row_at.to(tl.int64) * K + k
            tl.store(margin_grad_ptr + at, value, mask=row_valid & here)
