# mypy: disable-error-code="no-untyped-def, import-untyped, no-untyped-call, untyped-decorator"
"""Forward: log-sum-exps of rows and columns from one pass over the similarities.

A program owns a block of rows and a range of columns, and walks over its tiles. Rows keep a running
(maximum, sum) in registers; each tile writes its columns' (maximum, sum) to a place of their own.
`merge` then unites the parts in a fixed order. Exponents are in base 2.

The positives stay out of the sums, and margins and ragged edges need comparisons: only tiles that
hold such an entry take the branch that pays for them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tile import add_margins, any_hard_inside, any_inside, similarity_tile

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# One exponential serves rows and columns of a tile whose maxima lie this close together (base 2).
RANGE = tl.constexpr(80.0)
NEG_INF = tl.constexpr(float("-inf"))


@triton.jit
def _finite(maximum):
    """A reference for exponents: the maximum, or 0 where there is none."""
    return tl.where(maximum == NEG_INF, 0.0, maximum)


@triton.jit
def _max_and_sum(logits, axis: tl.constexpr):
    maximum = tl.max(logits, axis)
    reference = _finite(maximum)
    if axis == 1:
        total = tl.sum(tl.exp2(logits - reference[:, None]), 1)
    else:
        total = tl.sum(tl.exp2(logits - reference[None, :]), 0)
    return maximum, total


@triton.jit(do_not_specialize=["R", "C", "tiles_per_split"])
def statistics_kernel(
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
    row_max_ptr,  # [splits, R]
    row_sum_ptr,
    col_max_ptr,  # [row blocks, C]
    col_sum_ptr,
    R,
    C,
    tiles_per_split,
    D: tl.constexpr,
    K: tl.constexpr,  # hard columns with margins; 0 where there are none
    BIAS: tl.constexpr,  # "none", "scalar" or "vector"
    GROUPS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row_block = tl.program_id(0)
    split = tl.program_id(1)
    row_start = row_block * BLOCK_R
    row_index = row_start + tl.arange(0, BLOCK_R)
    row_valid = row_index < R
    row_target = tl.load(row_target_ptr + row_index, mask=row_valid, other=-1)
    scale = tl.load(scale_ptr) * LOG2E
    row_max = tl.full((BLOCK_R,), NEG_INF, tl.float32)
    row_sum = tl.zeros((BLOCK_R,), tl.float32)
    last = tl.minimum((split + 1) * tiles_per_split, tl.cdiv(C, BLOCK_C))
    for tile in tl.range(split * tiles_per_split, last):
        col_start = tile * BLOCK_C
        col_index = col_start + tl.arange(0, BLOCK_C)
        col_valid = col_index < C
        col_target = tl.load(col_target_ptr + col_index, mask=col_valid, other=-1)
        logits = similarity_tile(
            rows_ptr, cols_ptr, row_index, col_index, R, C, D, BLOCK_R, BLOCK_C, BLOCK_D, PRECISION
        )
        special = any_inside(row_target, col_start, BLOCK_C)
        special = tl.maximum(special, any_inside(col_target, row_start, BLOCK_R))
        ragged = (row_start + BLOCK_R > R) | (col_start + BLOCK_C > C)
        special = tl.maximum(special, ragged.to(tl.int32))
        if K > 0:
            hard = any_hard_inside(hard_ptr, row_index, col_start, R, K, BLOCK_C)
            if hard > 0:
                logits = add_margins(logits, row_index, col_index, hard_ptr, margin_ptr, R, K)
        if BIAS == "vector":
            bias = tl.load(bias_ptr + col_index, mask=col_valid, other=0.0) * LOG2E
            logits = logits * scale + bias[None, :]
        elif BIAS == "scalar":
            logits = logits * scale + tl.load(bias_ptr) * LOG2E
        else:
            logits = logits * scale
        if GROUPS:
            row_group = tl.load(row_group_ptr + row_index, mask=row_valid, other=0)
            col_group = tl.load(col_group_ptr + col_index, mask=col_valid, other=0)
            logits = tl.where(row_group[:, None] == col_group[None, :], NEG_INF, logits)
        if special > 0:
            valid = row_valid[:, None] & col_valid[None, :]
            kept = valid & (row_target[:, None] != col_index[None, :])
            tile_row_max, tile_row_sum = _max_and_sum(tl.where(kept, logits, NEG_INF), 1)
            kept = valid & (col_target[None, :] != row_index[:, None])
            tile_col_max, tile_col_sum = _max_and_sum(tl.where(kept, logits, NEG_INF), 0)
        else:
            tile_row_max = tl.max(logits, 1)
            tile_col_max = tl.max(logits, 0)
            largest = tl.max(tile_row_max, 0)
            smallest = tl.minimum(tl.min(tile_row_max, 0), tl.min(tile_col_max, 0))
            if largest - smallest < RANGE:
                exponentials = tl.exp2(logits - largest)
                tile_row_sum = tl.sum(exponentials, 1) * tl.exp2(largest - tile_row_max)
                tile_col_sum = tl.sum(exponentials, 0) * tl.exp2(largest - tile_col_max)
            else:
                reference = _finite(tile_row_max)
                tile_row_sum = tl.sum(tl.exp2(logits - reference[:, None]), 1)
                reference = _finite(tile_col_max)
                tile_col_sum = tl.sum(tl.exp2(logits - reference[None, :]), 0)
        at = row_block.to(tl.int64) * C + col_index
        tl.store(col_max_ptr + at, tile_col_max, mask=col_valid)
        tl.store(col_sum_ptr + at, tile_col_sum, mask=col_valid)
        new_max = tl.maximum(row_max, tile_row_max)
        reference = _finite(new_max)
        row_sum = row_sum * tl.exp2(row_max - reference) + tile_row_sum * tl.exp2(
            tile_row_max - reference
        )
        row_max = new_max
    at = split.to(tl.int64) * R + row_index
    tl.store(row_max_ptr + at, row_max, mask=row_valid)
    tl.store(row_sum_ptr + at, row_sum, mask=row_valid)


@triton.jit(do_not_specialize=["parts", "N"])
def merge_kernel(max_ptr, sum_ptr, out_ptr, parts, N, BLOCK: tl.constexpr):
    """Natural log-sum-exp [N] of `parts` (maximum, sum) pairs [parts, N] in base 2."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = index < N
    maximum = tl.full((BLOCK,), NEG_INF, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    at = index.to(tl.int64)
    for _ in tl.range(0, parts):
        part_max = tl.load(max_ptr + at, mask=valid, other=NEG_INF)
        part_sum = tl.load(sum_ptr + at, mask=valid, other=0.0)
        new = tl.maximum(maximum, part_max)
        reference = _finite(new)
        total = total * tl.exp2(maximum - reference) + part_sum * tl.exp2(part_max - reference)
        maximum = new
        at += N
    tl.store(out_ptr + index, (maximum + tl.log2(total)) * LN2, mask=valid)
