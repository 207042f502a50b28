"""Faults planted in the kernels: each must be found, and for the right reason; see mutants.py."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from native import build, mutants


def run(fault: int) -> subprocess.CompletedProcess[str]:
    if reason := build.missing(mutants.VARIANT):
        pytest.skip(reason)
    return subprocess.run(
        [sys.executable, "-m", "native.direct", str(mutants.module()), str(fault)],
        cwd=build.ROOT / "tests",
        env=build.environment(mutants.VARIANT, preload=True),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_no_fault():
    done = run(0)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda m: f"{m.file}: {m.name}")
def test_fault_is_found(mutant):
    done = run(mutants.fault_of(mutant))
    assert done.returncode != 0
    assert re.search(mutant.found, done.stderr), done.stderr[-3000:]


def test_there_are_enough_kinds():
    assert len({mutant.found + mutant.name for mutant in mutants.MUTANTS}) >= 22
