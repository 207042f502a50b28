"""Runs the emulated kernels' tests, with and without sanitizers, in processes of their own.

Beside the tests in `emulated/`, what other tests there are of every backend; see conftest.py.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from native import build, kernels

TESTS = build.ROOT / "tests"
# Left out: blocks counted in, or as large as, another backend's; the CPU's tf32; AVX levels.
OTHER = (
    "native and not default_block_edges and not number_of_threads and not kept "
    "and not of_one_entry and not cpu_level and not (stated_precision and tf32)"
)
RUNS = {
    "problems": ("native/emulated", ""),
    "accuracy": ("kernels/test_accuracy.py", OTHER),
    "extremes": ("kernels/test_extremes.py", OTHER),
    "operators": ("kernels/test_operators.py", OTHER),
}


# The operators bring kernels no new work, and sanitizers take their time over torch.compile.
SANITIZED = [name for name in RUNS if name != "operators"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "name"),
    [
        *((build.PLAIN, name) for name in RUNS),
        *((build.SANITIZED, name) for name in SANITIZED),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_emulated(variant, name):
    if reason := build.missing(variant):
        pytest.skip(reason)
    file, chosen = RUNS[name]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"),
            # Products of infinities are what some of these tests are about.
            *("-W", "ignore::RuntimeWarning", "-k", chosen, str(TESTS / file)),
        ],
        cwd=build.ROOT,
        env={
            **build.environment(variant, preload=True),
            "SLIPFORM_EMULATED": str(kernels.module(variant)),
            "HYPOTHESIS_PROFILE": "quick",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    print(done.stdout[-1000:])
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    assert " passed" in done.stdout
