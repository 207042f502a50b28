"""The library products, with fp32 accumulation whatever the features' dtype and the device.

fp64 features are for checks: their products are fp64.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from .problem import Problem

_DOT_ROWS = 2048
_FEW_PRODUCTS = 1 << 21


def similarities(block: Problem, out: Tensor) -> Tensor:
    """<x_i, y_j> in fp32 into `out` [r, c]. Never rounded to the features' dtype."""
    rows, cols, precision = block.rows, block.cols, block.precision
    if rows.dtype == torch.float64:
        return torch.mm(rows, cols.T, out=out)
    if rows.dtype == torch.float32:
        with matmul_precision(rows.device.type, precision):
            return torch.mm(rows, cols.T, out=out)
    if rows.device.type == "cuda":
        return torch.mm(rows, cols.T, out_dtype=torch.float32, out=out)
    # bf16 products of bf16-valued fp32 operands are exact; only the CPU's units differ.
    precision = "bf16" if rows.dtype == torch.bfloat16 else "ieee"
    with matmul_precision(rows.device.type, precision):
        return torch.mm(rows.float(), cols.float().T, out=out)


def gathered_dots(a: Tensor, a_index: Tensor | None, b: Tensor, b_index: Tensor | None) -> Tensor:
    """<a[a_index_n], b[b_index_n]> in fp32, a few rows at a time; None stands for 0, 1, 2, ..."""
    count = len(a if a_index is None else a_index)
    wide = torch.promote_types(a.dtype, torch.float32)
    parts = []
    for start in range(0, count, _DOT_ROWS):
        part = slice(start, min(start + _DOT_ROWS, count))
        left = a[part] if a_index is None else a[a_index[part]]
        right = b[part] if b_index is None else b[b_index[part]]
        parts.append((left.to(wide) * right.to(wide)).sum(1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def gradient_dtype(problem: Problem) -> torch.dtype:
    """dtype of the dL workspace: the features' where its products accumulate in fp32, else fp32.

    Rounded entries' errors average out over many terms. Over a few they would not, and there the
    wider products cost nothing.
    """
    features = problem.rows
    if features.device.type == "cuda":
        return features.dtype
    R, C = problem.shape
    few = R * C * features.shape[1] <= _FEW_PRODUCTS
    if features.dtype == torch.bfloat16 and _fast_bf16_products() and not few:
        return torch.bfloat16
    return problem.wide


@functools.cache
def _fast_bf16_products() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


class Accumulator:
    """Sum of products dL Z over blocks, in fp32 (fp64 for fp64 features).

    It is the gradient of `features` but for the scale.
    """

    def __init__(self, features: Tensor):
        self.features = features
        self.total: Tensor | None = None
        self.written = 0

    def tensor(self) -> Tensor:
        """The sum as it stands, [N, D]."""
        if self.total is None:
            wide = torch.promote_types(self.features.dtype, torch.float32)
            self.total = torch.empty_like(self.features, dtype=wide)
        return self.total

    def write_to(self, total: Tensor) -> None:
        """Take `total` for the sum's memory, before anything is added or in place of it."""
        self.total = total

    def add(self, part: slice, logits_grad: Tensor, other: Tensor, precision: str) -> None:
        """total[part] += logits_grad [n, m] @ other [m, D]. Parts come in ascending order first."""
        target = self.tensor()[part]
        first = part.start >= self.written
        self.written = max(self.written, part.stop)
        if logits_grad.dtype == target.dtype:
            other = other.to(target.dtype)
            with matmul_precision(target.device.type, precision):
                if first:
                    torch.mm(logits_grad, other, out=target)
                else:
                    target.addmm_(logits_grad, other)
            return
        if target.device.type == "cuda" and first:
            torch.mm(logits_grad, other, out_dtype=torch.float32, out=target)
        elif target.device.type == "cuda":
            torch.addmm(target, logits_grad, other, out_dtype=torch.float32, out=target)
        elif logits_grad.dtype == torch.float16:
            # Interpreted GPU kernels: an fp16 result could not hold these units.
            product = torch.mm(logits_grad.float(), other.float())
            target.copy_(product) if first else target.add_(product)
        elif first:
            # One rounding of a block's sum; adding blocks in the low precision would round each.
            target.copy_(torch.mm(logits_grad, other))
        else:
            target += torch.mm(logits_grad, other)

    def result(self, factor: Tensor, *, rounded: bool = True) -> Tensor:
        """The sum times `factor`, in the features' dtype, or as it is where not `rounded`."""
        assert self.total is not None
        total = self.total.mul_(factor)
        return total.to(self.features.dtype) if rounded else total


class _OneSetting:
    """The setting that torch 2.8 has for all devices, under the names of those of torch 2.9."""

    NAMES: ClassVar[dict[str, str]] = {"ieee": "highest", "tf32": "high", "bf16": "medium"}

    @property
    def fp32_precision(self) -> str:
        found = torch.get_float32_matmul_precision()
        return next(name for name, older in self.NAMES.items() if older == found)

    @fp32_precision.setter
    def fp32_precision(self, precision: str) -> None:
        torch.set_float32_matmul_precision(self.NAMES[precision])


def matmul_settings(device_type: str) -> Any:
    """What holds the `fp32_precision` of products on the device, "cpu" or "cuda"."""
    if not hasattr(torch.backends.mkldnn, "matmul"):
        return _OneSetting()
    backend = torch.backends.mkldnn if device_type == "cpu" else torch.backends.cuda
    return backend.matmul


@contextmanager
def matmul_precision(device_type: str, precision: str) -> Iterator[None]:
    """Precision of fp32 products within, whatever the process has set; restored afterwards."""
    if device_type not in ("cpu", "cuda") or (device_type == "cpu" and precision == "tf32"):
        yield
        return
    settings = matmul_settings(device_type)
    before = settings.fp32_precision
    if before == precision:
        yield
        return
    settings.fp32_precision = precision
    try:
        yield
    finally:
        settings.fp32_precision = before
