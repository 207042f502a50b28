"""The extension's CPU half with AMX emulated (shim/amx.h), as a module to test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from native import build

CSRC = build.ROOT / "csrc"
FLAGS = ("-march=x86-64-v4", "-mprefer-vector-width=512", "-mavx512bf16", "-fopenmp-simd")
AMX_FLAGS = ("-mamx-tile", "-mamx-bf16")
NAMES = (
    "bindings.cpp",
    "buffer.cpp",
    "positives.cpp",
    "elementwise_cpu.cpp",
    "fused_cpu.cpp",
    "amx_products.cpp",
)


def module(variant: build.Variant, folder: Path = CSRC) -> Path:
    """The extension module over the sources of a folder."""
    shim = str(build.NATIVE / "shim" / "amx.h")
    flags = (*variant.flags, *FLAGS, *AMX_FLAGS, "-include", shim)
    sources = [*(folder / name for name in NAMES), build.NATIVE / "cpu_module.cpp"]
    defines = ("SLIPFORM_LEVEL=baseline", "SLIPFORM_LEVELS_X86=1")
    named = replace(variant, name=f"cpu-{variant.name}", flags=flags)
    return build.extension("_native", sources, named, defines)
