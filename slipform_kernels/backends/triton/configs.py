"""Kernel configurations by architecture and dtype: tile, warps, pipeline stages.

Chosen for zero spills and tensor-core instructions, read off the static report
(`make static-report`); not yet measured on a GPU. `tuning.py` can replace them by measured ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

KERNELS = ("statistics", "gradient")
ARCHITECTURES = (80, 90, 100)
MOST_REGISTERS = 255
# Of a configuration: products on tensor cores take at least 16 in each direction, descriptors at
# most 256, and a part of fewer columns would be stored in less than 16 bytes at a time.
_POWERS_OF_2 = {
    "rows": (16, 256),
    "cols": (16, 256),
    "depth": (16, 256),
    "warps": (1, 32),
    "parts": (1, 8),
}
LEAST_PART = 16


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
    tma: bool = False  # loads by the tensor memory accelerator, where D allows

    def __post_init__(self) -> None:
        for name, (least, most) in _POWERS_OF_2.items():
            value = getattr(self, name)
            if not _within(value, least, most) or value & (value - 1):
                raise ValueError(
                    f"{name}: got {value!r}; expected a power of 2 from {least} to {most}"
                )
        if not _within(self.stages, 1, 8):
            raise ValueError(f"stages: got {self.stages!r}; expected an int from 1 to 8")
        if self.cols < LEAST_PART * self.parts:
            raise ValueError(
                f"parts: got {self.parts} of {self.cols} cols; expected parts of at least "
                f"{LEAST_PART} columns"
            )
        if self.max_registers is not None and not _within(self.max_registers, 32, MOST_REGISTERS):
            raise ValueError(
                f"max_registers: got {self.max_registers!r}; expected None or an int from 32 to "
                f"{MOST_REGISTERS}"
            )
        if not isinstance(self.tma, bool):
            raise ValueError(f"tma: got {self.tma!r}; expected True or False")


def _within(value: object, least: int, most: int) -> bool:
    """Whether it is an int, which a bool is not here, of this range."""
    return type(value) is int and least <= value <= most


# 128 registers a thread leave room for two blocks of 8 warps on a multiprocessor: one computes
# products while the other is in its epilogue.
_TWO_BLOCKS = Config(128, 128, 64, 8, 3, parts=8, max_registers=128, tma=True)
_TWO_BLOCKS_TF32 = Config(128, 128, 32, 8, 3, parts=8, max_registers=128, tma=True)
_IEEE = {
    "statistics": Config(64, 64, 16, 8, 2),
    "gradient": Config(64, 64, 16, 8, 3),
}

# (kernel, architecture, kind of product)
TABLE: dict[tuple[str, int, str], Config] = {
    ("statistics", 80, "half"): Config(128, 128, 32, 8, 3, parts=2),
    ("statistics", 90, "half"): _TWO_BLOCKS,
    ("statistics", 100, "half"): _TWO_BLOCKS,
    ("gradient", 80, "half"): Config(128, 128, 32, 8, 3, parts=2),
    ("gradient", 90, "half"): _TWO_BLOCKS,
    ("gradient", 100, "half"): _TWO_BLOCKS,
    ("statistics", 80, "tf32"): Config(128, 64, 32, 8, 2, parts=2),
    ("statistics", 90, "tf32"): _TWO_BLOCKS_TF32,
    ("statistics", 100, "tf32"): _TWO_BLOCKS_TF32,
    ("gradient", 80, "tf32"): Config(128, 64, 32, 8, 2, parts=4),
    ("gradient", 90, "tf32"): Config(128, 128, 32, 8, 3, parts=8, tma=True),
    ("gradient", 100, "tf32"): _TWO_BLOCKS_TF32,
    **{(kernel, arch, "ieee"): _IEEE[kernel] for kernel in KERNELS for arch in ARCHITECTURES},
}


def compiler_options(kernel: str, config: Config, *, bias: str, groups: bool) -> dict[str, int]:
    """Options of a launch.

    Groups and a bias a column are vectors over the columns that the gradient holds beside all
    others: there a tight limit on registers would spill.
    """
    options = {"num_warps": config.warps, "num_stages": config.stages}
    crowded = kernel == "gradient" and (groups or bias == "vector")
    if config.max_registers is not None:
        options["maxnreg"] = MOST_REGISTERS if crowded else config.max_registers
    return options


def product_kind(dtype: torch.dtype, precision: str) -> str:
    """ "half" for bf16 and fp16 features, else the precision of fp32 products."""
    return precision if dtype == torch.float32 else "half"


def architecture(capability: tuple[int, int]) -> int:
    """The table's architecture for a compute capability of at least 8.0.

    Ampere, Ada and consumer Blackwell share one tensor-core path and small shared memory.
    """
    major, _ = capability
    return {9: 90, 10: 100, 11: 100}.get(major, 80)
