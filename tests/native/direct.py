"""Calls the emulated kernels on numpy arrays and compares with fp64, without torch or the package.

As a program it is a process of its own for one planted fault: it prints what went wrong.

    python -m native.direct MODULE FAULT    (in tests/)
"""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

STREAM = 4711  # the only one that the emulation then takes
LN2 = float(np.log(2))
LOWEST = np.finfo(np.float32).min
TYPES = {"bfloat16": np.uint16, "float16": np.float16, "float32": np.float32}


@dataclass(frozen=True)
class Shape:
    """A rectangle of a problem; `tf32` features are fp32 that tf32 holds exactly."""

    name: str
    rows: int
    cols: int
    depth: int
    dtype: str
    fused: bool
    hard: int = 2
    groups: bool = False
    first_row: int = 0
    first_col: int = 0
    diagonal: bool = False
    padding: int = 8  # of the rows of similarities and dL, in entries
    scale: float = 20.0
    uneven: bool = False  # every third row is short, so that its logits are small


SHAPES = (
    Shape("fused bf16, everything", 150, 300, 40, "bfloat16", True, first_row=11, first_col=70),
    Shape("fused bf16, whole tiles", 256, 256, 168, "bfloat16", True, 0, diagonal=True),
    Shape(
        "fused bf16, far apart",
        128,
        256,
        8,
        "bfloat16",
        True,
        0,
        diagonal=True,
        scale=200.0,
        uneven=True,
    ),
    Shape("fused f16, groups", 130, 140, 16, "float16", True, groups=True),
    Shape("fused tf32, odd rows", 100, 150, 12, "float32", True, padding=7),
    # Tiles are numbered in bands of 16 rows of them: more than one band.
    Shape("fused bf16, bands", 2200, 130, 8, "bfloat16", True),
    Shape("element-wise fp32, bands", 600, 300, 3, "float32", False),
    Shape("element-wise fp32, whole tiles", 64, 512, 3, "float32", False, 0, diagonal=True),
    Shape("element-wise fp32, everything", 40, 300, 3, "float32", False, first_col=64, padding=0),
    Shape("element-wise fp32, odd rows", 20, 270, 3, "float32", False, padding=1),
    Shape("element-wise bf16, odd rows", 33, 263, 3, "bfloat16", False, groups=True, padding=2),
)


@dataclass
class Problem:
    """Operands in numpy, named as in csrc/cuda_kernels.h, and fp64 logits."""

    shape: Shape
    x: np.ndarray
    y: np.ndarray
    scale: np.ndarray
    bias: np.ndarray
    row_target: np.ndarray
    col_target: np.ndarray
    hard_cols: np.ndarray
    margin: np.ndarray
    row_group: np.ndarray | None
    col_group: np.ndarray | None
    similarity: np.ndarray = field(init=False)
    logits: np.ndarray = field(init=False)
    closed: np.ndarray = field(init=False)
    of_row: np.ndarray = field(init=False)
    of_col: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        shape, rows, cols = self.shape, np.arange(len(self.x)), np.arange(len(self.y))
        self.similarity = _double(self.x) @ _double(self.y).T
        for k in range(shape.hard):
            at = self.hard_cols[:, k] - shape.first_col
            self.similarity += np.where(at[:, None] == cols, self.margin[:, k : k + 1], 0.0)
        self.logits = float(self.scale[0]) * self.similarity + self.bias
        self.closed = np.zeros(self.logits.shape, bool)
        if self.row_group is not None and self.col_group is not None:
            self.closed = self.row_group[:, None] == self.col_group
        self.of_row = self.row_target[:, None] - shape.first_col == cols
        self.of_col = self.col_target - shape.first_row == rows[:, None]

    def rests(self) -> tuple[np.ndarray, np.ndarray]:
        """Log-sum-exps of rows and columns."""
        by_row = np.where(self.closed | self.of_row, -np.inf, self.logits)
        by_col = np.where(self.closed | self.of_col, -np.inf, self.logits)
        return np.logaddexp.reduce(by_row, axis=1), np.logaddexp.reduce(by_col, axis=0)


