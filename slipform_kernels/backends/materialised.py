"""Statistics for backends that work element-wise on blocks of similarities from a library product.

Each block gives, for its rows and columns, the maximum of the logits and the sum of exponentials
relative to it; the blocks are merged in a fixed order, so results repeat bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .. import engine
from ..problem import Problem

# (block, similarities [r, c] fp32) -> (max [r], sum [r]) of rows, (max [c], sum [c]) of columns
BlockStatistics = Callable[[Problem, Tensor], tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]
# (block, out [r, c] fp32): writes the similarities
Similarities = Callable[[Problem, Tensor], object]


def statistics(
    problem: Problem,
    cache: Tensor | None,
    similarities: Similarities,
    block_statistics: BlockStatistics,
) -> tuple[Tensor, Tensor]:
    """row_rest [R] and col_rest [C] in fp32; see `engine.Backend.statistics`."""
    R, C = problem.shape
    row_max, col_max = (_filled(problem, n, -torch.inf) for n in (R, C))
    row_sum, col_sum = (_filled(problem, n, 0.0) for n in (R, C))
    workspace, cached = None, engine.Cached(cache, C)
    for rows, cols in engine.blocks(R, C, problem.rows.device):
        block = problem.block(rows, cols)
        r, c = block.shape
        similarity = cached.block(rows, cols)
        if similarity is None:
            if workspace is None:
                workspace = problem.rows.new_empty((r * c,), dtype=problem.wide)
            similarity = workspace[: r * c].view(r, c)
        similarities(block, similarity)
        of_rows, of_cols = block_statistics(block, similarity)
        _merge(row_max[rows], row_sum[rows], *of_rows)
        _merge(col_max[cols], col_sum[cols], *of_cols)
    return _log_sum_exp(row_max, row_sum), _log_sum_exp(col_max, col_sum)


def _filled(problem: Problem, n: int, value: float) -> Tensor:
    return torch.full((n,), value, dtype=problem.wide, device=problem.rows.device)


def _merge(maximum: Tensor, total: Tensor, other_max: Tensor, other_sum: Tensor) -> None:
    """(maximum, total) <- their union with (other_max, other_sum), in place."""
    new = torch.maximum(maximum, other_max)
    finite = torch.where(new == -torch.inf, 0.0, new)
    total.mul_(torch.exp(maximum - finite)).add_(other_sum * torch.exp(other_max - finite))
    maximum.copy_(new)


def _log_sum_exp(maximum: Tensor, total: Tensor) -> Tensor:
    return maximum + torch.log(total)
