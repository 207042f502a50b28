"""How much memory a step adds, measured in a process of its own; and how much a machine has.

    python -m benchmarks.memory MODULE:FUNCTION WARM_UP ARGUMENTS

is the child: FUNCTION(**ARGUMENTS) makes a step with everything in place that it does not count
for. On a CPU the figure is the growth of the peak resident memory in the step, on a GPU that of
what torch's allocator holds.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

# Of what is free. An estimate is one, and the rest of the machine goes on.
SHARE = 0.8


def added_bytes(function: str, warm_up: dict[str, Any], arguments: dict[str, Any]) -> int:
    """Bytes that the step of `function` ("module:name") adds, made from these arguments.

    `warm_up` are the arguments of a small one that is run before: it loads libraries and starts
    threads.

    Raises:
        RuntimeError: the child failed, with its last line.
    """
    both = map(json.dumps, (warm_up, arguments))
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", function, *both],
        cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if run.returncode:
        raise RuntimeError((run.stderr.strip().splitlines() or [f"status {run.returncode}"])[-1])
    return int(json.loads(run.stdout.splitlines()[-1]))


def child(function: str, warm_up: dict[str, Any], arguments: dict[str, Any]) -> int:
    module, _, name = function.partition(":")
    make = getattr(importlib.import_module(module), name)
    for each in (warm_up, arguments):
        step = make(**each)
        _trim()
        before = reset_peak()
        step()
    return peak() - before


def _trim() -> None:
    """Give back what was freed: a step that reuses it would seem to add nothing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak() -> int:
    """Make the peak what is held now, where the system can; returns the peak in bytes."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    else:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def available(device: torch.device) -> int | None:
    """Bytes that are free on the device, or None where the system does not tell."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / f"memory.{name}").read_text() for name in ("max", "current"))
        found.append(int(limit) - int(used))
    return min(found, default=None)


def lacking(needed: int, device: torch.device) -> str | None:
    """Why something that needs so many bytes is not run, or None."""
    free = available(device)
    if free is None or needed <= SHARE * free:
        return None
    return f"would need {needed / 2**30:.0f} GiB, of {free / 2**30:.0f} GiB free"


if __name__ == "__main__":
    function, *both = sys.argv[1:]
    print(json.dumps(child(function, *map(json.loads, both))))
