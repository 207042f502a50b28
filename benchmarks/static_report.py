"""What would the Triton kernels be on a GPU, as far as the compiler alone can tell?

    python -m benchmarks.static_report [--arch 80 90 100] [--d 256 512 768 1024] [--quick]
                                       [--jobs 2]

Compiles every configuration of the table ahead of time and prints two tables: what the assembler
made of it, and a roofline estimate. Nothing here is measured on a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tqdm import tqdm

from benchmarks import record, roofline
from benchmarks.static_compile import LIMITS, TENSOR_MEMORY_COLUMNS, Binary, Variant, build
from slipform_kernels.backends.triton.configs import ARCHITECTURES, KERNELS

DEPTHS = (256, 512, 768, 1024)
SIZES = (8192, 32768, 65536)
LEAST_INSTRUCTIONS = 500
EVERYTHING = {"bias": "vector", "groups": True}
NOTES = """\
"async" counts LDGSTS and UTMALDG, "16 B stores" those of 16 bytes to global memory. Blocks a SM are
the least of registers (65,536 over warps x registers a warp, in units of 256), shared memory (of
the multiprocessor, over the block's and 1 KiB), threads, and tensor memory (512 columns).
The rows of sm_80 also serve 8.6, 8.9 and 12.0: a block has 99 KiB there."""


def variants(architectures: list[int], depths: list[int], quick: bool) -> list[Variant]:
    """The table's configurations with the options that change the code most.

    fp16 differs from bf16 in the names of instructions, so K = 0 is left to bf16.
    """
    result = []
    for kernel, architecture, D in itertools.product(KERNELS, architectures, depths):
        shape: dict[str, Any] = {"kernel": kernel, "architecture": architecture, "D": D}
        for dtype, K in itertools.product(("bf16", "fp16"), (0, 1, 4)):
            if (dtype, K) != ("fp16", 0) and (not quick or (dtype, K) == ("bf16", 4)):
                grads = ("scale", "margin") if K else ("scale",)
                result.append(Variant(**shape, dtype=dtype, K=K, grads=grads))
        result.append(Variant(**shape, K=4, grads=("scale", "bias", "margin"), **EVERYTHING))
        for precision in ("tf32", "ieee"):
            result.append(Variant(**shape, dtype="fp32", precision=precision))
    return result


def faults(variant: Variant, binary: Binary) -> list[str]:
    """Where the binary is not what the design asks for."""
    found = []
    shared = LIMITS[86 if variant.architecture == 80 else variant.architecture].block_shared
    if binary.spills:
        found.append(f"{binary.local_loads} LDL and {binary.local_stores} STL")
    if not binary.tensor and variant.kind != "ieee":
        found.append("no tensor-core instructions")
    if not binary.asynchronous:
        found.append("no asynchronous loads")
    if variant.kernel == "gradient" and not binary.wide_stores:
        found.append("no 16-byte stores")
    if binary.shared > shared:
        found.append(f"{binary.shared} bytes of shared memory, {shared} allowed")
    if binary.tensor_memory > TENSOR_MEMORY_COLUMNS:
        found.append(f"{binary.tensor_memory} columns of tensor memory")
    if binary.instructions < LEAST_INSTRUCTIONS:
        found.append(f"only {binary.instructions} instructions")
    return found


def compiled(variant: Variant) -> dict[str, Any]:
    """One line of the first table."""
    config = variant.config
    row: dict[str, Any] = {
        "kernel": variant.kernel,
        "sm": variant.architecture,
        "dtype": variant.dtype if variant.dtype != "fp32" else f"fp32 {variant.precision}",
        "D": variant.D,
        "K": variant.K,
        "options": "bias, groups" if variant.groups else "",
        "tile": f"{config.rows}x{config.cols}x{config.depth}",
        "warps, stages, parts": f"{config.warps}, {config.stages}, {config.parts}",
        "loads": "TMA" if config.tma else "cp.async",
    }
    binary = build(variant)
    return row | {
        "registers": binary.registers,
        "LDL + STL": binary.spills,
        "shared, KiB": round(binary.shared / 1024),
        "tensor memory": binary.tensor_memory,
        "tensor-core": binary.tensor,
        "async": binary.asynchronous,
        "16 B stores": binary.wide_stores,
        "blocks a SM": binary.blocks(LIMITS[variant.architecture], config.warps),
        "instructions": binary.instructions,
        "faults": "; ".join(faults(variant, binary)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", type=int, nargs="+", default=ARCHITECTURES, choices=ARCHITECTURES)
    parser.add_argument("--d", type=int, nargs="+", default=DEPTHS, help="feature dimensions D")
    parser.add_argument("--quick", action="store_true", help="D = 512 and bf16 only")
    parser.add_argument("--jobs", type=int, default=2, help="compiling processes")
    args = parser.parse_args()
    depths = [512] if args.quick else args.d
    wanted = variants(args.arch, depths, args.quick)
    with ProcessPoolExecutor(args.jobs) as pool:
        rows = list(tqdm(pool.map(compiled, wanted), total=len(wanted), desc="kernels"))
    record.save("static_report", rows)
    print(f"\n{NOTES}\n\n{roofline.NOTES}\n")
    estimates = [
        roofline.estimate(architecture, D, N)
        for architecture, D, N in itertools.product(args.arch, depths, SIZES)
    ]
    record.save("static_roofline", estimates)
    bad = [row for row in rows if row["faults"]]
    print(f"\n{len(rows)} kernels, {len(bad)} with faults")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
