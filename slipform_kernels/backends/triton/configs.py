"""Kernel configurations by architecture and dtype: tile, warps, pipeline stages.

Chosen for zero spills and tensor-core instructions, read off the static report
(`make static-report`); not yet measured on a GPU. `tuning.py` can replace them by measured ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Config:
    """Tile of rows x cols x depth, which the epilogue takes in `parts` ranges of columns."""

    rows: int
    cols: int
    depth: int
    warps: int
    stages: int
    parts: int = 1
    max_registers: int | None = None

    def options(self) -> dict[str, int]:
        """Compiler options of a launch."""
        options = {"num_warps": self.warps, "num_stages": self.stages}
        if self.max_registers is not None:
            options["maxnreg"] = self.max_registers
        return options


# (kernel, architecture, kind of product)
TABLE: dict[tuple[str, int, str], Config] = {
    ("statistics", 80, "half"): Config(128, 128, 32, 8, 3, parts=2),
    ("statistics", 90, "half"): Config(128, 128, 64, 8, 3, parts=2),
    ("statistics", 100, "half"): Config(128, 128, 64, 8, 4, parts=2),
    ("gradient", 80, "half"): Config(128, 128, 32, 8, 3, parts=2),
    ("gradient", 90, "half"): Config(128, 128, 64, 8, 4, parts=4),
    ("gradient", 100, "half"): Config(128, 128, 64, 8, 4, parts=2),
    ("statistics", 80, "tf32"): Config(128, 64, 32, 8, 2, parts=2),
    ("statistics", 90, "tf32"): Config(128, 128, 32, 8, 3, parts=2),
    ("statistics", 100, "tf32"): Config(128, 128, 32, 8, 3, parts=2),
    ("gradient", 80, "tf32"): Config(128, 64, 32, 8, 2, parts=2),
    ("gradient", 90, "tf32"): Config(128, 128, 32, 8, 3, parts=4),
    ("gradient", 100, "tf32"): Config(128, 128, 32, 8, 3, parts=2),
    ("statistics", 80, "ieee"): Config(64, 64, 16, 8, 2),
    ("statistics", 90, "ieee"): Config(64, 64, 16, 8, 2),
    ("statistics", 100, "ieee"): Config(64, 64, 16, 8, 2),
    ("gradient", 80, "ieee"): Config(64, 64, 16, 8, 2),
    ("gradient", 90, "ieee"): Config(64, 64, 16, 8, 2),
    ("gradient", 100, "ieee"): Config(64, 64, 16, 8, 2),
}


def product_kind(dtype: torch.dtype, precision: str) -> str:
    """ "half" for bf16 and fp16 features, else the precision of fp32 products."""
    return precision if dtype == torch.float32 else "half"


def architecture(capability: tuple[int, int]) -> int:
    """The table's architecture for a compute capability of at least 8.0.

    Ampere, Ada and consumer Blackwell share one tensor-core path and small shared memory.
    """
    major, _ = capability
    return {9: 90, 10: 100, 11: 100}.get(major, 80)
