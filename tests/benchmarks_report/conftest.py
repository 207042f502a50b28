"""A folder with results of the loss benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import bench_results


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Of a CPU; nothing of a GPU."""
    folder = tmp_path / "results"
    folder.mkdir()
    bench_results.write_all(folder)
    return folder
