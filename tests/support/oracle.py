"""Two independent fp64 oracles of the two-way cross-entropy, written from its definition.

    L_ij  = s (<x_i, y_j> + sum_k m_ik [hard_ik = j]) + b_j
    row_i = logsumexp_j L_ij - L_{i,t_i}          col_j = logsumexp_i L_ij - L_{u_j,j}
    dL_ij = g_i (p_ij - [j = t_i]) + h_j (q_ij - [i = u_j])
    dX = s dL Y    dY = s dL^T X    ds = sum dL_ij (<x_i,y_j> + m_ij)
    db_j = sum_i dL_ij    dm_ik = s dL_{i,hard_ik}

`loop_oracle` goes entry by entry with these formulas; `dense_oracle` has the forward only and
leaves the gradients to torch's autograd. Neither uses the package. Both keep the positive out of
the sums (loss = softplus(rest - positive)): log-sum-exp minus positive loses all digits beyond 36
nats even in fp64.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from support.cases import Case, Spec, build


@dataclass
class Outcome:
    """Losses and gradients of one problem; gradients are None where the input is not a tensor."""

    row_loss: torch.Tensor
    col_loss: torch.Tensor
    rows: torch.Tensor | None = None
    cols: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    margin: torch.Tensor | None = None

    GRADIENTS = ("rows", "cols", "scale", "bias", "margin")


def loop_oracle(case: Case) -> Outcome:
    """The definition, one entry after the other, in Python floats (fp64)."""
    case = case.double()
    x, y = case.rows.numpy(), case.cols.numpy()
    n_rows, n_cols = len(x), len(y)
    s = float(case.scale)
    cosine = np.array([[float(np.dot(x[i], y[j])) for j in range(n_cols)] for i in range(n_rows)])
    shifted = cosine + _margins(case)
    logits = [[s * shifted[i, j] + _bias_of(case, j) for j in range(n_cols)] for i in range(n_rows)]
    row_target, col_target = (t.tolist() for t in case.targets())
    g, h = case.g.tolist(), case.h.tolist()
    d_logits = np.zeros((n_rows, n_cols))
    row_loss, col_loss = [0.0] * n_rows, [0.0] * n_cols
    for i, t in enumerate(row_target):
        if t >= 0:
            kept = [j for j in range(n_cols) if j != t and not _same_content(case, i, j)]
            row_loss[i], pull, push = _anchor(logits[i][t], [logits[i][j] for j in kept])
            d_logits[i, t] -= g[i] * pull
            for j, p in zip(kept, push, strict=True):
                d_logits[i, j] += g[i] * p
    for j, u in enumerate(col_target):
        if u >= 0:
            kept = [i for i in range(n_rows) if i != u and not _same_content(case, i, j)]
            col_loss[j], pull, push = _anchor(logits[u][j], [logits[i][j] for i in kept])
            d_logits[u, j] -= h[j] * pull
            for i, q in zip(kept, push, strict=True):
                d_logits[i, j] += h[j] * q
    return Outcome(
        torch.tensor(row_loss, dtype=torch.float64),
        torch.tensor(col_loss, dtype=torch.float64),
        **_chain(case, s, shifted, d_logits),
    )


def _margins(case: Case) -> np.ndarray:
    total = np.zeros((len(case.rows), len(case.cols)))
    if case.margin is None or case.hard_cols is None:
        return total
    pairs = zip(case.hard_cols.tolist(), case.margin.tolist(), strict=True)
    for i, (cols, margins) in enumerate(pairs):
        for j, m in zip(cols, margins, strict=True):
            if j >= 0:
                total[i, j] += m
    return total


def _bias_of(case: Case, j: int) -> float:
    if not isinstance(case.bias, torch.Tensor):
        return case.bias or 0.0
    return float(case.bias.flatten()[j if case.bias.numel() > 1 else 0])


def _same_content(case: Case, i: int, j: int) -> bool:
    if case.row_group is None or case.col_group is None:
        return False
    return int(case.row_group[i]) == int(case.col_group[j])


def _anchor(positive: float, others: list[float]) -> tuple[float, float, list[float]]:
    """Loss, 1 - p of the positive, and p of the others."""
    peak = max(others, default=-math.inf)
    if peak == -math.inf:
        return 0.0, 0.0, [0.0] * len(others)
    rest = peak + math.log(math.fsum(math.exp(v - peak) for v in others))
    d = rest - positive
    loss = max(d, 0.0) + math.log1p(math.exp(-abs(d)))
    pull = 1.0 / (1.0 + math.exp(-d)) if d > -700 else 0.0
    total = positive + loss
    return loss, pull, [math.exp(v - total) for v in others]


def _chain(
    case: Case, s: float, shifted: np.ndarray, d_logits: np.ndarray
) -> dict[str, torch.Tensor | None]:
    n_rows, n_cols = d_logits.shape
    x, y = case.rows.numpy(), case.cols.numpy()
    d_x, d_y = np.zeros_like(x), np.zeros_like(y)
    d_scale = 0.0
    for i in range(n_rows):
        for j in range(n_cols):
            d_x[i] += s * d_logits[i, j] * y[j]
            d_y[j] += s * d_logits[i, j] * x[i]
            d_scale += d_logits[i, j] * shifted[i, j]
    grads: dict[str, torch.Tensor | None] = {
        "rows": torch.from_numpy(d_x),
        "cols": torch.from_numpy(d_y),
        "scale": None,
        "bias": None,
        "margin": None,
    }
    if isinstance(case.scale, torch.Tensor):
        grads["scale"] = torch.full(case.scale.shape, d_scale, dtype=torch.float64)
    if isinstance(case.bias, torch.Tensor):
        per_column = d_logits.sum(axis=0)
        # A bias of shape [1] with C = 1 is both forms at once.
        total = per_column if case.bias.shape == per_column.shape else per_column.sum()
        grads["bias"] = torch.as_tensor(total, dtype=torch.float64).reshape(case.bias.shape)
    if case.margin is not None and case.hard_cols is not None:
        d_margin = np.zeros(tuple(case.margin.shape))
        for (i, k), j in np.ndenumerate(case.hard_cols.numpy()):
            if j >= 0:
                d_margin[i, k] = s * d_logits[i, j]
        grads["margin"] = torch.from_numpy(d_margin)
    return grads


def dense_losses(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column losses over the whole matrix, differentiable, in the case's own dtype."""
    cosine = case.rows @ case.cols.t()
    if case.margin is not None and case.hard_cols is not None and case.margin.numel():
        added = case.margin.masked_fill(case.hard_cols < 0, 0.0)
        cosine = cosine.scatter_add(1, case.hard_cols.clamp(min=0), added)
    logits = cosine * case.scale
    if case.bias is not None:
        logits = logits + case.bias
    open_pair = torch.ones_like(logits, dtype=torch.bool)
    if case.row_group is not None and case.col_group is not None:
        open_pair = case.row_group[:, None] != case.col_group[None, :]
    row_target, col_target = case.targets()
    row_loss = _dense_direction(logits, row_target, open_pair)
    return row_loss, _dense_direction(logits.t(), col_target, open_pair.t())


