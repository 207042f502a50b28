"""The doctor's report: right about what is there, and never in the way of what is broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from slipform_kernels import doctor, ops

ROOT = Path(doctor.__file__).resolve().parents[1]


def value_of(report: str, label: str) -> str:
    """What stands behind the label in the report."""
    (line,) = [line for line in report.splitlines() if line.strip().startswith(label)]
    return line.strip().removeprefix(label).strip()


def report_of_a_process(code: str, **environment: str) -> str:
    """What a fresh process prints."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLIPFORM_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.fixture(autouse=True)
def _no_overrides(monkeypatch):
    for name in ("SLIPFORM_BACKEND", "SLIPFORM_NATIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def build_info(monkeypatch, tmp_path):
    """A folder of the package in which a test places _build_info.json."""
    monkeypatch.setattr(doctor, "FOLDER", tmp_path)

    def write(**info: object) -> None:
        (tmp_path / "_build_info.json").write_text(json.dumps(info))

    return write


def test_every_backend_is_named_with_its_state():
    report = doctor.report()
    assert value_of(report, "torch (any device)") == "available"
    assert value_of(report, "reference (fp64)") == "available"
    for label in ("native (CPU)", "triton (GPU)"):
        state = value_of(report, label)
        assert state == "available" or (state.startswith("not available: ") and "  ->  " in state)


def test_the_report_is_plain_aligned_text():
    report = doctor.report()
    assert report.isascii()
    assert "\x1b" not in report
    entries = [line for line in report.splitlines() if line.startswith("  ")]
    assert all(line[23] == " " != line[24] for line in entries)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("SLIPFORM_BACKEND", "cuda", "'cuda' cannot be used: SLIPFORM_BACKEND: got 'cuda'"),
        ("SLIPFORM_NATIVE", "yes", "'yes' cannot be used: expected 0, 1 or auto"),
        ("SLIPFORM_BACKEND", "torch", "'torch', read at every call"),
        ("SLIPFORM_NATIVE", "0", "'0', read when the package is built"),
    ],
)
def test_environment_variables_in_force_are_checked(monkeypatch, name, value, expected):
    monkeypatch.setenv(name, value)
    line = value_of(doctor.report(), name)
    assert line.startswith(expected)
    assert line.endswith(f"->  unset {name}") == ("cannot" in expected)


def test_a_backend_forced_by_the_environment_is_named(monkeypatch):
    monkeypatch.setenv("SLIPFORM_BACKEND", "torch")
    assert value_of(doctor.report(), "in use") == "torch, forced by SLIPFORM_BACKEND"


def test_a_cpu_level_that_does_not_exist_is_the_reason_and_the_remedy():
    pytest.importorskip("slipform_kernels._native")
    code = "from slipform_kernels import doctor, ops; print(doctor.report())"
    report = report_of_a_process(code, SLIPFORM_CPU_LEVEL="avx1024")
    assert "'avx1024' cannot be used" in value_of(report, "SLIPFORM_CPU_LEVEL")
    native = value_of(report, "native (CPU)")
    assert native.startswith("not available: ")
    assert native.endswith("->  unset SLIPFORM_CPU_LEVEL")


def test_the_report_comes_out_without_torch():
    code = (
        "import sys, runpy; sys.modules['torch'] = None; "
        f"runpy.run_path({str(ROOT / 'slipform_kernels' / 'doctor.py')!r}, run_name='__main__')"
    )
    report = report_of_a_process(code)
    torch = value_of(report, "torch")
    assert torch.startswith("cannot be imported (ModuleNotFoundError")
    assert torch.endswith("install torch")
    assert "extras" in report.splitlines()


def test_a_section_that_fails_is_named_and_the_others_stand(monkeypatch):
    def broken():
        yield "first", "line"
        raise OSError("disk on fire")

    monkeypatch.setattr(doctor, "_processor", broken)
    report = doctor.report()
    assert value_of(report, "first") == "line"
    assert value_of(report, "failed") == "OSError: disk on fire"
    assert value_of(report, "reference (fp64)") == "available"