def make(shape: Shape) -> Problem:
    rng = np.random.default_rng(len(shape.name))
    R, C, K = shape.rows, shape.cols, shape.hard

    def features(n: int) -> np.ndarray:
        x = rng.standard_normal((n, shape.depth))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        if shape.uneven:
            x[::3] *= 0.05
        return _to(x, shape.dtype)

    def index(n: int, first: int, size: int) -> np.ndarray:
        if shape.diagonal:
            return np.where(np.arange(n) < size, np.arange(n), -1)
        # Also none, before the rectangle and past its end.
        return np.where(rng.random(n) < 0.2, -1, rng.integers(0, first + size + 20, n))

    hard = rng.integers(-1, shape.first_col + C + 20, (R, K))
    if K > 1:
        hard[::3, 1] = hard[::3, 0]
    groups = [rng.integers(0, 9, n) + 2**40 for n in (R, C)] if shape.groups else [None, None]
    return Problem(
        shape, features(R), features(C), np.array([shape.scale], np.float32),
        rng.standard_normal(C).astype(np.float32),
        index(R, shape.first_col, C), index(C, shape.first_row, R),
        hard, rng.random((R, K)).astype(np.float32) / 5, *groups,
    )  # fmt: skip


def _to(x: np.ndarray, dtype: str) -> np.ndarray:
    bits = x.astype(np.float32).view(np.uint32)
    if dtype == "bfloat16":
        return (bits >> 16).astype(np.uint16)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(TYPES[dtype])


def _double(x: np.ndarray) -> np.ndarray:
    if x.dtype == np.uint16:
        x = (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64)


def _at(array: np.ndarray | None) -> int:
    return 0 if array is None or array.size == 0 else array.ctypes.data


def _operands(cuda: Any, p: Problem) -> Any:
    shape = p.shape
    return cuda.Operands(
        rows=shape.rows, cols=shape.cols, first_row=shape.first_row, first_col=shape.first_col,
        hard=shape.hard, bias_step=1, scale=_at(p.scale), bias=_at(p.bias),
        row_target=_at(p.row_target), col_target=_at(p.col_target), hard_cols=_at(p.hard_cols),
        margin=_at(p.margin), row_group=_at(p.row_group), col_group=_at(p.col_group),
    )  # fmt: skip


def _source(cuda: Any, p: Problem, out: np.ndarray) -> tuple[Any, np.ndarray | None]:
    """What the kernels start from; similarities in `out` where that is fp32, else in their own."""
    shape = p.shape
    if shape.fused:
        return cuda.Features(_at(p.x), _at(p.y), shape.depth, shape.dtype), None
    values = out if out.dtype == np.float32 else np.empty(out.shape, np.float32)
    values[:, shape.cols :] = np.nan
    values[:, : shape.cols] = _double(p.x) @ _double(p.y).T
    return cuda.Similarities(_at(values), values.shape[1]), values