def _dense_direction(
    logits: torch.Tensor, target: torch.Tensor, open_pair: torch.Tensor
) -> torch.Tensor:
    loss = logits.new_zeros(len(target))
    anchors = (target >= 0).nonzero().flatten()
    target = target[anchors, None]
    own, open_pair = logits[anchors], open_pair[anchors]
    others = open_pair.scatter(1, target, False) & (own > -math.inf)
    alone = ~others.any(dim=1)
    # A row of nothing but -inf would have nan gradients even where its loss is not used.
    masked = own.masked_fill(~others, -math.inf).masked_fill(alone[:, None], 0.0)
    margin = own.gather(1, target).squeeze(1) - torch.logsumexp(masked, dim=1)
    # logsigmoid, because torch's softplus is linear beyond 20.
    return loss.index_put((anchors,), torch.where(alone, 0.0, -F.logsigmoid(margin)))


def dense_oracle(case: Case) -> Outcome:
    """The definition over the whole matrix in fp64, gradients by torch's autograd."""
    case = case.double().leaves()
    losses = dense_losses(case)
    names = [n for n in Outcome.GRADIENTS if isinstance(getattr(case, n), torch.Tensor)]
    grads = torch.autograd.grad(
        losses,
        [getattr(case, n) for n in names],
        [case.g, case.h],
        allow_unused=True,
        materialize_grads=True,
    )
    return Outcome(*(loss.detach() for loss in losses), **dict(zip(names, grads, strict=True)))


@functools.lru_cache(maxsize=4)
def solved(spec: Spec) -> tuple[Case, Outcome]:
    """A case and its dense solution, kept for the next backend. Do not change the case."""
    case = build(spec)
    return case, dense_oracle(case)
