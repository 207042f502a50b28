"""Runs the kernels in Triton's interpreter, in processes of their own; see conftest.py.

Beside the tests in `interpreter/`, what other tests there are of every backend.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# Left out: what takes minutes when interpreted, and threads, which the interpreter cannot serve.
SLOW = "not default_block_edges and not number_of_threads and not kept and not 1100"
LOSSES = ("losses", "open_clip", "diagnostics", "bad_input", "unusual_input")
RUNS = {
    "tiles": (["triton/interpreter/test_tiles.py"], ""),
    "accuracy": (["kernels/test_accuracy.py"], "not 300x300x512"),
    "extremes": (["kernels/test_extremes.py"], f"{SLOW} and not equal_bits"),
    "operators": (["kernels/test_operators.py"], f"{SLOW} and not python_threads"),
    "losses": ([f"kernels/test_{name}.py" for name in LOSSES], "not 4096"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_interpreted(name):
    files, chosen = RUNS[name]
    wanted = " and ".join(part for part in (chosen, "triton") if part)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"),
            # Products of infinities are what some of these tests are about.
            *("-W", "ignore::RuntimeWarning", "-k", wanted),
            *(str(TESTS / file) for file in files),
        ],
        cwd=TESTS.parent,
        env={**os.environ, "TRITON_INTERPRET": "1", "HYPOTHESIS_PROFILE": "quick"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    print(done.stdout[-1000:])
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
    assert " passed" in done.stdout
