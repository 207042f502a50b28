"""`python -m pytest benchmarks/...` as it is run, on tiny problems."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.peers import LOSSES

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTEST_")  # a worker of pytest-xdist measures nothing
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--device", "cpu"]
    return subprocess.run(
        [*command, *arguments, "--threads", "1", "--rounds", "1"],
        cwd=ROOT, env=environment | {"SLIPFORM_RESULTS": str(folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_throughput_has_the_rows_of_the_schema(tmp_path):
    peers = ("torch", "open_clip", "liger")
    done = run(
        tmp_path, "benchmarks/test_loss_throughput.py", "--sizes", "64", "128", "--dims", "16",
        "--dtypes", "fp32", "bf16", "--peers", *peers,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "loss_throughput_cpu.json").read_text())
    assert found["machine"]["packages"]["open_clip_torch"]
    assert found["machine"]["threads"] == 1
    keys = ("peer", "pass", "N", "D", "dtype")
    wanted = {
        (peer, which, N, 16, dtype)
        for peer in peers
        for which in ("forward", "backward", "both")
        for N in (64, 128)
        for dtype in ("fp32", "bf16")
    }
    rows = {tuple(row[key] for key in keys): row for row in found["rows"]}
    assert set(rows) == wanted
    assert len(found["rows"]) == len(wanted)
    reason = LOSSES["liger"].unavailable(CPU)
    for key, row in rows.items():
        if key[0] == "liger":
            assert row["not_run"] == reason
            continue
        figures = ("seconds", "eager_ratio", "product_ratio", "product_dtype_ratio")
        assert all(row[name] > 0 for name in figures), row
        assert row["eager_ratio_iqr"] >= 0
        assert row["rounds"] == 20 if key[2] == 64 else 16
        assert row["passes"] is (key[0] == "torch")
        assert (row["product_ratio"] == row["product_dtype_ratio"]) is (key[4] == "fp32")
    assert "SKIPPED [12] benchmarks/rows.py" in done.stdout
    assert reason in done.stdout


def test_a_wrong_option_is_an_error_before_anything_runs(tmp_path):
    done = run(tmp_path, "benchmarks/test_loss_throughput.py", "--peers", "torch", "torch")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--peers: got torch twice, expected each once" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["benchmark_disable", "numprocesses"])
def test_what_would_measure_nothing_is_an_error(option):
    from benchmarks import conftest

    config = SimpleNamespace(
        pluginmanager=SimpleNamespace(hasplugin=lambda name: True),
        getoption=lambda name, default=None: 2 if name == option else default,
    )
    with pytest.raises(pytest.UsageError, match="rows are measured one at a time"):
        conftest.pytest_configure(config)


def test_what_fails_or_has_no_time_is_a_row_with_the_reason(tmp_path):
    failed = run(tmp_path, "benchmarks/test_encoder_step.py", "--model", "none", "--peers", "torch")
    assert failed.returncode == pytest.ExitCode.TESTS_FAILED
    reason = "failed: RuntimeError: Model config for 'none' not found"
    assert f"| torch | 16 | fp32 | {reason}" in failed.stdout
    late = run(
        tmp_path, "benchmarks/test_sigmoid_loss.py", "benchmarks/test_loss_accuracy.py",
        "--peers", "slipform", "--sizes", "64", "128",
        "--dtypes", "fp32", "--seconds", "1e-9",
    )  # fmt: skip
    assert late.returncode == 0
    for size in (64, 128):
        line = f"| slipform | both | {size} | 512 | fp32 | left out after 1e-09 s |"
        assert line in late.stdout
    # The other file has no such peer.
    assert "loss_accuracy_cpu" not in late.stdout
    # Nothing was measured, so there is nothing to replace a file with.
    assert "nothing was measured: sigmoid_throughput_cpu.json is left as it is" in late.stdout
    assert not list(tmp_path.iterdir())
