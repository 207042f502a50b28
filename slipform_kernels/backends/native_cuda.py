"""The C++ extension's GPU kernels: fused with the similarities' product, or element-wise over it.

Fused (csrc/fused_*.cu): bf16 and fp16 features, and fp32 ones at precision "tf32", on compute
capability 8.0 and newer, where rows of features are a multiple of 16 bytes. Everything else takes a
library product in blocks that stay in the L2 cache, and csrc/elementwise_cuda.cu over them.

Every launch goes to the current stream of the features' device. Nothing waits for the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .. import products
from ..engine import GradientBlock
from ..problem import Problem, Weights
from . import native

name = "native"
device_type = "cuda"

# Bytes of the statistics that tiles leave to be merged, on the way to a block's.
PARTIAL_BYTES = 64 << 20
LINE = 128  # bytes; the rows of a workspace start at multiples of it
LN2 = 0.6931471805599453
LOWEST = torch.finfo(torch.float32).min  # the maximum of nothing


class Hardware:
    """What the backend asks of a device."""

    def capability(self, device: torch.device) -> tuple[int, int]:
        return torch.cuda.get_device_capability(device)

    def cache_bytes(self, device: torch.device) -> int:
        """Size of the L2 cache."""
        return torch.cuda.get_device_properties(device).L2_cache_size

    def current(self, device: torch.device) -> AbstractContextManager[Any]:
        """Makes `device` the current one."""
        return torch.cuda.device(device)

    def stream(self, device: torch.device) -> int:
        return torch.cuda.current_stream(device).cuda_stream


hardware = Hardware()


def kernels() -> ModuleType | None:
    """The extension's GPU part, or None."""
    return getattr(native._native, "cuda", None)


def unavailable() -> str | None:
    """None, or why the kernels cannot run in this process, on the current device."""
    if kernels() is None:
        return _not_built()
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    return _too_old_or_new(torch.device("cuda", torch.cuda.current_device()))


def _not_built() -> str:
    missing = native.unavailable()
    if missing is not None:
        return missing
    reason = native.build_record().get("cuda_reason")
    return "the extension is built without CUDA" + (f": {reason}" if reason else "")


def _too_old_or_new(device: torch.device) -> str | None:
    capability = hardware.capability(device)
    if capability < (7, 0):
        return "the GPU's compute capability is below 7.0"
    architectures = _call().ARCHITECTURES
    if runs_on(architectures, capability):
        return None
    major, minor = capability
    return (
        f"the GPU's compute capability is {major}.{minor}; the extension is compiled for "
        f"{architectures}"
    )


def supports(problem: Problem) -> str | None:
    """None for fp32, bf16 and fp16 on a GPU that the extension is compiled for."""
    device = problem.rows.device
    if device.type != device_type:
        return f"it computes on a CUDA device; the features are on {device}"
    if problem.rows.dtype == torch.float64:
        return "float64 is computed by the reference backend only"
    if kernels() is None:
        return _not_built()
    return _too_old_or_new(device)


@functools.cache
def runs_on(architectures: str, capability: tuple[int, int]) -> bool:
    """Whether code for `architectures`, as "80;90;120+PTX", runs; "" is not known, and taken so.

    Machine code runs on later minor versions of its own major one, PTX on all that are later.
    """
    major, minor = capability
    for architecture in filter(None, architectures.split(";")):
        code, _, ptx = architecture.partition("+")
        of_major, of_minor = divmod(int(code), 10)
        if of_major == major and of_minor <= minor:
            return True
        if ptx and (of_major, of_minor) <= capability:
            return True
    return architectures == ""


def fused(problem: Problem) -> bool:
    """Whether the fused kernels serve."""
    rows = problem.rows
    if rows.dtype == torch.float32 and problem.precision != "tf32":
        return False
    row_bytes = rows.shape[1] * rows.element_size()
    fits = row_bytes % 16 == 0 and row_bytes < 2**31
    return fits and hardware.capability(rows.device) >= (8, 0)


def statistics(problem: Problem, cache: Tensor | None) -> tuple[Tensor, Tensor]:
    """See `engine.Backend`. There is no cache on a GPU."""
    assert cache is None
    R, C = problem.shape
    rows, cols = _Running(problem, R), _Running(problem, C)
    compute = _FusedStatistics(problem) if fused(problem) else _BlockStatistics(problem)
    with hardware.current(problem.rows.device):
        for block in _rectangles(R, C, compute.entries, compute.tile):
            partials = compute(*block)
            rows.add(block[0], *partials[:2])
            cols.add(block[1], *partials[2:])
    return rows.log_sum_exp(), cols.log_sum_exp()


