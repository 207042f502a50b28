"""The two-way cross-entropy as it is defined: the whole matrix, plain torch, any float dtype.

Read this first. It is the tests' oracle (in fp64), serves fp64 inputs and supports gradcheck. It
needs O(R C) memory; every other backend computes the same numbers without.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def logit_matrix(
    rows: Tensor,
    cols: Tensor,
    scale: Tensor,
    *,
    bias: Tensor | None = None,
    hard_cols: Tensor | None = None,
    margin: Tensor | None = None,
) -> Tensor:
    """L_ij = scale * (<x_i, y_j> + sum_k margin_ik [hard_cols_ik = j]) + bias_j, shape [R, C]."""
    similarity = rows @ cols.T
    if hard_cols is not None and margin is not None:
        present = hard_cols >= 0
        similarity = similarity.scatter_add(
            1, hard_cols.clamp(min=0), torch.where(present, margin, 0).to(similarity.dtype)
        )
    logits = scale * similarity
    return logits if bias is None else logits + bias


def cross_entropy(logits: Tensor, target: Tensor, excluded: Tensor | None) -> Tensor:
    """Row-wise -log softmax of `logits` [A, B] at `target` [A]; 0 where the target is -1.

    `excluded` [A, B] marks entries that are left out of the denominator (the target never is).
    The positive is kept out of the sum: see `positive_loss`.
    """
    index = target.clamp(min=0)[:, None]
    positive = logits.gather(1, index)[:, 0]
    columns = torch.arange(logits.shape[1], device=logits.device)
    out = columns[None, :] == target[:, None]
    if excluded is not None:
        out = out | excluded
    others = logits.masked_fill(out, -torch.inf)
    any_other = ~(others == -torch.inf).all(dim=1)
    rest = torch.where(any_other[:, None], others, 0).logsumexp(dim=1)
    rest = torch.where(any_other, rest, -torch.inf)
    return positive_loss(rest, positive, target)


def sigmoid_cross_entropy(
    rows: Tensor, cols: Tensor, scale: Tensor, *, bias: Tensor | None, row_target: Tensor
) -> Tensor:
    """Unreduced row [R] losses; shapes as in `sigmoid.sigmoid_cross_entropy`."""
    dtype = torch.promote_types(rows.dtype, torch.float32)
    logits = logit_matrix(rows.to(dtype), cols.to(dtype), scale, bias=bias)
    columns = torch.arange(cols.shape[0], device=cols.device)
    positive = columns == row_target[:, None]
    return softplus(torch.where(positive, -logits, logits)).sum(1)


def softplus(values: Tensor) -> Tensor:
    """log(1 + exp(values)). Beyond 40 that and the value itself are one number, in fp64 too."""
    return F.softplus(values, threshold=40)


def positive_loss(rest: Tensor, positive: Tensor, target: Tensor | None = None) -> Tensor:
    """-log softmax of the positive, from the log-sum-exp of the others: softplus(rest - positive).

    This keeps its relative precision when the positive dominates, where logsumexp(all) - positive
    cancels. An infinite positive gives nan, as that form would; no target gives 0. All [A].
    """
    difference = torch.where(positive == torch.inf, torch.nan, rest - positive)
    if target is not None:
        difference = torch.where(target >= 0, difference, -torch.inf)
    # softplus, without the cut-off of F.softplus; abs and not minus, so that 0 has no sign
    return F.logsigmoid(-difference).abs()


def two_way_cross_entropy(
    rows: Tensor,
    cols: Tensor,
    scale: Tensor,
    *,
    bias: Tensor | None,
    row_target: Tensor,
    col_target: Tensor,
    hard_cols: Tensor | None = None,
    margin: Tensor | None = None,
    row_group: Tensor | None = None,
    col_group: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Unreduced row [R] and column [C] losses; shapes as in `functional.two_way_cross_entropy`."""
    dtype = torch.promote_types(rows.dtype, torch.float32)
    logits = logit_matrix(
        rows.to(dtype),
        cols.to(dtype),
        scale.to(dtype),
        bias=None if bias is None else bias.to(dtype),
        hard_cols=hard_cols,
        margin=margin,
    )
    same = None
    if row_group is not None and col_group is not None:
        same = row_group[:, None] == col_group[None, :]
    row_loss = cross_entropy(logits, row_target, same)
    col_loss = cross_entropy(logits.T, col_target, None if same is None else same.T)
    return row_loss, col_loss
