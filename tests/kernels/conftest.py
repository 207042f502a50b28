"""One thread for small problems; `@pytest.mark.threads(n)` for tests of work in parallel."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _threads(request: pytest.FixtureRequest, _restore_torch_state: None) -> None:
    """Threads that wait for each other on busy cores make a millisecond's work take a second."""
    mark = request.node.get_closest_marker("threads")
    torch.set_num_threads(mark.args[0] if mark else 1)
