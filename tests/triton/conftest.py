"""Tests of the Triton backend: compiled ahead of time, or interpreted in processes of their own.

Triton decides at import whether it interprets (TRITON_INTERPRET=1), so files of the two kinds
cannot share a process. `test_interpreter.py` runs `interpreter/` and what other tests there are of
every backend; to see one of them alone: TRITON_INTERPRET=1 pytest tests/triton/interpreter.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from support import interpreter

pytest.importorskip("triton")

collect_ignore = (
    ["test_static.py", "test_launches.py", "test_interpreter.py"]
    if interpreter.ON
    else ["interpreter"]
)
# benchmarks/static_compile.py lies outside of what is installed.
sys.path.insert(0, str(Path(__file__).parents[2]))


@pytest.fixture(autouse=True)
def _one_thread(_restore_torch_state: None) -> None:
    torch.set_num_threads(1)
