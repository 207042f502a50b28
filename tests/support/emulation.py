"""The GPU kernels of csrc on CPU tensors: `native_cuda` over the emulation of tests/native.

A process that has SLIPFORM_EMULATED, the path of the module that tests/native/build.py makes, tests
this backend under the name "native"; see tests/native/test_kernels.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from types import ModuleType
from typing import Any

import torch

from slipform_kernels import engine
from slipform_kernels.backends import native, native_cuda

VARIABLE = "SLIPFORM_EMULATED"
ON = VARIABLE in os.environ
STREAM = 4711  # the only one that the emulation takes


class Hardware(native_cuda.Hardware):
    """A small device: several blocks of the matrix even in small problems."""

    def capability(self, device: torch.device) -> tuple[int, int]:
        return 8, 0

    def cache_bytes(self, device: torch.device) -> int:
        return 64 << 10

    def current(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def stream(self, device: torch.device) -> int:
        return STREAM


def load(path: str) -> ModuleType:
    os.environ["SLIPFORM_SHIM_STREAM"] = str(STREAM)
    spec = importlib.util.spec_from_file_location("emulated", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def install(module: ModuleType) -> None:
    """From now on the native backend of CPU tensors is `native_cuda` over the module."""
    native._native = module
    native_cuda.hardware = Hardware()
    native_cuda.device_type = "cpu"
    native.computes = lambda rest: False  # which is the CPU half's
    engine.CACHE_BYTES = 0  # what only a CPU has


module = load(os.environ[VARIABLE]) if ON else None
if module is not None:
    install(module)
