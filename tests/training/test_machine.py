"""Where a result was made: what stands in its file."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from datetime import date
from pathlib import Path

import pytest
import torch

from slipform_training import machine as module

ROOT = Path(__file__).resolve().parents[2]


def test_date_processor_threads_and_the_checkouts_commit():
    torch.set_num_threads(1)
    found = module.machine()
    assert date.fromisoformat(found["date"]) <= date.today()
    assert found["threads"] == 1
    assert found["cpu"]
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    # A tag, or the last one with the number of commits since and the commit.
    described = found["commit"].removesuffix("-dirty")
    commits = [
        subprocess.run(
            ["git", "rev-parse", f"{name}^{{commit}}"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout
        for name in (described, "HEAD")
    ]  # fmt: skip
    assert commits[0] == commits[1]


def test_an_installed_package_has_no_commit(tmp_path):
    path = tmp_path / "site-packages" / "slipform_training" / "machine.py"
    path.parent.mkdir(parents=True)
    shutil.copy(module.__file__, path)
    spec = importlib.util.spec_from_file_location("elsewhere", path)
    elsewhere = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elsewhere)
    assert "commit" not in elsewhere.machine()
