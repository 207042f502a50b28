"""Configurations that `tuning.py` has measured, in one small file; see there."""

from __future__ import annotations

import functools
import json
import os
import tempfile
import warnings
from dataclasses import asdict
from pathlib import Path

import torch
import triton  # type: ignore[import-untyped]

from ...problem import Problem
from . import configs
from .configs import Config

FILE = "triton_configs.json"
# Features of similar depth share a configuration.
DEPTH_STEP = 256


def lookup(kernel: str, problem: Problem) -> Config | None:
    """The tuned configuration for a problem like this one, or None."""
    tuned = _load(path_of_cache())
    return tuned.get(key_of(kernel, problem)) if tuned else None


def key_of(kernel: str, problem: Problem) -> str:
    """What a configuration was measured for: the device, the version, and the kind of problem."""
    kind = configs.product_kind(problem.rows.dtype, problem.precision)
    depth = -(-problem.rows.shape[1] // DEPTH_STEP) * DEPTH_STEP
    device, K = _device_name(problem.rows.device), hard_count(problem)
    return f"{device}, triton {triton.__version__}, {kernel}, {kind}, D {depth}, K {K}"


@functools.cache
def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def path_of_cache() -> Path:
    return Path(os.environ.get("SLIPFORM_CACHE") or Path.home() / ".cache" / "slipform") / FILE


@functools.cache
def _load(path: Path) -> dict[str, Config]:
    """The file's configurations, read once a process; a broken file warns and counts as empty."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    except OSError as error:
        return _broken(path, error)
    try:
        return {key: Config(**value) for key, value in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        return _broken(path, error)


def _broken(path: Path, error: Exception) -> dict[str, Config]:
    warnings.warn(
        f"slipform_kernels: tuned configurations in {path} cannot be read ({error}); they are "
        "ignored. Delete the file or tune again.",
        stacklevel=2,
    )
    return {}


def save(found: dict[str, Config]) -> None:
    """Add to the file, atomically."""
    path = path_of_cache()
    path.parent.mkdir(parents=True, exist_ok=True)
    _load.cache_clear()
    entries = {key: asdict(config) for key, config in {**_load(path), **found}.items()}
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(entries, file, indent=1)
    os.replace(file.name, path)  # another process reads the old file or the new one
    _load.cache_clear()


def hard_count(problem: Problem) -> int:
    """K, the number of hard columns with margins."""
    if problem.hard_cols is None or problem.margin is None:
        return 0
    return problem.hard_cols.shape[1]
