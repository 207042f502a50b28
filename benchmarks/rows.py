"""The rows of a run, by question: what a test's parameters are called in them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch

from benchmarks.peers.base import Peer

# Parameter of a test: the option with its values, and the constant of the test file with the
# default ones. The first varies slowest.
PARAMETERS = {
    "D": ("dims", "DIMS"),
    "N": ("sizes", "SIZES"),
    "batch": ("batches", "BATCHES"),
    "dtype": ("dtypes", "DTYPES"),
    "which": ("passes", "PASSES"),
    "peer": ("peers", "PEERS"),
}
_KEYS = {"which": "pass"}
_ORDER = ("peer", "pass", "N", "batch", "D", "dtype")


class Rows:
    """Rows and versions of what was measured, by the QUESTION of the test's file."""

    def __init__(self, device: torch.device):
        self.where = "gpu" if device.type == "cuda" else "cpu"
        self.by_question: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.packages: dict[str, dict[str, str]] = defaultdict(dict)

    def file(self, question: str) -> str:
        return f"{question}_{self.where}"

    def add(self, item: Any, measured: dict[str, Any]) -> None:
        """A row of the test `item`: its parameters as keys, then `measured`.

        `measured` may be several rows: {"rows": [...]}.
        """
        question = item.module.QUESTION
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        peer = parameters.get("peer")
        keys = {
            _KEYS.get(name, name): getattr(value, "name", value)
            for name, value in parameters.items()
        }
        ordered = {key: keys[key] for key in _ORDER if key in keys}
        for row in measured.get("rows", [measured]):
            self.by_question[question].append(ordered | row)
        version = peer.version() if isinstance(peer, Peer) else None
        if version is not None:
            self.packages[question][peer.distribution] = version


def failure(error: BaseException) -> str:
    """The reason of a row whose measurement failed: name and first line of the exception."""
    text = (str(error).strip().splitlines() or [""])[0]
    return f"failed: {type(error).__name__}: {text}".rstrip(": ")[:200]


def stop_unless_run(reason: str | None) -> None:
    """Skip the test for the reason, if there is one."""
    if reason is not None:
        pytest.skip(reason)
