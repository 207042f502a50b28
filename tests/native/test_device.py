"""The primitives as nvcc compiles them and, where there is a GPU, as it runs them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from native import build

SOURCE = build.NATIVE / "device_primitives.cu"
EMULATED = [build.NATIVE / f"{name}.cpp" for name in ("test_matrices", "test_primitives")]
NVCC = shutil.which("nvcc")

pytestmark = pytest.mark.skipif(NVCC is None, reason="no nvcc on the PATH")

# What each primitive must have become; an asynchronous copy of a compile-time size has no ZFILL.
INSTRUCTIONS = {
    "HMMA.16816.F32.BF16",
    "HMMA.16816.F32",
    "HMMA.1688.F32.TF32",
    "LDSM.16.M88.4",
    "LDGSTS.E.BYPASS.128",
    "LDGSTS.E.BYPASS.128.ZFILL",
    "LDGDEPBAR",
    "DEPBAR.LE",
    "LDG.E.128.CONSTANT",
    "STG.E.128",
    "LDS.128",
    "STS.128",
    "STS.64",
    "SHFL.BFLY",
    "SHFL.DOWN",
    "SHFL.IDX",
    "MUFU.EX2",
    "MUFU.LG2",
}


def compile_for(architecture: str, target: Path, *flags: str) -> Path:
    command = [str(NVCC), "-std=c++17", f"-arch={architecture}", "-Werror", "all-warnings", *flags]
    includes = [f"-I{build.ROOT / 'csrc'}", f"-I{build.NATIVE}"]
    done = subprocess.run(
        [*command, *includes, str(SOURCE), "-o", str(target)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_every_primitive_becomes_its_instruction(architecture: str, tmp_path: Path) -> None:
    triton = pytest.importorskip("triton")
    disassembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not disassembler.is_file():
        pytest.skip("this triton brings no cuobjdump")
    binary = compile_for(architecture, tmp_path / "primitives.cubin", "-cubin")
    sass = subprocess.run(
        [disassembler, "-sass", binary], capture_output=True, text=True, check=True
    ).stdout
    found = set(re.findall(r"[A-Z][A-Z0-9]+(?:\.[A-Z0-9]+)*", sass))
    assert INSTRUCTIONS - found == set()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_gpu_computes_what_the_emulation_does(tmp_path: Path) -> None:
    major, minor = torch.cuda.get_device_capability()
    executable = compile_for(f"sm_{major}{minor}", tmp_path / "primitives")
    device = subprocess.run([executable, "--print"], capture_output=True, text=True)
    assert device.returncode == 0, device.stderr
    emulated = [
        build.run(build.program(source, build.PLAIN), "--print", variant=build.PLAIN).stdout
        for source in EMULATED
    ]
    assert results(device.stdout) == results("".join(emulated))


def results(printed: str) -> dict[str, str]:
    """The words of each line, by its first."""
    return dict(line.split(maxsplit=1) for line in printed.splitlines())
