"""Triton's interpreter (TRITON_INTERPRET=1), which runs kernels on the CPU, and its bf16 mended.

Upstream, Triton 3.8: `tl.dot` multiplies the bit patterns of bf16, and casts to bf16 truncate. Here
products are taken in fp32, which is exact, and casts round to nearest even, as on a GPU. To be
removed when upstream does this.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

ON = os.environ.get("TRITON_INTERPRET") == "1"


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """fp32 values of bf16 bit patterns (uint16)."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Bit patterns of fp32 values, rounded to nearest even; nan stays nan."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def mend_bfloat16() -> None:
    """Patch the interpreter's product and casts."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    from slipform_kernels.backends import triton as backend

    dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def mended_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        if a.dtype.scalar == tl.bfloat16:
            a, b = (TensorHandle(from_bfloat16(x.data), tl.float32) for x in (a, b))
        return dot(self, a, b, d, *rest)

    def mended_cast(self: Any, src: Any, dst_type: Any) -> Any:
        if src.dtype.scalar == tl.float32 and dst_type.scalar == tl.bfloat16:
            return TensorHandle(to_bfloat16(src.data), tl.bfloat16)
        return cast(self, src, dst_type)

    backend.interprets_bf16 = True
    InterpreterBuilder.create_dot = mended_dot
    InterpreterBuilder.cast_impl = mended_cast


if ON:
    mend_bfloat16()
