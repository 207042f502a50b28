"""Configurations that `tuning.py` has measured, in one small file; see there.

One is used only for what it was measured for: another width, number of hard columns, kind of bias
or groups is other code, of which nothing is known, and there the table's configuration serves.
"""

from __future__ import annotations

import functools
import json
import os
import uuid
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
    """What a configuration was measured for: the device, the version, and what code is compiled.

    Not which gradients are wanted: `tune` measures with all of them, which hold the most registers.
    """
    kind = configs.product_kind(problem.rows.dtype, problem.precision)
    depth = -(-problem.rows.shape[1] // DEPTH_STEP) * DEPTH_STEP
    parts = [
        _device_name(problem.rows.device),
        f"triton {triton.__version__}",
        kernel,
        kind,
        f"D {depth}",
        f"K {hard_count(problem)}",
        f"bias {bias_kind(problem)}",
        "groups" if problem.row_group is not None else "no groups",
    ]
    return ", ".join(parts)


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


def check_writable() -> None:
    """Raise OSError where `save` would fail."""
    path = path_of_cache()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(_beside(path), "").unlink()
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a directory")
    except OSError as error:
        raise OSError(
            f"SLIPFORM_CACHE: got {path.parent}, which cannot be written ({error}); expected a "
            "folder for tuned configurations"
        ) from error


def save(found: dict[str, Config]) -> None:
    """Add to the file, atomically."""
    path = path_of_cache()
    path.parent.mkdir(parents=True, exist_ok=True)
    _load.cache_clear()
    entries = {key: asdict(config) for key, config in {**_load(path), **found}.items()}
    # Another process reads the old file or the new one.
    os.replace(_write(_beside(path), json.dumps(entries, indent=1) + "\n"), path)
    _load.cache_clear()


def _beside(path: Path) -> Path:
    """A name in the same folder that no other process or thread takes."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


def _write(path: Path, text: str) -> Path:
    """A new file with the permissions that the umask gives; none is left where writing fails."""
    try:
        with path.open("x") as file:
            file.write(text)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path


def bias_kind(problem: Problem) -> str:
    """ "none", "scalar", or "vector": one a column."""
    if problem.bias is None:
        return "none"
    return "vector" if problem.bias.ndim == 1 else "scalar"


def hard_count(problem: Problem) -> int:
    """K, the number of hard columns with margins."""
    if problem.hard_cols is None or problem.margin is None:
        return 0
    return problem.hard_cols.shape[1]
