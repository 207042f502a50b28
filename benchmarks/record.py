"""What was measured, where: results as json, and as a markdown table."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

import torch

import slipform_kernels

RESULTS = Path(os.environ.get("SLIPFORM_RESULTS") or Path(__file__).parent / "results")


def machine() -> dict[str, Any]:
    """Everything that a reader needs to judge a figure of this process."""
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {
        "date": date.today().isoformat(),
        **gpu,
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "slipform_kernels": slipform_kernels.__version__,
        "commit": _commit(),
    }


def save(name: str, rows: list[dict[str, Any]]) -> None:
    """Write results/<name>.json and print the rows as a markdown table."""
    where = machine()
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": where, "rows": rows}, indent=1) + "\n")
    print(table(rows))
    print(", ".join(f"{key} {value}" for key, value in where.items()))


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a markdown table, one column a key."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    lines = [
        keys,
        ["---"] * len(keys),
        *([_text(row.get(key, "")) for key in keys] for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _text(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return run.stdout.strip() or "unknown"
