"""Pure torch, in blocks: any device, no compiler; the kernels' arithmetic in readable form."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import products
from ..engine import GradientBlock
from ..problem import Problem, Weights
from . import materialised

name = "torch"
device_type = "any"


def supports(problem: Problem) -> str | None:
    """None: it serves fp32, bf16 and fp16 wherever torch does."""
    if problem.rows.dtype == torch.float64:
        return "float64 is computed by the reference backend only"
    return None


def statistics(problem: Problem, cache: Tensor | None) -> tuple[Tensor, Tensor]:
    return materialised.statistics(problem, cache, products.similarities, _block_statistics)


def workspace(problem: Problem, shape: tuple[int, int]) -> Tensor:
    return problem.rows.new_empty(shape, dtype=products.gradient_dtype(problem))


def gradient(problem: Problem, weights: Weights, out: GradientBlock) -> None:
    """dL_ij, see `Weights`: an exponential off the positives, their own weight at them."""
    block, weights = problem.block(out.rows, out.cols), weights.block(out.rows, out.cols)
    similarity = out.cache
    if similarity is None:
        similarity = torch.empty(block.shape, dtype=block.wide, device=block.rows.device)
        products.similarities(block, similarity)
    similarity = _with_margins(block, similarity)
    logits = _logits(block, similarity)
    by_row = weights.row_rest_grad[:, None] * torch.exp(logits - weights.row_rest[:, None])
    _put(by_row, 1, block.row_target, weights.row_positive_grad)
    by_col = weights.col_rest_grad * torch.exp(logits - weights.col_rest)
    _put(by_col, 0, block.col_target, weights.col_positive_grad)
    grad = by_row.add_(by_col)
    out.logits.copy_(grad)
    if out.scale is not None:
        out.scale.copy_((grad * similarity).sum(1))
    if out.bias is not None:
        torch.sum(grad, 0, out=out.bias)
    if out.margin is not None and block.hard_cols is not None:
        at_hard = grad.gather(1, block.hard_cols.clamp(min=0))
        out.margin.copy_(torch.where(block.hard_cols >= 0, block.scale * at_hard, 0.0))


def _block_statistics(
    block: Problem, similarity: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    logits = _logits(block, _with_margins(block, similarity))
    of_rows = _max_and_sum(logits, 1, block.row_target)
    of_cols = _max_and_sum(logits, 0, block.col_target)
    return of_rows, of_cols


def _max_and_sum(logits: Tensor, dim: int, target: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum along `dim` and the sum of exponentials relative to it, without the positives."""
    index = target.clamp(min=0).unsqueeze(dim)
    kept = logits.gather(dim, index)
    _put(logits, dim, target, -torch.inf)
    maximum = logits.amax(dim)
    finite = torch.where(maximum == -torch.inf, 0.0, maximum)
    total = torch.exp(logits - finite.unsqueeze(dim)).sum(dim)
    logits.scatter_(dim, index, kept)
    return maximum, total


def _with_margins(block: Problem, similarity: Tensor) -> Tensor:
    """<x_i, y_j> + margin_ij; one hard column after the other, so that doubles add up in order."""
    if block.hard_cols is None or block.margin is None:
        return similarity
    similarity = similarity.clone()
    for k in range(block.hard_cols.shape[1]):
        col = block.hard_cols[:, k : k + 1]
        step = torch.where(col >= 0, block.margin[:, k : k + 1], 0.0)
        index = col.clamp(min=0)
        similarity.scatter_(1, index, similarity.gather(1, index) + step)
    return similarity


def _logits(block: Problem, similarity: Tensor) -> Tensor:
    """L, with -inf where groups take a pair out; always a new tensor."""
    logits = block.scale * similarity
    if block.bias is not None:
        logits += block.bias
    if block.row_group is not None and block.col_group is not None:
        logits.masked_fill_(block.row_group[:, None] == block.col_group, -torch.inf)
    return logits


def _put(matrix: Tensor, dim: int, target: Tensor, value: Tensor | float) -> None:
    """matrix[i, target_i] = value_i along `dim` where there is a target."""
    index = target.clamp(min=0).unsqueeze(dim)
    if isinstance(value, Tensor):
        value = value.unsqueeze(dim)
    present = (target >= 0).unsqueeze(dim)
    matrix.scatter_(dim, index, torch.where(present, value, matrix.gather(dim, index)))
