"""First of all GPU tests: each primitive of csrc on the device beside its emulation on the CPU."""

from __future__ import annotations

from native.test_device import test_the_gpu_computes_what_the_emulation_does

__all__ = ["test_the_gpu_computes_what_the_emulation_does"]
