"""Settings shared by all tests: hypothesis profiles, the `slow` marker, where `support` lies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

sys.path.insert(0, str(Path(__file__).parent))

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("ci", derandomize=True, max_examples=200, **_COMMON)
settings.register_profile(
    "quick", derandomize=True, max_examples=10, phases=[Phase.explicit, Phase.generate], **_COMMON
)
settings.register_profile("thorough", derandomize=False, max_examples=1500, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes more than a few seconds; runs by default")
    config.addinivalue_line("markers", "threads(n): runs with n torch threads instead of one")


@pytest.fixture(autouse=True)
def _restore_torch_state():
    """A test may change threads, the default dtype or the seed; the next one must not see it."""
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)
