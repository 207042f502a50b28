"""The driver: what every backend shares.

Forward asks the backend for the log-sum-exps and gathers the positives' logits. Backward walks over
blocks of the matrix that fit a workspace: the backend writes dL of the block there, and two library
products, dX += dL Y and dY += dL^T X, accumulate in fp32. See README, "The method".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from . import products
from .problem import Problem, Weights

# Blocks of the matrix are computed in a workspace of this size; on a GPU it is the features' dtype
# and large enough to keep every multiprocessor busy.
WORKSPACE_BYTES = 8 << 20
GPU_WORKSPACE_BYTES = 64 << 20
GPU_TILE = 128  # and whole tiles of the kernels
# On a CPU a whole matrix up to this size is kept from forward to backward, or where the variable is
# set, as many of its first rows as fit that many bytes.
CACHE_BYTES = 4 << 20
CACHE_VARIABLE = "SLIPFORM_MATRIX_BYTES"
# Upstream gradients of about 1/N would underflow in an fp16 workspace; |dL| <= 2 of these units.
FP16_LARGEST = 2.0**13


class Backend(Protocol):
    """What the driver needs of a backend."""

    name: str

    def supports(self, problem: Problem) -> str | None:
        """None, or the reason why this backend cannot serve the problem."""

    def statistics(self, problem: Problem, cache: Tensor | None) -> tuple[Tensor, Tensor]:
        """row_rest [R] and col_rest [C], fp32: log-sum-exps over all but the anchor's positive.

        `cache`, if given, is fp32 memory for the similarities <x_i, y_j> of the first rows; see
        `Cached`. `gradient` gets each block's back.
        """

    def workspace(self, problem: Problem, shape: tuple[int, int]) -> Tensor:
        """An uninitialised buffer for dL of blocks up to `shape`, in the products' dtype."""

    def gradient(self, problem: Problem, weights: Weights, out: GradientBlock) -> None:
        """Write dL of one block to `out.logits`, and the sums over it that `out` asks for."""


class GradientBlock:
    """Where a backend puts the gradient of one block [r, c] of the matrix."""

    def __init__(
        self,
        rows: slice,
        cols: slice,
        logits: Tensor,
        cache: Tensor | None,
        problem: Problem,
        needed: dict[str, bool],
    ):
        r, c = rows.stop - rows.start, cols.stop - cols.start
        new = problem.rows.new_empty
        self.rows, self.cols = rows, cols  # which part of the matrix
        self.logits = logits  # [r, c] dL, to be written
        self.cache = cache  # [r, c] fp32, rows C apart: what `statistics` kept, or None
        self.scale = new((r,), dtype=problem.wide) if needed["scale"] else None
        """[r] sum_j dL_ij (<x_i, y_j> + margin_ij)"""
        self.bias = new((c,), dtype=problem.wide) if needed["bias"] else None
        """[c] sum_i dL_ij"""
        self.margin = None
        """[r, K] scale * dL at the hard columns; 0 where there is none"""
        if needed["margin"] and problem.hard_cols is not None:
            self.margin = new((r, problem.hard_cols.shape[1]), dtype=problem.wide)


def whole(problem: Problem, backend: Any) -> Any:
    """What computes all of the problem's statistics or gradients in one call, or None.

    A backend may have a function `whole(problem)` that returns it: a module with `statistics`,
    `gradients` and `add_gradients`, as backends/native_fused.py.
    """
    find = getattr(backend, "whole", None)
    return None if find is None else find(problem)