def test_a_backend_that_breaks_is_named_and_the_others_stand(monkeypatch):
    def broken(problem):
        raise ArithmeticError("no more numbers")

    monkeypatch.setattr("slipform_kernels.backends.torch.supports", broken)
    report = doctor.report()
    expected = "FAILS on a small problem: ArithmeticError: no more numbers"
    assert value_of(report, "torch (any device)") == expected
    assert value_of(report, "reference (fp64)") == "available"


@pytest.mark.parametrize(
    ("installed", "reason", "command"),
    [
        (True, "there is no CUDA device", "needs an NVIDIA GPU"),
        (False, "triton is not installed", "install triton"),
    ],
)
def test_triton_comes_with_what_would_bring_it(monkeypatch, installed, reason, command):
    found = object() if installed else None
    monkeypatch.setattr("importlib.util.find_spec", lambda _: found)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    report = doctor.report()
    state = value_of(report, "triton (GPU)")
    assert state.startswith(f"not available: {reason}  ->  ")
    assert command in state
    assert "GPU" not in value_of(report, "in use")


def test_the_interpreter_is_no_gpu_backend(monkeypatch):
    from slipform_kernels import dispatch

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    line = dict(doctor._backends())["triton (GPU)"]
    assert line.endswith("TRITON_INTERPRET is set  ->  unset TRITON_INTERPRET")
    problem = ops.problem_of(torch.ones(2, 4), torch.ones(2, 4), *[None] * 8, precision="ieee")
    assert dispatch.choose(problem, "auto").name != "triton"


def test_wrong_results_are_not_called_available(monkeypatch):
    nan = torch.full((6,), torch.nan)
    monkeypatch.setattr("slipform_kernels.two_way_cross_entropy", lambda *_, **__: (nan, nan))
    assert doctor._check("torch").startswith("WRONG RESULTS")


def test_an_extension_that_was_built_is_described(build_info):
    build_info(native=True, reason="", compiler="c++: c++ 12.2", levels=["baseline", "avx2"])
    assert doctor.native_line() == "extension built: yes, levels baseline, avx2"
    assert ("compiler", "c++: c++ 12.2") in list(doctor._extension())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="CUDA kernels are for Linux")
def test_cuda_kernels_that_were_built_are_described(build_info):
    build_info(
        native=True,
        reason="",
        compiler="c++",
        levels=["baseline"],
        cuda=True,
        cuda_reason="nvcc does not know 120",
        nvcc="nvcc: CUDA 12.4",
        cuda_architectures=["80", "100"],
    )
    line = dict(doctor._extension())["CUDA kernels"]
    assert line == (
        "for compute capability 8.0, 10.0, PTX of the last (nvcc: CUDA 12.4); "
        "nvcc does not know 120"
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="CUDA kernels are for Linux")
@pytest.mark.parametrize(
    ("reason", "command"),
    [
        (
            "no nvcc: CUDA_HOME is not set, and it is not on the PATH",
            "apt-get install nvidia-cuda-toolkit && SLIPFORM_CUDA=1 ",
        ),
        ("no nvcc: CUDA_HOME=/x has no bin/nvcc", "unset CUDA_HOME CUDA_PATH && "),
        ("left out by SLIPFORM_CUDA=0", "SLIPFORM_CUDA=1 "),
        ("the compiler failed: error: no (nvcc)\nerror: and more", "SLIPFORM_CUDA=1 "),
        (
            "the compiler failed: error: unsupported GNU version! gcc later than 11 (nvcc)",
            "CXX=<a compiler that this nvcc supports> SLIPFORM_CUDA=1 ",
        ),
    ],
)
def test_missing_cuda_kernels_come_with_the_command_that_brings_them(
    build_info, monkeypatch, reason, command
):
    monkeypatch.setattr("shutil.which", lambda _: None)
    build_info(
        native=True, reason="", compiler="c++", levels=[], cuda=False, cuda_reason=reason, nvcc=""
    )
    line = dict(doctor._extension())["CUDA kernels"]
    assert line.startswith(f"no: {reason.partition(chr(10))[0]}  ->  {command}")
    assert line.endswith(("slipform-kernels", "-e ."))


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        ("no C++ compiler: c++ not found on the PATH", "apt-get install g++ && "),
        ("Python.h not found in include: ...", "apt-get install python3-dev && "),
        ("left out by SLIPFORM_NATIVE=0", "SLIPFORM_NATIVE=1 "),
        ("the C++ compiler failed (c++):\nerror: and more", "SLIPFORM_NATIVE=1 "),
    ],
)
def test_a_missing_extension_comes_with_the_command_that_brings_it(
    build_info, monkeypatch, reason, command
):
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("sys.platform", "linux")
    build_info(native=False, reason=reason, compiler="", levels=[])
    line = doctor.native_line()
    assert line.startswith(f"extension built: no: {reason.partition(chr(10))[0]}  ->  {command}")
    assert "-m pip install --force-reinstall" in line


