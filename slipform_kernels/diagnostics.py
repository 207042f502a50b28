"""Where an anchor's gradient goes: to its own hard negatives, or to the batch's easy ones."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import dispatch, ops
from .engine import positive_logits
from .problem import Problem
from .validation import validate


class GradientShares(NamedTuple):
    """fp32 [R] each, without gradient; nan where the row is no anchor."""

    positive: Tensor
    """1 - p_+: the pull on the positive, the sum of the two others"""
    hard: Tensor
    """p_H: the pull of the row's own hard negatives"""
    easy: Tensor
    """p_E: the pull of all other columns"""


@torch.no_grad()
def gradient_shares(
    rows: Tensor,
    cols: Tensor,
    scale: Tensor | float,
    *,
    bias: Tensor | float | None = None,
    row_target: Tensor | None = None,
    col_target: Tensor | None = None,
    hard_cols: Tensor | None = None,
    margin: Tensor | None = None,
    row_group: Tensor | None = None,
    col_group: Tensor | None = None,
    precision: str | None = None,
    backend: str | None = None,
) -> GradientShares:
    """Shares of each row's softmax gradient (arXiv 2604.13313, section 2).

    For an anchor with positive +, own hard negatives H and the rest E of the columns, the gradient
    on the positive's logit is 1 - p_+ = p_H + p_E. p_E grows with the batch and crowds p_H out; a
    margin m multiplies p_H / p_E by exp(scale m).

    A loss's `layout(...)` gives all arguments (that of TripletClipLoss is two):

        gradient_shares(**NegClipLoss().layout(...))

    Args:
        rows, cols, scale, bias, row_target, col_target, hard_cols, margin, row_group, col_group:
            as in `two_way_cross_entropy`; fp64 features are computed in fp32.
        precision, backend: as there.

    Returns:
        fp32 [R] each, between 0 and 1, without gradient; nan where the row is no anchor.

    Raises:
        TypeError, ValueError, RuntimeError: as `two_way_cross_entropy`.
    """
    args = validate(
        rows, cols, scale, bias, row_target, col_target, hard_cols, margin, row_group, col_group,
        precision, None if backend == "reference" else backend,
    )  # fmt: skip
    rows, cols = args.rows, args.cols
    if rows.dtype == torch.float64:
        rows, cols = rows.float(), cols.float()
    operands = (
        rows, cols, args.scale.float(), None if args.bias is None else args.bias.float(),
        row_target, col_target, hard_cols, None if args.margin is None else args.margin.float(),
        row_group, col_group,
    )  # fmt: skip
    name = "torch" if dispatch.wants_reference(rows, backend) else backend or "auto"
    row_rest, row_positive, _, _ = ops.statistics(*operands, args.precision, name)
    problem = ops.problem_of(*operands, precision=args.precision)
    anchor = problem.row_target >= 0
    lse = torch.logaddexp(row_rest, row_positive)
    hard = torch.zeros_like(row_rest)
    for k, col in enumerate(() if problem.hard_cols is None else problem.hard_cols.unbind(1)):
        logit = positive_logits(problem, col, of_rows=True)
        hard += torch.where(_counts(problem, k), torch.exp(logit - lse), 0.0)
    pull = torch.sigmoid(row_rest - row_positive)
    hard = torch.minimum(hard, pull)
    return GradientShares(
        *(torch.where(anchor, share, torch.nan) for share in (pull, hard, pull - hard))
    )


def _counts(problem: Problem, k: int) -> Tensor:
    """[R] whether hard column k adds to the row's rest: present, not counted yet, not left out."""
    assert problem.hard_cols is not None
    col = problem.hard_cols[:, k]
    counts = (col >= 0) & (col != problem.row_target)
    counts &= ~(problem.hard_cols[:, :k] == col[:, None]).any(1)
    if problem.row_group is not None and problem.col_group is not None:
        counts &= problem.row_group != problem.col_group[col.clamp(min=0)]
    return counts
