"""The Python module of the emulated kernels; run as a program it builds one and prints its path."""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[1]))
from native import build

CSRC = build.ROOT / "csrc"
NAMES = (
    "elementwise_cuda.cu",
    "fused_gradient.cu",
    "fused_statistics.cu",
    "merge.cu",
    "bindings_cuda.cpp",
)
MODULE = build.NATIVE / "kernels_module.cpp"


def module(variant: build.Variant, folder: Path = CSRC) -> Path:
    """The extension module over the sources of a folder."""
    return build.extension("emulated", [*(folder / name for name in NAMES), MODULE], variant)


if __name__ == "__main__":
    print(module(build.PLAIN))
