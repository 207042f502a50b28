"""From a `Problem` to launches: arguments, grids, partial sums. Nothing waits for the device."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from ...engine import GradientBlock
from ...problem import Problem, Weights
from . import configs, prepare, tuned
from .backward import gradient_kernel
from .forward import merge_kernel, statistics_kernel

MERGE_BLOCK = 256
# Programs a multiprocessor that the statistics aim for, so that the last wave costs little.
WAVES = 4
# Rows of one launch of the statistics: its columns' partial sums are 8 bytes for every column and
# block of rows, which for all rows at once would grow with the square of the batch.
BAND = 8192


def config_for(kernel: str, problem: Problem) -> configs.Config:
    """The configuration measured for such problems on this device, if there is one, else the
    table's."""
    measured = tuned.lookup(kernel, problem)
    if measured is not None:
        return measured
    kind = configs.product_kind(problem.rows.dtype, problem.precision)
    return configs.TABLE[kernel, architecture(problem.rows.device), kind]


def statistics(problem: Problem, config: configs.Config | None = None) -> tuple[Tensor, Tensor]:
    """row_rest [R] and col_rest [C]; see `engine.Backend.statistics`."""
    R, C = problem.shape
    config = config or config_for("statistics", problem)
    row_rests, col_rest = [], None
    for start in range(0, R, BAND):
        band = problem.block(slice(start, min(start + BAND, R)), slice(0, C))
        row_rest, band_rest = _band_statistics(band, config)
        row_rests.append(row_rest)
        col_rest = band_rest if col_rest is None else torch.logaddexp(col_rest, band_rest)
    assert col_rest is not None
    return torch.cat(row_rests), col_rest


def _band_statistics(problem: Problem, config: configs.Config) -> tuple[Tensor, Tensor]:
    _, (row_max, row_sum), (col_max, col_sum) = partial_statistics(problem, config)
    return _merged(problem, row_max, row_sum), _merged(problem, col_max, col_sum)


def partial_statistics(
    problem: Problem, config: configs.Config
) -> tuple[Any, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The compiled kernel, and (maximum, sum) of rows [splits, R] and of columns [row blocks, C].

    Interpreted, nothing is compiled: None.
    """
    R, C = problem.shape
    row_blocks, tiles = triton.cdiv(R, config.rows), triton.cdiv(C, config.cols)
    wanted = triton.cdiv(WAVES * _multiprocessors(problem.rows.device), row_blocks)
    tiles_per_split = triton.cdiv(tiles, min(tiles, wanted))
    splits = triton.cdiv(tiles, tiles_per_split)
    row_max, row_sum = _new(problem, (splits, R)), _new(problem, (splits, R))
    col_max, col_sum = _new(problem, (row_blocks, C)), _new(problem, (row_blocks, C))
    operands = prepare.operands(problem, config)
    compiled = statistics_kernel[(row_blocks, splits)](
        *operands.arguments(), row_max, row_sum, col_max, col_sum, R, C, tiles_per_split,
        **_constants(problem, config), **_options("statistics", problem, config),
    )  # fmt: skip
    return compiled, (row_max, row_sum), (col_max, col_sum)


def gradient(
    problem: Problem, weights: Weights, out: GradientBlock, config: configs.Config | None = None
) -> Any:
    """dL of the block and its sums; see `engine.Backend.gradient`. Returns the compiled kernel."""
    config = config or config_for("gradient", problem)
    first_row, first_col = out.rows.start, out.cols.start
    r, c = out.rows.stop - first_row, out.cols.stop - first_col
    row_blocks, col_blocks = triton.cdiv(r, config.rows), triton.cdiv(c, config.cols)
    operands = prepare.operands_of_pass(problem, config)
    factors = prepare.factors_of_pass(weights)
    none = operands.scale
    scale_grad = none if out.scale is None else _new(problem, (col_blocks, r))
    bias_grad = none if out.bias is None else _new(problem, (row_blocks, c))
    if out.margin is not None:
        out.margin.zero_()
    compiled = gradient_kernel[(row_blocks, col_blocks)](
        *operands.arguments(), *factors.arguments(),
        out.logits, scale_grad, bias_grad, none if out.margin is None else out.margin,
        out.rows.stop, out.cols.stop, first_row, first_col,
        _stride(out.logits), operands.marks.shape[1],
        SCALE_GRAD=out.scale is not None,
        BIAS_GRAD=out.bias is not None,
        MARGIN_GRAD=out.margin is not None,
        **_constants(problem, config), **_options("gradient", problem, config),
    )  # fmt: skip
    if out.scale is not None:
        torch.sum(scale_grad, 0, out=out.scale)
    if out.bias is not None:
        torch.sum(bias_grad, 0, out=out.bias)
    return compiled


# The workspace's stride is a multiple of this many entries, which 16-byte stores need.
ALIGNMENT = 16
LINE = 64  # and rows start at cache lines, in 2-byte features


def workspace(problem: Problem, shape: tuple[int, int]) -> Tensor:
    """A buffer [r, c] in the features' dtype whose rows are aligned.

    It is always wider than what is used, so that the driver takes narrower blocks with this stride
    and not as dense matrices of their own width.
    """
    r, c = shape
    return problem.rows.new_empty((r, (triton.cdiv(c, LINE) + 1) * LINE))[:, :c]


def _stride(logits: Tensor) -> int:
    r, stride = len(logits), logits.stride(0)
    if r > 1 and stride % ALIGNMENT:
        raise AssertionError(f"workspace: got a stride of {stride}; expected k * {ALIGNMENT}")
    return stride // ALIGNMENT


def _options(kernel: str, problem: Problem, config: configs.Config) -> dict[str, int]:
    bias, groups = tuned.bias_kind(problem), problem.row_group is not None
    return configs.compiler_options(kernel, config, bias=bias, groups=groups)


def _constants(problem: Problem, config: configs.Config) -> dict[str, Any]:
    return {
        "D": prepare.depth(problem.rows),
        "K": tuned.hard_count(problem),
        "BIAS": tuned.bias_kind(problem),
        "GROUPS": problem.row_group is not None,
        "PRECISION": problem.precision,
        "BLOCK_R": config.rows,
        "BLOCK_C": config.cols,
        "BLOCK_D": config.depth,
        "PARTS": config.parts,
        "TMA": config.tma,
    }


def _merged(problem: Problem, maximum: Tensor, total: Tensor) -> Tensor:
    parts, N = maximum.shape
    out = _new(problem, (N,))
    merge_kernel[(triton.cdiv(N, MERGE_BLOCK),)](maximum, total, out, parts, N, BLOCK=MERGE_BLOCK)
    return out


def _new(problem: Problem, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=problem.rows.device)


@functools.cache
def architecture(device: torch.device) -> int:
    """The table's architecture of a device."""
    if device.type != "cuda":
        return 80  # the interpreter
    return configs.architecture(torch.cuda.get_device_capability(device))


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