def workspace(problem: Problem, shape: tuple[int, int]) -> Tensor:
    """A buffer [r, c] in the features' dtype whose rows are aligned.

    It is always wider than what is used, so that the driver takes narrower blocks with this stride
    and not as dense matrices of their own width.
    """
    r, c = shape
    line = LINE // problem.rows.element_size()
    return problem.rows.new_empty((r, (c // line + 1) * line))[:, :c]


def gradient(problem: Problem, weights: Weights, out: GradientBlock) -> None:
    """dL of the block and its sums; see `engine.Backend`."""
    if out.margin is not None:
        out.margin.zero_()
    with hardware.current(problem.rows.device):
        if fused(problem):
            _fused_gradient(problem, weights, out)
        else:
            _block_gradient(problem, weights, out)


class _Running:
    """The (maximum, sum) in base 2 of all that was merged so far, for rows or columns."""

    def __init__(self, problem: Problem, count: int):
        self.maximum = _new(problem, count).fill_(LOWEST)
        self.sum = _new(problem, count).zero_()

    def add(self, part: slice, part_max: Tensor, part_sum: Tensor) -> None:
        """Merge [parts, n] for a range of n, in order."""
        parts, count = part_max.shape
        _call().merge(
            part_max.data_ptr(),
            part_sum.data_ptr(),
            parts,
            count,
            self.maximum[part].data_ptr(),
            self.sum[part].data_ptr(),
            hardware.stream(part_max.device),
        )

    def log_sum_exp(self) -> Tensor:
        return (self.maximum + self.sum.log2()) * LN2


class _FusedStatistics:
    """Partial statistics of a rectangle of the matrix, from the features."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.tile = _call().FUSED_TILE
        # A tile leaves two floats for each of its rows and columns.
        height, width = self.tile
        self.entries = PARTIAL_BYTES * height * width // (8 * (height + width))

    def __call__(self, rows: slice, cols: slice) -> tuple[Tensor, ...]:
        problem = self.problem
        partials = _new_partials(problem, rows, cols, self.tile)
        x, y = _aligned(problem.rows[rows]), _aligned(problem.cols[cols])
        _call().fused_statistics(
            _features(x, y),
            _operands(problem, rows, cols),
            _call().Partials(*map(_pointer, partials)),
            hardware.stream(x.device),
        )
        return partials


class _BlockStatistics:
    """The same by way of a library product in a workspace."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.tile = _call().ELEMENTWISE_TILE
        self.entries = _cached_entries(problem)
        self.workspace: Tensor | None = None

    def __call__(self, rows: slice, cols: slice) -> tuple[Tensor, ...]:
        problem = self.problem
        r, c = rows.stop - rows.start, cols.stop - cols.start
        if self.workspace is None:
            self.workspace = _similarity_workspace(problem, r, c)
        similarity = self.workspace[:r, :c]
        _compute_similarities(problem, rows, cols, similarity)
        partials = _new_partials(problem, rows, cols, self.tile)
        _call().elementwise_statistics(
            _call().Similarities(similarity.data_ptr(), similarity.stride(0)),
            _operands(problem, rows, cols),
            _call().Partials(*map(_pointer, partials)),
            hardware.stream(similarity.device),
        )
        return partials


def _fused_gradient(problem: Problem, weights: Weights, out: GradientBlock) -> None:
    x, y = _aligned(problem.rows[out.rows]), _aligned(problem.cols[out.cols])
    launch = functools.partial(_call().fused_gradient, _features(x, y))
    _launch_gradient(launch, problem, weights, out, slice(0, len(x)), _call().FUSED_TILE)


def _block_gradient(problem: Problem, weights: Weights, out: GradientBlock) -> None:
    """In bands of rows whose similarities stay in the cache."""
    r, c = out.logits.shape
    tile = _call().ELEMENTWISE_TILE
    height = min(r, max(tile[0], _cached_entries(problem) // c // tile[0] * tile[0]))
    in_place = out.logits.dtype == torch.float32
    similarities = None if in_place else _similarity_workspace(problem, height, c)
    for start in range(0, r, height):
        band = slice(start, min(start + height, r))
        similarity = out.logits[band]
        if similarities is not None:
            similarity = similarities[: band.stop - band.start, :c]
        rows = slice(out.rows.start + band.start, out.rows.start + band.stop)
        _compute_similarities(problem, rows, out.cols, similarity)
        source = _call().Similarities(similarity.data_ptr(), similarity.stride(0))
        launch = functools.partial(_call().elementwise_gradient, source)
        _launch_gradient(launch, problem, weights, out, band, tile)


def _launch_gradient(
    launch: Callable[..., None],
    problem: Problem,
    weights: Weights,
    out: GradientBlock,
    band: slice,
    tile: tuple[int, int],
) -> None:
    """`launch` for a band of the block's rows; its sums over tiles go to `out`."""
    rows = slice(out.rows.start + band.start, out.rows.start + band.stop)
    r, c = band.stop - band.start, out.logits.shape[1]
    down, across = _tiles(r, tile[0]), _tiles(c, tile[1])
    scale_parts = None if out.scale is None else _new(problem, across, r)
    bias_parts = None if out.bias is None else _new(problem, down, c)
    logits = out.logits[band]
    logits_grad = _call().LogitsGrad(
        logits.data_ptr(),
        logits.stride(0),
        _dtype(logits),
        scale_grad=_pointer(scale_parts),
        bias_grad=_pointer(bias_parts),
        margin_grad=_pointer(None if out.margin is None else out.margin[band]),
    )
    launch(
        _operands(problem, rows, out.cols),
        _call().Weights(*map(_pointer, vars(weights.block(rows, out.cols)).values())),
        logits_grad,
        hardware.stream(logits.device),
    )
    if out.scale is not None and scale_parts is not None:
        torch.sum(scale_parts, 0, out=out.scale[band])
    if out.bias is not None and bias_parts is not None:
        total = bias_parts.sum(0)
        out.bias.copy_(total) if band.start == 0 else out.bias.add_(total)


def _operands(problem: Problem, rows: slice, cols: slice) -> Any:
    """csrc's `Operands` of a rectangle. It points into the problem's tensors."""
    bias = problem.bias
    per_column = bias is not None and bias.ndim == 1
    margin = None if problem.margin is None else problem.margin[rows]
    hard = 0 if margin is None else margin.shape[1]
    with_margin = margin is not None and problem.hard_cols is not None
    return _call().Operands(
        rows=rows.stop - rows.start,
        cols=cols.stop - cols.start,
        first_row=rows.start,
        first_col=cols.start,
        hard=hard if with_margin else 0,
        bias_step=int(per_column),
        scale=problem.scale.data_ptr(),
        bias=_pointer(bias[cols] if bias is not None and per_column else bias),
        row_target=_pointer(problem.row_target[rows]),
        col_target=_pointer(problem.col_target[cols]),
        hard_cols=_pointer(None if problem.hard_cols is None else problem.hard_cols[rows]),
        margin=_pointer(margin),
        row_group=_pointer(None if problem.row_group is None else problem.row_group[rows]),
        col_group=_pointer(None if problem.col_group is None else problem.col_group[cols]),
    )


def _features(rows: Tensor, cols: Tensor) -> Any:
    return _call().Features(rows.data_ptr(), cols.data_ptr(), rows.shape[1], _dtype(rows))


def _compute_similarities(problem: Problem, rows: slice, cols: slice, out: Tensor) -> None:
    part = replace(problem, rows=problem.rows[rows], cols=problem.cols[cols])
    products.similarities(part, out)


def _cached_entries(problem: Problem) -> int:
    """fp32 similarities that fill half of the L2 cache."""
    return max(1, hardware.cache_bytes(problem.rows.device) // 8)


def _rectangles(
    R: int, C: int, entries: int, tile: tuple[int, int]
) -> Iterator[tuple[slice, slice]]:
    """Cover the matrix, each of about `entries` and whole tiles, and wider than high."""
    c = min(C, _whole_tiles(int((2 * entries) ** 0.5), tile[1]))
    r = min(R, _whole_tiles(entries // c, tile[0]))
    if r == R:
        c = min(C, _whole_tiles(entries // r, tile[1]))
    for row in range(0, R, r):
        for col in range(0, C, c):
            yield slice(row, min(row + r, R)), slice(col, min(col + c, C))


def _whole_tiles(size: int, tile: int) -> int:
    return max(1, size // tile) * tile


def _tiles(size: int, tile: int) -> int:
    return -(-size // tile)


def _new_partials(
    problem: Problem, rows: slice, cols: slice, tile: tuple[int, int]
) -> tuple[Tensor, ...]:
    """(maximum, sum) of rows [col tiles, r] and of columns [row tiles, c]."""
    r, c = rows.stop - rows.start, cols.stop - cols.start
    of_rows, of_cols = (_tiles(c, tile[1]), r), (_tiles(r, tile[0]), c)
    return tuple(_new(problem, *shape) for shape in (of_rows, of_rows, of_cols, of_cols))


def _similarity_workspace(problem: Problem, r: int, c: int) -> Tensor:
    """[r, >= c] with rows that start at multiples of 16 bytes."""
    return _new(problem, r, _tiles(c, 4) * 4)


def _new(problem: Problem, *shape: int) -> Tensor:
    return problem.rows.new_empty(shape, dtype=torch.float32)


def _aligned(features: Tensor) -> Tensor:
    """At an address that 16-byte copies can use; only a view can lie elsewhere."""
    return features if features.data_ptr() % 16 == 0 else features.clone()


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _pointer(tensor: Tensor | None) -> int:
    if tensor is None:
        return 0
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def _call() -> ModuleType:
    found = kernels()
    assert found is not None
    return found