def check_statistics(cuda: Any, p: Problem) -> None:
    shape = p.shape
    tile = cuda.FUSED_TILE if shape.fused else cuda.ELEMENTWISE_TILE
    down, across = -(-shape.rows // tile[0]), -(-shape.cols // tile[1])
    sizes = [(across, shape.rows), (across, shape.rows), (down, shape.cols), (down, shape.cols)]
    parts = [np.full(size, np.nan, np.float32) for size in sizes]
    source, _kept = _source(cuda, p, np.empty((shape.rows, shape.cols + shape.padding), np.float32))
    run = cuda.fused_statistics if shape.fused else cuda.elementwise_statistics
    run(source, _operands(cuda, p), cuda.Partials(*map(_at, parts)), STREAM)
    for name, want, (part_max, part_sum) in zip(
        ("row rest", "col rest"), p.rests(), (parts[:2], parts[2:]), strict=True
    ):
        count = part_max.shape[1]
        maximum, total = np.full(count, LOWEST, np.float32), np.zeros(count, np.float32)
        parts, merged = (_at(part_max), _at(part_sum)), (_at(maximum), _at(total))
        cuda.merge(*parts, len(part_max), count, *merged, STREAM)
        with np.errstate(divide="ignore"):
            got = (maximum.astype(np.float64) + np.log2(total.astype(np.float64))) * LN2
        _compare(name, got, want, 2e-5)


def check_gradient(cuda: Any, p: Problem) -> None:
    shape, rng = p.shape, np.random.default_rng(1)
    R, C = shape.rows, shape.cols
    rests = [r.astype(np.float32) for r in p.rests()]
    masked = [np.where(r == -np.inf, np.inf, r).astype(np.float32) for r in rests]
    a, a_positive = (rng.standard_normal(R).astype(np.float32) for _ in range(2))
    b, b_positive = (rng.standard_normal(C).astype(np.float32) for _ in range(2))
    out = np.empty((R, C + shape.padding), TYPES[shape.dtype])
    out.fill(0x7FFF if out.dtype == np.uint16 else np.nan)
    untouched = out.copy()
    tile = cuda.FUSED_TILE if shape.fused else cuda.ELEMENTWISE_TILE
    scale_parts = np.full((-(-C // tile[1]), R), np.nan, np.float32)
    bias_parts = np.full((-(-R // tile[0]), C), np.nan, np.float32)
    margin_grad = np.zeros((R, shape.hard), np.float32)
    source, _kept = _source(cuda, p, out)
    run = cuda.fused_gradient if shape.fused else cuda.elementwise_gradient
    run(
        source, _operands(cuda, p),
        cuda.Weights(*map(_at, (masked[0], a, a_positive, masked[1], b, b_positive))),
        cuda.LogitsGrad(
            _at(out), out.shape[1], shape.dtype, scale_grad=_at(scale_parts),
            bias_grad=_at(bias_parts), margin_grad=_at(margin_grad),
        ), STREAM,
    )  # fmt: skip
    by_row = np.where(p.closed, 0.0, a[:, None] * np.exp(p.logits - _double(masked[0])[:, None]))
    by_col = np.where(p.closed, 0.0, b * np.exp(p.logits - _double(masked[1])))
    want = np.where(p.of_row, a_positive[:, None], by_row) + np.where(p.of_col, b_positive, by_col)
    rounding = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 0.0}[shape.dtype]
    _compare("dL", _double(out[:, :C]), want, 1e-4, rounding)
    if not np.array_equal(out[:, C:], untouched[:, C:], equal_nan=out.dtype != np.uint16):
        raise AssertionError("dL: written past the end of a row")
    _compare("scale gradient", scale_parts.sum(0), (want * p.similarity).sum(1), 2e-4)
    _compare("bias gradient", bias_parts.sum(0), want.sum(0), 2e-4)
    at = p.hard_cols - shape.first_col
    inside = (at >= 0) & (at < C)
    at_hard = np.take_along_axis(want, np.clip(at, 0, C - 1), 1) if shape.hard else margin_grad
    _compare("margin gradient", margin_grad, np.where(inside, shape.scale * at_hard, 0.0), 2e-3)


def _compare(
    name: str, got: np.ndarray, want: np.ndarray, absolute: float, relative: float = 0.0
) -> None:
    with np.errstate(invalid="ignore"):
        near = np.abs(got - want) <= absolute + relative * np.abs(want)
    wrong = ~(near | (got == want))
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{name}{list(where)}: got {got[where]}, want {want[where]} ({int(wrong.sum())} wrong)"
        )


def check_banks(module: ModuleType, p: Problem) -> None:
    module.bank_conflicts()
    check_statistics(module.cuda, p)
    conflicts = module.bank_conflicts()
    for name in ("ldmatrix", "cp_async"):
        if conflicts[name]:
            raise AssertionError(f"bank conflicts: {conflicts[name]} of {name}")


def check_all(module: ModuleType) -> None:
    """Every shape, in several orders of threads; raises at the first fault."""
    problems = [make(shape) for shape in SHAPES]
    for order in ("forward", "reverse", "random:5"):
        module.set_order(order)
        for p in problems:
            try:
                check_statistics(module.cuda, p)
                check_gradient(module.cuda, p)
            except AssertionError as error:
                raise AssertionError(f"{p.shape.name}: {error} [order {order}]") from None
    check_banks(module, problems[1])


def load(path: str) -> ModuleType:
    os.environ["SLIPFORM_SHIM_STREAM"] = str(STREAM)
    spec = importlib.util.spec_from_file_location("emulated", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    loaded = load(sys.argv[1])
    loaded.plant(int(sys.argv[2]))
    try:
        check_all(loaded)
    except (AssertionError, RuntimeError) as error:
        sys.exit(str(error))
