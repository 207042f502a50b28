"""The Triton kernels compiled ahead of time, as a launch on a GPU would, and read off their SASS.

No GPU is needed: Triton brings the assembler and cuobjdump. Cannot run where TRITON_INTERPRET=1.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from slipform_kernels.backends.triton.backward import gradient_kernel
from slipform_kernels.backends.triton.configs import TABLE, Config, compiler_options
from slipform_kernels.backends.triton.forward import statistics_kernel

KERNELS = {"statistics": statistics_kernel, "gradient": gradient_kernel}
_TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
_POINTERS = {
    "marks_ptr": "u8",
    "row_target_ptr": "i32",
    "col_target_ptr": "i32",
    "hard_ptr": "i32",
    "row_group_ptr": "i32",
    "col_group_ptr": "i32",
}


@dataclass(frozen=True)
class Variant:
    """One kernel as the launch specialises it."""

    kernel: str
    architecture: int  # 80, 90 or 100
    dtype: str = "bf16"  # or "fp16", "fp32"
    D: int = 512
    K: int = 0
    bias: str = "none"
    groups: bool = False
    grads: tuple[str, ...] = ("scale",)  # of "scale", "bias", "margin"; the gradient kernel only
    precision: str = "ieee"

    @property
    def kind(self) -> str:
        return self.precision if self.dtype == "fp32" else "half"

    @property
    def config(self) -> Config:
        return TABLE[self.kernel, self.architecture, self.kind]


@dataclass(frozen=True)
class Limits:
    """Of a multiprocessor; CUDA C++ Programming Guide, "Technical Specifications per Compute
    Capability". A block's shared memory takes 1 KiB more than it asks for."""

    block_shared: int
    shared: int
    threads: int
    registers: int = 65536


LIMITS = {
    80: Limits(163 << 10, 164 << 10, 2048),
    86: Limits(99 << 10, 100 << 10, 1536),  # also 8.9 and 12.0, which use the rows of 80
    90: Limits(227 << 10, 228 << 10, 2048),
    100: Limits(227 << 10, 228 << 10, 2048),
}
TENSOR_MEMORY_COLUMNS = 512


@dataclass(frozen=True)
class Binary:
    """What the assembler made of a variant."""

    registers: int
    local_loads: int  # LDL and STL: spilled registers
    local_stores: int
    tensor: int  # HMMA, HGMMA, UTCHMMA and UTCQMMA
    asynchronous: int  # LDGSTS and UTMALDG
    wide_stores: int  # 16 bytes to global memory
    shared: int  # bytes a block
    tensor_memory: int  # columns
    instructions: int

    @property
    def spills(self) -> int:
        return self.local_loads + self.local_stores

    def blocks(self, limits: Limits, warps: int) -> int:
        """Blocks a multiprocessor: the least of what registers, shared memory and threads allow.

        Registers are given to warps in units of 256, that is 8 a thread; a block reserves 1 KiB of
        shared memory beside its own.
        """
        a_warp = -(-self.registers * 32 // 256) * 256
        return min(
            limits.registers // a_warp // warps,
            limits.shared // (self.shared + 1024),
            limits.threads // (32 * warps),
            TENSOR_MEMORY_COLUMNS // max(1, self.tensor_memory),
        )


def build(variant: Variant, config: Config | None = None) -> Binary:
    """Compile and disassemble; raises what the compiler raises."""
    config = config or variant.config
    signature, constants, attributes = signature_of(variant, config)
    source = ASTSource(KERNELS[variant.kernel], signature, constexprs=constants, attrs=attributes)
    target = GPUTarget("cuda", variant.architecture, 32)
    return _read(triton.compile(source, target=target, options=options_of(variant, config)))


def options_of(variant: Variant, config: Config) -> dict[str, int]:
    """Compiler options, as a launch has them."""
    return compiler_options(variant.kernel, config, bias=variant.bias, groups=variant.groups)


def signature_of(
    variant: Variant, config: Config
) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list[Any]]]:
    """Types by argument, constants, and alignments by position, as a launch has them."""
    kernel = KERNELS[variant.kernel]
    constants = _constants(variant, config, kernel.arg_names)
    signature: dict[str, str] = {}
    attributes: dict[tuple[int], list[Any]] = {}
    for position, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif not name.endswith("_ptr"):
            signature[name] = "i32"  # none is specialised on its value
        elif constants["TMA"] and name in ("rows_ptr", "cols_ptr"):
            height = config.rows if name == "rows_ptr" else config.cols
            signature[name] = f"tensordesc<{variant.dtype}[{height}, {config.depth}]>"
        else:
            features = name in ("rows_ptr", "cols_ptr", "logits_grad_ptr")
            signature[name] = "*" + (variant.dtype if features else _POINTERS.get(name, "fp32"))
            attributes[(position,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def _constants(variant: Variant, config: Config, names: list[str]) -> dict[str, Any]:
    every = {
        "D": variant.D,
        "K": variant.K,
        "BIAS": variant.bias,
        "GROUPS": variant.groups,
        "SCALE_GRAD": "scale" in variant.grads,
        "BIAS_GRAD": "bias" in variant.grads,
        "MARGIN_GRAD": "margin" in variant.grads,
        "PRECISION": variant.precision,
        "BLOCK_R": config.rows,
        "BLOCK_C": config.cols,
        "BLOCK_D": config.depth,
        "PARTS": config.parts,
        "TMA": config.tma,
    }
    return {name: value for name, value in every.items() if name in names}


def _read(compiled: Any) -> Binary:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        sass = _dump("-sass", file.name)
        usage = _dump("-res-usage", file.name)
    registers = re.search(r"REG:(\d+)", usage)
    assert registers is not None, usage
    names = re.findall(
        r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", sass, re.MULTILINE
    )

    def count(pattern: str) -> int:
        return sum(re.match(pattern, name) is not None for name in names)

    return Binary(
        registers=int(registers[1]),
        local_loads=count(r"LDL\b"),
        local_stores=count(r"STL\b"),
        tensor=count(r"HMMA|HGMMA|UTC\w*MMA"),
        asynchronous=count(r"LDGSTS|UTMALDG"),
        wide_stores=count(r"STG\b.*\.128"),
        shared=compiled.metadata.shared,
        tensor_memory=getattr(compiled.metadata, "tmem_size", 0) or 0,
        instructions=len(names),
    )


def _dump(option: str, path: str) -> str:
    run = subprocess.run([_TOOL, option, path], capture_output=True, text=True, check=True)
    return run.stdout + run.stderr
