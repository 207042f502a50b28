"""The CPU's fused kernels with their AMX products emulated, with and without sanitizers.

The tests of `kernels/` run over another build of the extension, in processes of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from native import build, cpu

TESTS = build.ROOT / "tests"
EXTREMES = "native and not cpu_level and not block"
# Emulated products under sanitizers are slow: a few of the tests.
SMALL = "widths or unusual or far_apart or one_node"
RUNS = [
    (build.PLAIN, "amx", "fused", ""),
    (build.PLAIN, "amx", "accuracy", "native"),
    (build.PLAIN, "amx", "extremes", EXTREMES),
    (build.SANITIZED, "amx", "fused", SMALL),
    (build.SANITIZED, "avx512", "fused", ""),
    (build.SANITIZED, "avx512", "extremes", EXTREMES),
]


def has(*features: str) -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and set(features) <= set(cpuinfo.read_text().split())


@pytest.fixture(autouse=True)
def _needs(request: pytest.FixtureRequest) -> None:
    if not has("avx512_bf16"):
        pytest.skip("this processor has no AVX-512 with bf16")
    if reason := build.missing(build.PLAIN):
        pytest.skip(reason)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "level", "name", "chosen"),
    RUNS,
    ids=lambda value: getattr(value, "name", value),
)
def test_another_build(variant, level, name, chosen):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"),
            *("-k", chosen, str(TESTS / "kernels" / f"test_{name}.py")),
        ],
        cwd=build.ROOT,
        env={
            **build.environment(variant, preload=True),
            "SLIPFORM_CPU_MODULE": str(cpu.module(variant)),
            "SLIPFORM_CPU_LEVEL": level,
            "HYPOTHESIS_PROFILE": "quick",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    print(done.stdout[-1000:])
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    assert " passed" in done.stdout


@pytest.mark.skipif(not shutil.which("objdump"), reason="objdump is not installed")
def test_the_inner_loop_is_four_products_and_four_loads(tmp_path):
    """As compiled for the real instructions: a step of depth loads each tile once."""
    made = tmp_path / "amx.o"
    compiler = build.compiler(build.PLAIN)
    subprocess.run(
        [
            *(compiler, "-std=c++17", "-O3", *cpu.FLAGS, *cpu.AMX_FLAGS),
            *("-c", cpu.CSRC / "amx_products.cpp", "-o", made),
        ],
        check=True,
    )
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", made], capture_output=True, text=True, check=True
    ).stdout
    names = re.findall(
        r"\t(tdpbf16ps|tileloadd|tilestored|tilezero|ldtilecfg|tilerelease|j\w+)", listing
    )
    text = " ".join(name if name.startswith(("t", "ld")) else "jump" for name in names)
    assert re.search(
        r"tileloadd tileloadd tdpbf16ps tileloadd tdpbf16ps tileloadd tdpbf16ps tdpbf16ps jump",
        text,
    )
    assert text.count("ldtilecfg") == text.count("tilerelease") > 0


@pytest.mark.skipif(not has("amx_tile", "amx_bf16"), reason="this processor has no AMX")
def test_a_processor_with_amx_uses_it(monkeypatch):
    native = pytest.importorskip("slipform_kernels._native")
    monkeypatch.delenv("SLIPFORM_CPU_LEVEL", raising=False)
    assert native.levels()[0] == native.level() == "amx"
    assert native.fused(True, 8192, 8192, 512)
    assert os.environ.get("SLIPFORM_CPU_LEVEL") is None
