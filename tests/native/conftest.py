"""Tests of csrc's GPU kernels: emulated on the CPU, or compiled for GPUs.

The emulation is a module that each process loads at its start, so its tests, in `emulated/`, run in
processes of their own, which `test_kernels.py` starts. To see one of them alone:

    SLIPFORM_EMULATED=$(python -m native.kernels) pytest tests/native/emulated    (in tests/)
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support import emulation

HERE = Path(__file__).parent
collect_ignore = (
    [str(path) for path in HERE.glob("test_*.py")] if emulation.ON else [str(HERE / "emulated")]
)


@pytest.fixture(autouse=True)
def _one_thread(_restore_torch_state: None) -> None:
    torch.set_num_threads(1)
