"""The operands of one two-way cross-entropy, after validation, and how a block of it is cut out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Problem:
    """Checked operands of the primitive; shapes as in `functional.two_way_cross_entropy`.

    `row_target`, `col_target` and `hard_cols` hold -1 where there is no such column or row, and
    `scale` is 0-d and fp32. `diagonal` states that row i and column i are each other's positive, so
    that both directions share one set of positives.
    """

    rows: Tensor  # [R, D]
    cols: Tensor  # [C, D]
    scale: Tensor  # []
    bias: Tensor | None  # [] or [C], fp32
    row_target: Tensor  # [R] int64
    col_target: Tensor  # [C] int64
    hard_cols: Tensor | None = None  # [R, K] int64
    margin: Tensor | None = None  # [R, K] fp32
    row_group: Tensor | None = None  # [R] int64
    col_group: Tensor | None = None  # [C] int64
    precision: str = "ieee"
    diagonal: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.shape[0], self.cols.shape[0]

    @property
    def wide(self) -> torch.dtype:
        """dtype of similarities, statistics and sums: fp32, or fp64 for fp64 features."""
        return torch.promote_types(self.rows.dtype, torch.float32)

    def block(self, row_range: slice, col_range: slice) -> Problem:
        """The same problem on a rectangle of the matrix, with every index relative to it."""
        R, C = self.shape
        if (row_range.start, row_range.stop, col_range.start, col_range.stop) == (0, R, 0, C):
            return self
        all_cols = col_range.stop - col_range.start == C
        bias, hard_cols = self.bias, self.hard_cols
        row_target, margin = self.row_target[row_range], self.margin
        if margin is not None:
            margin = margin[row_range]
        if hard_cols is not None:
            hard_cols = hard_cols[row_range]
        if not all_cols:
            row_target = _relative(row_target, col_range)
            hard_cols = None if hard_cols is None else _relative(hard_cols, col_range)
            bias = bias[col_range] if bias is not None and bias.ndim == 1 else bias
        return replace(
            self,
            rows=self.rows[row_range],
            cols=self.cols[col_range],
            bias=bias,
            row_target=row_target,
            col_target=_relative(self.col_target[col_range], row_range),
            hard_cols=hard_cols,
            margin=margin,
            row_group=None if self.row_group is None else self.row_group[row_range],
            col_group=None if self.col_group is None else self.col_group[col_range],
            diagonal=False,
        )


@dataclass(frozen=True, eq=False)
class Weights:
    """Upstream gradients of the statistics, with the statistics that they belong to; all fp32.

    dL_ij = row_rest_grad_i exp(L_ij - row_rest_i) for a column in row i's rest, row_positive_grad_i
    at the row's positive, plus the same of the columns.
    """

    row_rest: Tensor  # [R]
    row_rest_grad: Tensor
    row_positive_grad: Tensor
    col_rest: Tensor  # [C]
    col_rest_grad: Tensor
    col_positive_grad: Tensor

    def block(self, row_range: slice, col_range: slice) -> Weights:
        return Weights(
            self.row_rest[row_range],
            self.row_rest_grad[row_range],
            self.row_positive_grad[row_range],
            self.col_rest[col_range],
            self.col_rest_grad[col_range],
            self.col_positive_grad[col_range],
        )

    def closed(self) -> Weights:
        """With +inf for a rest without members, -inf, so that every exponential of it is 0."""
        return replace(
            self,
            row_rest=self.row_rest.masked_fill(self.row_rest == -torch.inf, torch.inf),
            col_rest=self.col_rest.masked_fill(self.col_rest == -torch.inf, torch.inf),
        )

    def normalised(self, largest: float) -> tuple[Weights, Tensor]:
        """The weights in units that make `largest` the greatest of them, and that unit (0-d)."""
        grads = (
            self.row_rest_grad,
            self.row_positive_grad,
            self.col_rest_grad,
            self.col_positive_grad,
        )
        unit = torch.stack([grad.abs().max() for grad in grads]).max() / largest
        unit = torch.where(unit == 0, 1.0, unit)
        return self.over(unit), unit

    def over(self, unit: Tensor | None) -> Weights:
        """The weights divided by `unit`, or as they are where it is None."""
        if unit is None:
            return self
        return Weights(
            self.row_rest,
            self.row_rest_grad / unit,
            self.row_positive_grad / unit,
            self.col_rest,
            self.col_rest_grad / unit,
            self.col_positive_grad / unit,
        )


def _relative(index: Tensor, inside: slice) -> Tensor:
    """`index` counted from the start of `inside`; -1 where it lies outside."""
    within = (index >= inside.start) & (index < inside.stop)
    return torch.where(within, index - inside.start, -1)
