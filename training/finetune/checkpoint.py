"""Checkpoints of a run: written atomically, read without running code from the file."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

# Raised when the layout of the file changes, so that an old file is refused by name.
FORMAT = 2


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write `state` to `path` so that a reader finds the whole old file or the whole new one.

    The state is tensors and plain containers. The file is written beside its final place, flushed
    to the disk and then renamed over it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(path: Path, *, map_location: str | torch.device = "cpu") -> dict[str, Any]:
    """The state that save_checkpoint wrote.

    Loaded with weights_only=True, so a checkpoint from elsewhere cannot run code.
    Raises FileNotFoundError, or ValueError for a file that is not such a checkpoint.
    """
    try:
        state = torch.load(path, map_location=map_location, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(
            f"path: got {path}, which cannot be read as a checkpoint ({error})"
        ) from error
    found = state.get("format") if isinstance(state, dict) else None
    if found != FORMAT:
        raise ValueError(f"path: got {path} of format {found}, expected format {FORMAT}")
    return state


def random_state() -> dict[str, Any]:
    """The state of the global random generators: torch's (CPU and each GPU), numpy's, python's."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [name, [int(key) for key in keys], int(position), int(has_gauss), float(gauss)],
        "python": random.getstate(),
    }


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Put the generators back to what random_state gave.

    The GPUs' generators are restored when there are as many GPUs as then; a run that moves to
    another number of them cannot repeat its random numbers anyway.
    """
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([one.cpu() for one in state["cuda"]])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    version, words, gauss_next = state["python"]
    random.setstate((version, tuple(words), gauss_next))


def seed_everything(seed: int) -> None:
    """Seed the global generators of torch, numpy and random."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
