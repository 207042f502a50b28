"""Which peers are exact, and what can they do? See `accuracy.py`.

python -m pytest benchmarks/test_loss_accuracy.py [--peers open_clip liger]
"""

from __future__ import annotations

from typing import Any

from benchmarks import accuracy
from benchmarks.peers import LOSSES

QUESTION = "loss_accuracy"
PEERS = LOSSES


def test_loss_accuracy(peer: Any, settings: Any, save_row: Any) -> None:
    save_row(rows=accuracy.rows_of(peer, settings.device))
