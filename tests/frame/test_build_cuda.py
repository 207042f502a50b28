"""The CUDA half of a build: found or not, working or not, and what the record says of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.builds import ROOT, Wheel, cuda_toolkit, needs_compiler, pip_wheel

pytestmark = needs_compiler


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    return cuda_toolkit(tmp_path / "cuda")


def launch_of(wheel: Wheel, tree: Path) -> int | None:
    """What the CUDA half answers in a process of its own; None where there is none."""
    path = tree.parent / "unpacked" / wheel.library
    code = (
        "import importlib.util as u, sys; s = u.spec_from_file_location('_native', sys.argv[1]); "
        "m = u.module_from_spec(s); s.loader.exec_module(m); print(getattr(m, 'launch', ''))"
    )
    command = [sys.executable, "-c", code, str(path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return int(answer) if answer else None


def test_cuda_home_is_built_for_every_known_architecture(tree, toolkit):
    wheel = Wheel(tree, pip_wheel(tree, SLIPFORM_CUDA="auto", CUDA_HOME=str(toolkit)))
    assert launch_of(wheel, tree) == 7
    assert wheel.info["cuda"] is True
    assert wheel.info["cuda_architectures"] == ["80", "90"]
    assert wheel.info["nvcc"] == f"{toolkit}/bin/nvcc: CUDA 13.0"
    assert wheel.info["cuda_reason"] == f"{toolkit}/bin/nvcc does not know 86, 89, 100, 120"
    commands = (toolkit / "log").read_text().splitlines()
    assert len(commands) == len(list((ROOT / "csrc").glob("*.cu")))
    for command in commands:
        assert "arch=compute_80,code=sm_80 " in command
        assert "arch=compute_90,code=sm_90 " in command
        assert "arch=compute_90,code=compute_90 " in command


def test_nvcc_on_the_path_is_found(tree, toolkit):
    path = f"{toolkit}/bin:{os.environ['PATH']}"
    wheel = Wheel(tree, pip_wheel(tree, SLIPFORM_CUDA="1", PATH=path))
    assert launch_of(wheel, tree) == 7


def test_named_architectures_are_the_ones_compiled(tree, toolkit):
    environment = {"SLIPFORM_CUDA_ARCHS": "90; 75", "CUDA_HOME": str(toolkit)}
    wheel = Wheel(tree, pip_wheel(tree, SLIPFORM_CUDA="1", **environment))
    assert wheel.info["cuda_architectures"] == ["75", "90"]
    assert wheel.info["cuda_reason"] == ""
    assert "code=compute_75 " not in (toolkit / "log").read_text()


@pytest.mark.parametrize("named", ["80;42", "8.0", ";"])
def test_an_unknown_architecture_is_an_error_with_the_known_ones(tree, toolkit, named):
    environment = {"SLIPFORM_CUDA_ARCHS": named, "CUDA_HOME": str(toolkit)}
    run = pip_wheel(tree, SLIPFORM_CUDA="auto", **environment)
    assert run.returncode != 0
    assert f"SLIPFORM_CUDA_ARCHS: got {named!r}" in run.stdout + run.stderr
    assert "75;80;90" in run.stdout + run.stderr


def test_without_nvcc_the_cpu_half_is_built_and_says_why(tree, toolkit):
    home = {"CUDA_HOME": str(toolkit / "bin")}
    run = pip_wheel(tree, SLIPFORM_CUDA="auto", **home)
    wheel = Wheel(tree, run)
    assert (wheel.has_library, wheel.info["native"], wheel.info["cuda"]) == (True, True, False)
    assert wheel.info["cuda_reason"] == f"no nvcc: CUDA_HOME={home['CUDA_HOME']} has no bin/nvcc"
    assert f"warning: slipform_kernels._native, CUDA: {wheel.info['cuda_reason']}" in (
        run.stdout + run.stderr
    )
    assert launch_of(wheel, tree) is None


def test_a_failing_nvcc_leaves_the_cpu_half(tree, toolkit):
    environment = {"CUDA_HOME": str(toolkit), "BROKEN_NVCC": "1"}
    wheel = Wheel(tree, pip_wheel(tree, SLIPFORM_CUDA="auto", **environment))
    assert (wheel.info["native"], wheel.info["cuda"]) == (True, False)
    assert wheel.info["cuda_reason"].startswith("the compiler failed: error: nothing works (")
    assert launch_of(wheel, tree) is None


@pytest.mark.parametrize("native", ["auto", "1"])
def test_cuda_1_with_a_failing_nvcc_fails(tree, toolkit, native):
    environment = {"CUDA_HOME": str(toolkit), "BROKEN_NVCC": "1", "SLIPFORM_NATIVE": native}
    run = pip_wheel(tree, SLIPFORM_CUDA="1", **environment)
    assert run.returncode != 0
    assert "SLIPFORM_CUDA=1" in run.stdout + run.stderr
    assert "error: nothing works" in run.stdout + run.stderr


def test_a_toolkit_without_the_static_runtime_is_no_toolkit(tree, toolkit):
    (toolkit / "libcudart_static.a").unlink()
    wheel = Wheel(tree, pip_wheel(tree, SLIPFORM_CUDA="auto", CUDA_HOME=str(toolkit)))
    assert wheel.info["cuda"] is False
    assert f"libcudart_static.a not found in {toolkit}" in wheel.info["cuda_reason"]


def test_cuda_without_the_extension_is_a_contradiction(tree, toolkit):
    environment = {"SLIPFORM_NATIVE": "0", "SLIPFORM_CUDA": "1", "CUDA_HOME": str(toolkit)}
    run = pip_wheel(tree, **environment)
    assert run.returncode != 0
    assert "SLIPFORM_CUDA=1, but SLIPFORM_NATIVE=0" in run.stdout + run.stderr


def test_cuda_0_leaves_it_out(tree, toolkit):
    wheel = Wheel(tree, pip_wheel(tree, SLIPFORM_CUDA="0", CUDA_HOME=str(toolkit)))
    assert (wheel.info["native"], wheel.info["cuda"]) == (True, False)
    assert wheel.info["cuda_reason"] == "left out by SLIPFORM_CUDA=0"


@pytest.mark.parametrize("value", ["yes", ""])
def test_another_value_of_cuda_is_an_error(tree, value):
    run = pip_wheel(tree, SLIPFORM_CUDA=value)
    assert run.returncode != 0
    assert f"SLIPFORM_CUDA: got '{value}', expected '0', '1' or 'auto'" in run.stdout + run.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_with_the_real_nvcc_the_runtime_is_inside(tree):
    """The module needs no CUDA library, so it imports on a machine without CUDA."""
    source = (
        "#include <cuda_runtime.h>\nint launch() { int n = 0; cudaGetDeviceCount(&n); return 7; }"
    )
    (tree / "csrc" / "merge.cu").write_text(source)
    environment = {"SLIPFORM_CUDA": "1", "SLIPFORM_CUDA_ARCHS": "80"}
    wheel = Wheel(tree, pip_wheel(tree, **environment))
    assert launch_of(wheel, tree) == 7
    library = tree.parent / "unpacked" / wheel.library
    if shutil.which("readelf"):
        needed = subprocess.run(
            ["readelf", "-d", str(library)], capture_output=True, text=True, check=True
        ).stdout
        assert "NEEDED" in needed
        assert "cuda" not in needed
