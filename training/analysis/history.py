"""Gradient shares over training, as `slipform train` and the demo log them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipform_training.finetune.log import read_log


@dataclass(frozen=True)
class LoggedShare:
    """A record of a log: pull 1 - p_+, and its parts from hard and easy negatives (sum 1).

    hard_share and easy_share are None for a loss without hard captions.
    """

    run: str
    step: int
    pull: float
    hard_share: float | None
    easy_share: float | None


def logged_shares(label: str, path: Path) -> list[LoggedShare]:
    """The records of a log.jsonl that have shares.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not such a log, or none of its records has shares.
    """
    if not path.is_file():
        raise FileNotFoundError(2, "No such file", str(path))
    rows = [
        LoggedShare(
            run=label,
            step=record["step"],
            pull=record["share_pull"],
            hard_share=record.get("share_hard"),
            easy_share=record.get("share_easy"),
        )
        for record in read_log(path)
        if "share_pull" in record
    ]
    if not rows:
        raise ValueError(f"{path}: got no gradient shares, expected records with share_pull")
    return rows
