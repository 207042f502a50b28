# mypy: disable-error-code="no-untyped-def, import-untyped, no-untyped-call, untyped-decorator"
"""Forward: log-sum-exps of rows and columns from one pass over the similarities.

A program owns a block of rows and a range of columns, and walks over its tiles. Rows keep a running
(maximum, sum) in registers; each tile writes its columns' (maximum, sum) to a place of their own.
`merge` then unites the parts in a fixed order. Exponents are in base 2.

The positives stay out of the sums, and margins and ragged edges need comparisons. Only special
tiles take the branch that pays for them: marked ones, which hold a positive or a hard column
(`prepare.py`), and ragged ones.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tile import (
    LOG2E,
    RANGE,
    base2_logits,
    column_parts,
    margins,
    same_group,
    similarity_tile,
)

LN2 = tl.constexpr(0.6931471805599453)
NEG_INF = tl.constexpr(float("-inf"))


@triton.jit
def _finite(maximum):
    """A reference for exponents: the maximum, or 0 where there is none."""
    return tl.where(maximum == NEG_INF, 0.0, maximum)


@triton.jit
def _row_max_and_sum(logits):
    maximum = tl.max(logits, 1)
    return maximum, tl.sum(tl.exp2(logits - _finite(maximum)[:, None]), 1)


@triton.jit
def _col_max_and_sum(logits):
    maximum = tl.max(logits, 0)
    return maximum, tl.sum(tl.exp2(logits - _finite(maximum)[None, :]), 0)


@triton.jit
def _add_tile(
    row_max, row_sum, similarity, special, row_index, col_index, col_at, scale, bias_ptr,
    row_target_ptr, col_target_ptr, hard_ptr, margin_ptr, row_group_ptr, col_group_ptr,
    col_max_ptr, col_sum_ptr, R, C, K: tl.constexpr, BIAS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """The rows' running (maximum, sum) with this tile added; the columns' are stored."""
    row_clamped = tl.minimum(row_index, R - 1)
    col_clamped = tl.minimum(col_index, C - 1)
    logits = base2_logits(similarity, col_clamped, scale, bias_ptr, BIAS)
    if GROUPS:
        same = same_group(row_clamped, col_clamped, row_group_ptr, col_group_ptr)
        logits = tl.where(same, NEG_INF, logits)
    if special:
        if K > 0:
            logits += scale * margins(row_index, col_index, hard_ptr, margin_ptr, R, K)
        target = tl.load(row_target_ptr + row_clamped)
        out = (target[:, None] == col_index[None, :]) | (col_index >= C)[None, :]
        tile_row_max, tile_row_sum = _row_max_and_sum(tl.where(out, NEG_INF, logits))
        target = tl.load(col_target_ptr + col_clamped)
        out = (target[None, :] == row_index[:, None]) | (row_index >= R)[:, None]
        tile_col_max, tile_col_sum = _col_max_and_sum(tl.where(out, NEG_INF, logits))
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
            tile_row_max, tile_row_sum = _row_max_and_sum(logits)
            tile_col_max, tile_col_sum = _col_max_and_sum(logits)
    tl.store(col_max_ptr + col_at, tile_col_max, mask=col_index < C)
    tl.store(col_sum_ptr + col_at, tile_col_sum, mask=col_index < C)
    new_max = tl.maximum(row_max, tile_row_max)
    reference = _finite(new_max)
    kept = row_sum * tl.exp2(row_max - reference)
    return new_max, kept + tile_row_sum * tl.exp2(tile_row_max - reference)


@triton.jit(do_not_specialize=["R", "C", "tiles_per_split"])
def statistics_kernel(
    rows_ptr, cols_ptr,  # or tensor descriptors
    scale_ptr, bias_ptr, row_target_ptr, col_target_ptr, hard_ptr, margin_ptr,
    row_group_ptr, col_group_ptr,
    marks_ptr,  # [row blocks, col blocks], see `prepare.py`
    row_max_ptr, row_sum_ptr,  # [splits, R]
    col_max_ptr, col_sum_ptr,  # [row blocks, C]
    R, C, tiles_per_split,
    D: tl.constexpr,
    K: tl.constexpr,  # hard columns with margins; 0 where there are none
    BIAS: tl.constexpr,  # "none", "scalar" or "vector"
    GROUPS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
    PARTS: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    row_block = tl.program_id(0)
    split = tl.program_id(1)
    row_start = row_block * BLOCK_R
    row_index = row_start + tl.arange(0, BLOCK_R)
    scale = tl.load(scale_ptr) * LOG2E
    row_max = tl.full((BLOCK_R,), NEG_INF, tl.float32)
    row_sum = tl.zeros((BLOCK_R,), tl.float32)
    tiles = tl.cdiv(C, BLOCK_C)
    last = tl.minimum((split + 1) * tiles_per_split, tiles)
    for tile in tl.range(split * tiles_per_split, last):
        col_start = tile * BLOCK_C
        similarity = similarity_tile(
            rows_ptr, cols_ptr, row_start, col_start, R, C,
            D, BLOCK_R, BLOCK_C, BLOCK_D, PRECISION, TMA,
        )  # fmt: skip
        marked = tl.load(marks_ptr + row_block.to(tl.int64) * tiles + tile) > 0
        special = marked | (row_start + BLOCK_R > R) | (col_start + BLOCK_C > C)
        WIDTH: tl.constexpr = BLOCK_C // PARTS
        parts = column_parts(similarity, PARTS)
        for part in tl.static_range(PARTS):
            col_index = col_start + part * WIDTH + tl.arange(0, WIDTH)
            row_max, row_sum = _add_tile(
                row_max, row_sum, parts[part], special,
                row_index, col_index, row_block.to(tl.int64) * C + col_index, scale, bias_ptr,
                row_target_ptr, col_target_ptr, hard_ptr, margin_ptr, row_group_ptr, col_group_ptr,
                col_max_ptr, col_sum_ptr, R, C, K, BIAS, GROUPS,
            )  # fmt: skip
    at = split.to(tl.int64) * R + row_index
    tl.store(row_max_ptr + at, row_max, mask=row_index < R)
    tl.store(row_sum_ptr + at, row_sum, mask=row_index < R)


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
