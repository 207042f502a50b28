"""What was measured, where: results as json, and as a markdown table."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch

import slipform_kernels
from slipform_training.machine import cpu_name

RESULTS = Path(os.environ.get("SLIPFORM_RESULTS") or Path(__file__).parent / "results")
# What a row is of; the rest of it was measured.
KEYS = ("peer", "pass", "N", "batch", "D", "dtype", "problem", "model")


def machine() -> dict[str, Any]:
    """Everything that a reader needs to judge a figure of this process; clocks are in MHz."""
    commit = _commit()
    return {
        "date": date.today().isoformat(),
        **_gpu(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        **_cpu_clocks(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "slipform_kernels": slipform_kernels.__version__,
        "commit": commit,
        "dirty": commit.endswith("-dirty"),
        "command": _command(),
    }


def save(
    name: str, rows: list[dict[str, Any]], *, packages: Mapping[str, str] | None = None
) -> None:
    """Write results/<name>.json whole, print the rows as a table, and name the rows that are gone.

    Args:
        packages: versions of what was measured beside, by distribution.
    """
    where = machine()
    if packages:
        where["packages"] = dict(sorted(packages.items()))
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    gone = _gone(path, rows)
    new = path.with_suffix(".json.new")
    new.write_text(json.dumps({"machine": where, "rows": rows}, indent=1, allow_nan=False) + "\n")
    new.replace(path)
    print(table(rows))
    print(", ".join(f"{key} {value}" for key, value in where.items()))
    if gone:
        print(f"{len(gone)} rows of the earlier {path.name} are gone: {'; '.join(gone)}")


def _gone(path: Path, rows: list[dict[str, Any]]) -> list[str]:
    """The keys of the file's measured rows that have no measured counterpart among `rows`."""
    if not path.exists():
        return []
    try:
        earlier = json.loads(path.read_text())["rows"]
    except (ValueError, KeyError, TypeError):
        return ["all of a file that is not readable"]
    now = {_key(row) for row in rows if "not_run" not in row}
    keys = dict.fromkeys(_key(row) for row in earlier if "not_run" not in row)
    return [key for key in keys if key not in now]


def _key(row: dict[str, Any]) -> str:
    return " ".join(f"{key}={row[key]}" for key in KEYS if key in row) or "those without keys"


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
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"
    return str(value)


def _command() -> str:
    """What was typed, in words that do not depend on where Python lies."""
    main = sys.modules["__main__"].__spec__
    module = "pytest" if main is None else main.name.removesuffix(".__main__")
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def _cpu_clocks() -> dict[str, int]:
    """Of the first core, now and at most, where the system tells."""
    found = {}
    folder = Path("/sys/devices/system/cpu/cpu0/cpufreq")
    for key, name in (("cpu_clock", "scaling_cur_freq"), ("cpu_clock_max", "cpuinfo_max_freq")):
        with contextlib.suppress(OSError, ValueError):
            found[key] = round(int((folder / name).read_text()) / 1000)  # kHz
    if "cpu_clock" not in found:
        with contextlib.suppress(OSError, ValueError):
            for line in Path("/proc/cpuinfo").read_text().splitlines():
                if line.startswith("cpu MHz"):
                    found["cpu_clock"] = round(float(line.partition(":")[2]))
                    break
    return found


def _gpu() -> dict[str, Any]:
    """Name, driver and clocks of the current GPU, if there is one."""
    if not torch.cuda.is_available():
        return {}
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name()}
    fields = {
        "gpu_driver": "driver_version",
        "gpu_clock": "clocks.sm",
        "gpu_clock_max": "clocks.max.sm",
        "gpu_memory_clock": "clocks.mem",
    }
    with contextlib.suppress(OSError):
        run = subprocess.run(
            ["nvidia-smi", f"--id={torch.cuda.current_device()}", "--format=csv,noheader,nounits",
             f"--query-gpu={','.join(fields.values())}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        values = [value.strip() for value in run.stdout.split(",")]
        if run.returncode == 0 and len(values) == len(fields):
            found |= dict(zip(fields, values, strict=True))
    return found


def _commit() -> str:
    """The commit, with "-dirty" if tracked files differ from it: other than the results' own."""
    commit = _git("describe", "--always")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":!results")
    return (commit + ("-dirty" if changed else "")) or "unknown"


def _git(*arguments: str) -> str:
    run = subprocess.run(
        ["git", *arguments],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return run.stdout.strip()