def cache_entries(R: int, C: int, device: torch.device) -> int:
    """How many of the R C similarities forward keeps for backward: of the matrix's first rows."""
    if device.type != "cpu":
        return 0
    budget = kept_bytes()
    if budget is None:
        return R * C if CACHE_BYTES // 4 >= R * C else 0
    rows = min(R, budget // (4 * C))
    band, _ = next(blocks(R, C, device))
    return (rows if rows == R else rows // band.stop * band.stop) * C


def kept_bytes() -> int | None:
    """SLIPFORM_MATRIX_BYTES, or None; ValueError for what is not a number of bytes."""
    given = os.environ.get(CACHE_VARIABLE)
    if not given:
        return None
    if not given.isascii() or not given.isdecimal():
        raise ValueError(f"{CACHE_VARIABLE}: got {given!r}; expected a number of bytes, such as 0")
    return int(given)


def _memory(problem: Problem, entries: int) -> Tensor:
    """[entries] for similarities, uninitialised; much memory is held from one step to the next."""
    from .backends import native

    if 4 * entries > CACHE_BYTES and problem.wide == torch.float32:
        return native.memory(entries)
    return problem.rows.new_empty((entries,), dtype=problem.wide)


class Cached:
    """The similarities of the matrix's first rows, row by row, as far as they are kept.

    All backends keep them so: what one has left in forward another may read in backward.
    """

    def __init__(self, cache: Tensor | None, C: int):
        self.rows = None if cache is None or cache.numel() == 0 else cache.view(-1, C)

    def block(self, rows: slice, cols: slice) -> Tensor | None:
        """[r, c] of them, or None where they are not kept."""
        if self.rows is None or rows.stop > len(self.rows):
            return None
        return self.rows[rows, cols]


def blocks(
    R: int, C: int, device: torch.device, itemsize: int = 4
) -> Iterator[tuple[slice, slice]]:
    """Rectangles that cover the matrix, row bands outermost, each within the workspace.

    Nearly square, twice as wide as high: every block's operands are read once, so a square shape
    moves the least memory for a workspace of given size.
    """
    on_cpu = device.type == "cpu"
    budget, tile = (WORKSPACE_BYTES, 1) if on_cpu else (GPU_WORKSPACE_BYTES, GPU_TILE)
    entries = max(1, budget // itemsize)
    c = min(C, _whole(int((2 * entries) ** 0.5), tile))
    r = min(R, _whole(entries // c, tile))
    if r == R:
        c = min(C, _whole(entries // r, tile))
    for row in range(0, R, r):
        for col in range(0, C, c):
            yield slice(row, min(row + r, R)), slice(col, min(col + c, C))


def _whole(size: int, tile: int) -> int:
    """`size` rounded down to whole tiles, at least one."""
    return max(tile, size // tile * tile)


def statistics(problem: Problem, backend: Backend, *, keep: bool = True) -> tuple[Tensor, ...]:
    """row_rest, row_positive, col_rest, col_positive and the cache of similarities (or empty)."""
    entries = cache_entries(*problem.shape, problem.rows.device) if keep else 0
    cache = _memory(problem, entries)
    at_once = whole(problem, backend)
    if at_once is not None:
        return *at_once.statistics(problem, cache), cache
    row_rest, col_rest = backend.statistics(problem, cache if cache.numel() else None)
    row_positive = positive_logits(problem, problem.row_target, of_rows=True)
    if problem.diagonal:
        col_positive = row_positive.clone()
    else:
        col_positive = positive_logits(problem, problem.col_target, of_rows=False)
    return row_rest, row_positive, col_rest, col_positive, cache


def rests(problem: Problem, backend: Backend) -> tuple[Tensor, Tensor]:
    """row_rest and col_rest of a problem without positives or cache."""
    at_once = whole(problem, backend)
    if at_once is None:
        return backend.statistics(problem, None)
    row_rest, _, col_rest, _ = at_once.statistics(problem, problem.rows.new_empty((0,)))
    return row_rest, col_rest


def positive_logits(problem: Problem, target: Tensor, *, of_rows: bool) -> Tensor:
    """L at the positive of each row (or column), fp32; 0 where there is none."""
    present = target >= 0
    index = target.clamp(min=0)
    if of_rows:
        on_diagonal = problem.diagonal and target is problem.row_target
        row_index, col_index = None, None if on_diagonal else index
    else:
        row_index, col_index = index, None
    logits = problem.scale * products.gathered_dots(
        problem.rows, row_index, problem.cols, col_index
    )
    if problem.hard_cols is not None and problem.margin is not None:
        if of_rows:
            hard, margin, col = problem.hard_cols, problem.margin, index
        else:
            hard, margin = problem.hard_cols[index], problem.margin[index]
            col = torch.arange(len(index), device=index.device)
        logits = logits + problem.scale * torch.where(hard == col[:, None], margin, 0).sum(1)
    if problem.bias is not None:
        if of_rows and problem.bias.ndim == 1:
            logits = logits + problem.bias[index]
        else:
            logits = logits + problem.bias
    return torch.where(present, logits, 0)


def weights(
    problem: Problem,
    row_rest: Tensor,
    row_rest_grad: Tensor,
    row_positive_grad: Tensor,
    col_rest: Tensor,
    col_rest_grad: Tensor,
    col_positive_grad: Tensor,
) -> Weights:
    """Upstream gradients in the form that backends expect: see `Weights`."""
    return Weights(
        row_rest.contiguous(),
        row_rest_grad.contiguous(),
        row_positive_grad.contiguous(),
        col_rest.contiguous(),
        col_rest_grad.contiguous(),
        col_positive_grad.contiguous(),
    )


def gradients(
    problem: Problem, weights: Weights, cache: Tensor, needed: list[bool], backend: Backend
) -> tuple[Tensor, ...]:
    """dX, dY, dscale, dbias, dmargin; an empty tensor where `needed` says no."""
    at_once = whole(problem, backend)
    if at_once is not None:
        return at_once.gradients(problem, weights, cache, _named(needed))
    weights = weights.closed()
    sums = Sums(problem, needed)
    weights, unit = in_units(problem, weights)
    add_gradients(sums, problem, weights, cache, backend)
    return sums.results(unit)


def _named(needed: list[bool]) -> dict[str, bool]:
    return dict(zip(("rows", "cols", "scale", "bias", "margin"), needed, strict=True))


class Sums:
    """Gradients of the operands but for common factors, summed over the matrix or parts of it.

    `rows` may be another's accumulator: of a problem with the same rows and other columns.
    """

    def __init__(
        self, problem: Problem, needed: list[bool], rows: products.Accumulator | None = None
    ):
        self.problem = problem
        self.need = _named(needed)
        device, wide = problem.rows.device, problem.wide
        self.rows = rows or products.Accumulator(problem.rows)
        self.cols = products.Accumulator(problem.cols)
        self.scale = torch.zeros((), dtype=torch.float64, device=device)
        self.bias = torch.zeros(problem.shape[1], dtype=wide, device=device)
        margin_shape = () if problem.margin is None else problem.margin.shape
        self.margin = torch.zeros(margin_shape, dtype=wide, device=device)

    def results(self, unit: Tensor | None, *, rounded: bool = True) -> tuple[Tensor, ...]:
        """dX, dY, dscale, dbias, dmargin; an empty tensor for what is not needed.

        dX and dY are in the features' dtype, or unrounded.
        """
        problem, wide = self.problem, self.problem.wide
        bias = self.bias
        if problem.bias is not None and problem.bias.ndim == 0:
            bias = bias.sum(dtype=torch.float64).to(wide)
        factor, one = problem.scale, 1.0 if unit is None else unit
        factor = factor if unit is None else factor * unit
        results = {
            "rows": lambda: self.rows.result(factor, rounded=rounded),
            "cols": lambda: self.cols.result(factor, rounded=rounded),
            "scale": lambda: (self.scale * one).to(wide),
            "bias": lambda: bias * one,
            "margin": lambda: self.margin * one,
        }
        # A new tensor each time: results of an operator must not share memory.
        nothing = problem.rows.new_empty
        return tuple(made() if self.need[k] else nothing((0,)) for k, made in results.items())


def in_units(problem: Problem, weights: Weights) -> tuple[Weights, Tensor | None]:
    """Weights that an fp16 workspace can hold, and the unit that they are in."""
    if problem.rows.dtype != torch.float16:
        return weights, None
    return weights.normalised(FP16_LARGEST)


def add_gradients(
    sums: Sums, problem: Problem, weights: Weights, cache: Tensor, backend: Backend
) -> None:
    """Add all of the problem's matrix, block by block or at once."""
    at_once = whole(problem, backend)
    if at_once is not None:
        at_once.add_gradients(sums, problem, weights, cache)
        return
    weights = weights.closed()
    R, C = problem.shape
    device, need = problem.rows.device, sums.need
    itemsize = 4 if device.type == "cpu" else problem.rows.element_size()
    parts = list(blocks(R, C, device, itemsize))
    first_rows, first_cols = parts[0]
    workspace = backend.workspace(problem, (first_rows.stop, first_cols.stop))
    cached = Cached(cache, C)
    for rows, cols in parts:
        r, c = rows.stop - rows.start, cols.stop - cols.start
        out = GradientBlock(
            rows, cols, _view(workspace, r, c), cached.block(rows, cols), problem, need
        )
        logits = out.logits
        backend.gradient(problem, weights, out)
        if need["rows"]:
            sums.rows.add(rows, logits, problem.cols[cols], problem.precision)
        if need["cols"]:
            sums.cols.add(cols, logits.T, problem.rows[rows], problem.precision)
        if out.scale is not None:
            sums.scale += out.scale.sum(dtype=torch.float64)
        if out.bias is not None:
            sums.bias[cols] += out.bias
        if out.margin is not None:
            sums.margin[rows] += out.margin


def _view(workspace: Tensor, r: int, c: int) -> Tensor:
    """[r, c] of the workspace: dense where the workspace is, else with its stride."""
    if workspace.is_contiguous():
        return workspace.flatten()[: r * c].view(r, c)
    return workspace[:r, :c]
