"""Which backend computes a problem: by device, dtype and what is built, or by SLIPFORM_BACKEND."""

from __future__ import annotations

import os
import warnings
from types import ModuleType

import torch
from torch import Tensor

from .backends import native, native_cuda
from .backends import torch as torch_backend
from .backends import triton as triton_backend
from .problem import Problem

OVERRIDE = "SLIPFORM_BACKEND"
NAMES = ("triton", "native", "torch", "reference")
# Fastest first.
BACKENDS: tuple[ModuleType, ...] = (
    triton_backend,
    native_cuda,
    native,
    torch_backend,
)


def override() -> str | None:
    """The backend named by the environment, checked, or None."""
    name = os.environ.get(OVERRIDE) or None
    if name is not None and name not in NAMES:
        raise ValueError(f"{OVERRIDE}: got {name!r}; expected one of {', '.join(NAMES)}")
    return name


def wants_reference(rows: Tensor, backend: str | None) -> bool:
    """Whether the materialised reference serves: fp64, or asked for by argument or environment."""
    forced = backend or override()
    if rows.dtype == torch.float64:
        if forced not in (None, "reference"):
            source = "backend" if backend is not None else OVERRIDE
            raise RuntimeError(
                f"{source}: got {forced!r} for float64 features; expected 'reference', the only "
                "one that computes in float64, or none"
            )
        return True
    return forced == "reference"


def choose(problem: Problem, name: str) -> ModuleType:
    """The backend for `problem`; `name` is "auto" or the one asked for.

    Raises RuntimeError where a backend that was named, by argument or environment, cannot serve,
    and ValueError for meta tensors.
    """
    check_values(problem.rows)
    forced = override() if name == "auto" else name
    for backend in BACKENDS if forced is None else _named(forced, problem.rows.device):
        if forced is None and backend is triton_backend and triton_backend.interpreted():
            continue  # slow, and for tests: only where it is named
        reason = backend.supports(problem)
        if reason is None:
            return backend
        if forced is not None:
            source = "backend" if name != "auto" else OVERRIDE
            raise RuntimeError(f"{source}: got {forced!r}, which is not available: {reason}")
        if backend.device_type == problem.rows.device.type:
            _warn_once(backend.name, reason)
    raise RuntimeError(f"no backend serves {problem.rows.dtype} on {problem.rows.device}")


def _named(name: str, device: torch.device) -> list[ModuleType]:
    """The backends of a name; where it stands for one a device, the one for this device."""
    named = [backend for backend in BACKENDS if backend.name == name]
    return [backend for backend in named if backend.device_type == device.type] or named


def check_values(rows: Tensor) -> None:
    """No backend computes on meta tensors; their results' shapes follow in the operators alone."""
    if rows.device.type == "meta":
        raise ValueError(
            "rows: got device meta; expected a CPU or GPU: meta tensors have no values"
        )


_warned: set[tuple[str, str]] = set()


def _warn_once(name: str, reason: str) -> None:
    if (name, reason) not in _warned:
        _warned.add((name, reason))
        warnings.warn(
            f"slipform_kernels: the {name} backend does not serve here ({reason}); a slower one "
            "does. `slipform doctor` tells how to get it.",
            stacklevel=2,
        )
