"""The record of a run: one json object a line, and the progress bar."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm


class RunLog:
    """Appends records to a jsonl file; each has at least "step", the number of updates done."""

    def __init__(self, path: Path, *, keep_until: int) -> None:
        """Open `path`, dropping records after step `keep_until` (0 for a fresh run).

        Those are of updates that were lost since the checkpoint that the run resumes from, and
        will be written again.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [record for record in read_log(path) if record["step"] <= keep_until]
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text("".join(json.dumps(record) + "\n" for record in kept))
        os.replace(temporary, path)
        self._file = path.open("a")

    def write(self, record: dict[str, Any]) -> None:
        """Append one record, and flush it so that it can be watched."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class EventLog:
    """The same records for TensorBoard, where it is installed; else they are counted."""

    def __init__(self, folder: Path, *, keep_until: int) -> None:
        """Write into `folder`; events after step `keep_until` of an earlier run are hidden."""
        self.missing = 0
        self._writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self._writer = SummaryWriter(str(folder), purge_step=keep_until + 1)

    def write(self, record: dict[str, Any]) -> None:
        """One record: every number under its name."""
        if self._writer is None:
            self.missing += 1
            return
        for name, value in record.items():
            if isinstance(value, int | float) and name != "step":
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Write what is held back, and close."""
        if self._writer is not None:
            self._writer.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a log, in order; a last line cut off by a crash is left out."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(f"{path}: line {number} is not json ({error})") from error
    return records


class Progress:
    """A tqdm bar over updates that shows samples a second, loss, logit scale, the share of
    the gradient that hard captions have where it was measured last, and time left.

    On a terminal it redraws in place; in a file or a pipe it writes a line now and then.
    """

    def __init__(self, *, label: str, steps: int, done: int, shown: bool) -> None:
        self._share = ""
        redraws = sys.stderr.isatty()
        self._bar = tqdm(
            total=steps,
            initial=done,
            desc=label,
            unit="step",
            disable=not shown,
            dynamic_ncols=True,
            mininterval=0.2 if redraws else 15.0,
            maxinterval=10.0 if redraws else 60.0,
            bar_format="{desc}: {percentage:3.0f}%|{bar:12}| {n_fmt}/{total_fmt} "
            "[{elapsed}, {remaining} left]{postfix}",
        )

    def update(self, measured: Mapping[str, float]) -> None:
        """One more update done, with what was measured of it."""
        if "share_hard" in measured:
            self._share = f", hard {measured['share_hard']:.0%} of the pull"
        elif "share_pull" in measured:
            self._share = f", pull {measured['share_pull']:.2f}"
        self._bar.set_postfix_str(
            f"{measured['samples_per_second']:.0f} samples/s, loss {measured['loss']:.3f}, "
            f"scale {measured['logit_scale']:.1f}{self._share}",
            refresh=False,
        )
        self._bar.update()

    def close(self) -> None:
        """Leave the bar's last state on the screen."""
        self._bar.close()
