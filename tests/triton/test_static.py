"""What the assembler makes of the kernels: no spills, tensor cores, asynchronous loads; they fit.

Every kernel of the table is compiled as a launch on that GPU would; `make static-report` prints all
of them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from benchmarks.static_compile import LIMITS, Binary, Variant, build
from benchmarks.static_report import faults
from slipform_kernels.backends.triton.configs import ARCHITECTURES, KERNELS, TABLE, Config

SHAPES = [
    ("bf16", 512, 0),
    ("bf16", 768, 4),
    ("bf16", 1024, 1),
    ("fp16", 256, 1),
    ("fp16", 512, 4),
    ("bf16", 504, 4),  # the last step along D is not a whole one
]


def name(variant: Variant) -> str:
    return f"{variant.kernel}-{variant.architecture}-{variant.dtype}-{variant.D}-{variant.K}"


HALF = [
    Variant(kernel, architecture, dtype, D, K, grads=("scale", "margin") if K else ("scale",))
    for kernel in KERNELS
    for architecture in ARCHITECTURES
    for dtype, D, K in SHAPES
]
FULL = [
    Variant(kernel, architecture, "fp32", 512, 4, precision=precision, grads=("scale", "margin"))
    for kernel in KERNELS
    for architecture in ARCHITECTURES
    for precision in ("tf32", "ieee")
]


@pytest.mark.parametrize("variant", HALF, ids=name)
def test_half_precision(variant):
    assert faults(variant, build(variant)) == []


@pytest.mark.parametrize("variant", FULL, ids=lambda v: f"{name(v)}-{v.precision}")
def test_full_precision(variant):
    binary = build(variant)
    assert faults(variant, binary) == []
    assert (binary.tensor > 0) == (variant.precision == "tf32")


@pytest.mark.parametrize("architecture", [90, 100])
@pytest.mark.parametrize("kernel", KERNELS)
def test_two_blocks_a_multiprocessor(kernel, architecture):
    variant = Variant(kernel, architecture, K=1, grads=("scale", "margin"))
    assert build(variant).blocks(LIMITS[architecture], variant.config.warps) == 2


def test_every_row_of_the_table_is_there():
    kinds = ("half", "tf32", "ieee")
    assert set(TABLE) == {(k, a, kind) for k in KERNELS for a in ARCHITECTURES for kind in kinds}


def test_a_spill_is_found():
    """The check can fail: a limit of 40 registers must spill."""
    variant = Variant("gradient", 80)
    binary = build(variant, replace(variant.config, max_registers=40))
    assert any("STL" in fault for fault in faults(variant, binary))


def test_too_much_shared_memory_is_found():
    variant = Variant("statistics", 80)
    binary = build(variant, replace(variant.config, depth=128, stages=4))
    assert any("shared memory" in fault for fault in faults(variant, binary))


FINE = Binary(128, 0, 0, 8, 8, 8, 65536, 128, 3000)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"local_loads": 1}, "LDL"),
        ({"tensor": 0}, "tensor-core"),
        ({"asynchronous": 0}, "asynchronous"),
        ({"wide_stores": 0}, "16-byte"),
        ({"shared": 240_000}, "shared memory"),
        ({"tensor_memory": 1024}, "tensor memory"),
        ({"instructions": 12}, "12 instructions"),
    ],
)
def test_each_fault_is_named(change, fault):
    variant = Variant("gradient", 100)
    assert faults(variant, FINE) == []
    assert fault in "; ".join(faults(variant, dataclasses.replace(FINE, **change)))


@pytest.mark.parametrize(
    ("dtype", "precision", "wanted"),
    [("bf16", "ieee", 1), ("fp16", "tf32", 1), ("fp32", "tf32", 1), ("fp32", "ieee", 0)],
)
def test_a_fault_is_named_once(dtype, precision, wanted):
    variant = Variant("gradient", 90, dtype, precision=precision)
    assert len(faults(variant, replace(FINE, tensor=0))) == wanted


def test_blocks_a_multiprocessor():
    limits = LIMITS[90]
    assert FINE.blocks(limits, 8) == 2  # 128 registers x 256 threads: half of 65,536
    assert replace(FINE, registers=129).blocks(limits, 8) == 1
    assert replace(FINE, registers=32, shared=116 << 10).blocks(limits, 8) == 1
    assert replace(FINE, registers=32, shared=8 << 10, tensor_memory=0).blocks(limits, 8) == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 96}, "rows: got 96"),
        ({"rows": 8}, "rows: got 8"),
        ({"cols": 0}, "cols: got 0"),
        ({"cols": 512}, "cols: got 512"),
        ({"depth": -16}, "depth: got -16"),
        ({"depth": 16.0}, "depth: got 16.0"),
        ({"warps": "8"}, "warps: got '8'"),
        ({"warps": True}, "warps: got True"),
        ({"warps": 64}, "warps: got 64"),
        ({"stages": 0}, "stages: got 0"),
        ({"stages": True}, "stages: got True"),
        ({"parts": 16}, "parts: got 16"),
        ({"parts": 8}, "parts: got 8 of 64 cols"),
        ({"max_registers": 0}, "max_registers: got 0"),
        ({"max_registers": 256}, "max_registers: got 256"),
        ({"max_registers": True}, "max_registers: got True"),
        ({"tma": 1}, "tma: got 1"),
        ({"tma": None}, "tma: got None"),
    ],
)
def test_impossible_configurations_are_refused(change, message):
    with pytest.raises(ValueError, match=f"^{message}; expected ."):
        replace(Config(64, 64, 16, 8, 2), **change)
