"""The GPU kernels as compiled, without a GPU: registers, spills, the instructions that matter."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from native import build

KERNELS = {"elementwise_cuda": 4, "fused_gradient": 3, "fused_statistics": 3, "merge": 1}
ARCHITECTURES = (80, 90)
OBJECTS = tempfile.TemporaryDirectory()
NVCC = shutil.which("nvcc")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NVCC is None, reason="no nvcc on the PATH"),
]


@dataclass(frozen=True)
class Kernel:
    name: str
    registers: int
    spilled: int  # bytes


@cache
def compiled(source: str, architecture: int) -> tuple[Path, tuple[Kernel, ...]]:
    """The object of one source and what ptxas says of its kernels."""
    target = Path(OBJECTS.name) / f"{source}-{architecture}.o"
    done = subprocess.run(
        [
            *("nvcc", "-std=c++17", "-O3", f"-arch=sm_{architecture}", "-Xptxas", "-v"),
            *("-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra"),
            *("-c", str(build.ROOT / "csrc" / f"{source}.cu"), "-o", str(target)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target, tuple(parse(done.stderr))


def parse(report: str) -> list[Kernel]:
    kernels = []
    for part in report.split("Compiling entry function ")[1:]:
        name = part.split("'")[1]
        registers = re.search(r"Used (\d+) registers", part)
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        assert registers is not None
        assert spills is not None
        spilled = int(spills[1]) + int(spills[2])
        kernels.append(Kernel(name, int(registers[1]), spilled))
    return kernels


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", KERNELS)
def test_two_blocks_fit_a_multiprocessor_and_nothing_spills(source, architecture):
    _, kernels = compiled(source, architecture)
    assert len(kernels) == KERNELS[source]
    for kernel in kernels:
        print(f"sm_{architecture} {kernel}")
        assert kernel.spilled == 0, kernel
        assert kernel.registers <= 128, kernel


def test_gpus_without_what_the_fused_kernels_use_can_be_compiled_for():
    """The element-wise path serves them; the fused kernels are there, and never launched."""
    for source in KERNELS:
        _, kernels = compiled(source, 75)
        assert len(kernels) == KERNELS[source]


@cache
def cuobjdump() -> str | None:
    """CUDA's, or the one that Triton brings."""
    found = shutil.which("cuobjdump")
    if found is None and NVCC is not None:
        done = subprocess.run(
            [NVCC, "--dryrun", "-x", "cu", "/dev/null"], capture_output=True, text=True, check=False
        )
        top = re.search(r"^#\$ TOP=(.*)$", done.stderr, flags=re.MULTILINE)
        found = shutil.which(f"{top[1]}/bin/cuobjdump") if top else None
    triton = importlib.util.find_spec("triton")
    if found is None and triton is not None and triton.origin is not None:
        beside = Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump"
        found = str(beside) if beside.exists() else None
    return found


@cache
def instructions(source: str, architecture: int) -> dict[str, str]:
    """The machine code of each kernel, by mangled name."""
    tool = cuobjdump()
    if tool is None:
        pytest.skip("no cuobjdump here")
    target, _ = compiled(source, architecture)
    done = subprocess.run([tool, "-sass", target], capture_output=True, text=True, check=True)
    parts = re.split(r"^\s*Function : (\S+)$", done.stdout, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", ["fused_gradient", "fused_statistics"])
def test_fused_kernels_use_tensor_cores_and_asynchronous_copies(source, architecture):
    for name, code in instructions(source, architecture).items():
        product = "HMMA.1688.F32.TF32" if "tf32" in name else "HMMA.16816.F32"
        for wanted in (product, "LDSM.16.M88.4", "LDGSTS.E.BYPASS.128"):
            assert wanted in code, (name, wanted)
        if source == "fused_gradient":
            assert "STG.E.128" in code, name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_elementwise_kernels_load_and_store_16_bytes(architecture):
    for name, code in instructions("elementwise_cuda", architecture).items():
        assert "LDG.E.128" in code, name
        if "gradient" in name:
            assert "STG.E.128" in code, name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", KERNELS)
def test_values_stay_in_registers(source, architecture):
    """An index that is not known at compile time would put them into local memory."""
    for name, code in instructions(source, architecture).items():
        assert "LDL" not in code, name
        assert "STL" not in code, name


def test_the_report_is_understood():
    report = (
        "ptxas info    : Compiling entry function '_Z1k' for 'sm_80'\n"
        "    8 bytes stack frame, 12 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Used 128 registers, used 1 barriers\n"
    )
    assert parse(report) == [Kernel("_Z1k", 128, 16)]