def test_an_install_from_a_folder_is_repeated_from_there(monkeypatch, tmp_path):
    class Installed:
        def read_text(self, name: str) -> str:
            assert name == "direct_url.json"
            return json.dumps({"url": (tmp_path / "a tree").as_uri(), "dir_info": {}})

    monkeypatch.setattr(doctor, "_checkout", lambda: False)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: Installed())
    assert doctor._rebuild().endswith("--no-cache-dir slipform-kernels")
    (tmp_path / "a tree").mkdir()
    (tmp_path / "a tree" / "pyproject.toml").touch()
    assert doctor._rebuild().endswith(f"--no-cache-dir '{tmp_path}/a tree'")


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        ("there is no CUDA device", "needs an NVIDIA GPU"),
        (
            "the GPU's compute capability is 7.5; the extension is compiled for 80+PTX",
            "SLIPFORM_CUDA=1 SLIPFORM_CUDA_ARCHS=75 ",
        ),
        ("the GPU's compute capability is below 7.0", "needs a newer GPU"),
        ("the extension is built without CUDA: left out by SLIPFORM_CUDA=0", "SLIPFORM_CUDA=1 "),
        ("the extension is not installed: left out by SLIPFORM_NATIVE=0", "SLIPFORM_NATIVE=1 "),
    ],
)
def test_gpu_kernels_that_do_not_serve_come_with_a_command(build_info, reason, command):
    build_info(native=False, reason="left out by SLIPFORM_NATIVE=0", compiler="", levels=[])
    assert doctor._gpu_command(reason).startswith(command)


def test_requirements_of_nested_extras_are_followed(monkeypatch):
    required = [
        "torch>=2.8",
        'tqdm>=4; extra == "train"',
        'slipform-kernels[eval,train]; extra == "test"',
        'pyarrow>=15; extra == "eval"',
        'no-such-thing>=1,<2; extra == "test"',
        'slipform-kernels[test]; extra == "dev"',
        'no-such-thing>=1; extra == "dev"',
    ]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: required)
    assert list(doctor._requirements("test")) == ["pyarrow", "tqdm", "no-such-thing"]
    lines = dict(doctor._extras())
    assert lines["train"] == "complete"
    assert lines["test"].startswith("missing no-such-thing  ->  ")
    assert lines["test"].endswith('[test]"')
    assert lines["dev"].startswith("missing no-such-thing  ->  ")


def test_commands_survive_a_python_in_a_folder_with_a_space(monkeypatch):
    monkeypatch.setattr("sys.executable", "/some where/bin/python")
    assert doctor._rebuild().startswith("'/some where/bin/python' -m pip install ")
