"""Tests of what the benchmarks compute and refuse; nothing here looks at a time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

# benchmarks/ lies outside of what is installed.
sys.path.append(str(Path(__file__).parents[2]))


@pytest.fixture(autouse=True)
def _one_thread(_restore_torch_state: None) -> None:
    torch.set_num_threads(1)
