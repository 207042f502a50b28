"""Where and when a result was made: what a reader needs to judge its figures."""

from __future__ import annotations

import contextlib
import platform
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

import torch


def machine() -> dict[str, Any]:
    """date, gpu where there is one, cpu, threads of torch, and of a checkout the commit."""
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    found = commit()
    return {
        "date": date.today().isoformat(),
        **gpu,
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        **({"commit": found} if found else {}),
    }


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    """The checkout's commit, marked where files differ from it; "" of an installed package."""
    folder = Path(__file__).resolve().parent
    if not (folder.parent / ".git").exists():
        return ""
    try:
        run = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError:  # no git
        return ""
    return run.stdout.strip()
