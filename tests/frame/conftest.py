"""Source trees to build, and a PATH without compilers."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.builds import source_tree


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The sources as a checkout has them, with a stand-in for csrc."""
    return source_tree(tmp_path)


@pytest.fixture
def empty(tmp_path: Path) -> str:
    """A PATH without compilers."""
    folder = tmp_path / "empty"
    folder.mkdir()
    return str(folder)
