"""What a mining run did, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from slipform_training.concreteplant.rewrite import HardCaption

_EDGES = [1.0 + 0.5 * i for i in range(8)]


class Report:
    """Counts, kept up while mining; `data` is json, from which it goes on.

    Args:
        data: of an earlier report; None starts at zero.

    Attributes:
        workers: processes that found candidates in this run; no part of `data`, which is the same
            however many there were.
    """

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        data = data or {}
        self.workers = 1
        self.rows: int = data.get("rows", 0)
        self.mined: int = data.get("mined", 0)
        self.hard_captions: int = data.get("hard_captions", 0)
        self.without = Counter(data.get("without", {}))
        self.edits = Counter(data.get("edits", {}))
        self.rewriters = Counter(data.get("rewriters", {}))
        self.concreteness = Counter(data.get("concreteness", {}))
        self.notes = Counter(data.get("notes", {}))

    def add(self, hard: Sequence[HardCaption], reason: str | None) -> None:
        """Counts a row: its hard captions, or why there is none."""
        self.rows += 1
        self.mined += bool(hard)
        self.hard_captions += len(hard)
        if not hard:
            self.without[reason or "unknown"] += 1
        for item in hard:
            self.edits[item.edit] += 1
            self.rewriters[item.rewriter] += 1
            edge = max(edge for edge in _EDGES if edge <= item.concreteness)
            self.concreteness[f"{edge:.1f} to {edge + 0.5:.1f}"] += 1

    def join(self, other: Report) -> None:
        """Adds the counts of another part."""
        self.rows += other.rows
        self.mined += other.mined
        self.hard_captions += other.hard_captions
        for name in ("without", "edits", "rewriters", "concreteness", "notes"):
            getattr(self, name).update(getattr(other, name))

    @property
    def data(self) -> dict[str, Any]:
        """The report as json."""
        return {
            "rows": self.rows,
            "mined": self.mined,
            "without": dict(sorted(self.without.items())),
            "hard_captions": self.hard_captions,
            "edits": {edit: self.edits[edit] for edit in "OAR"},
            "rewriters": dict(sorted(self.rewriters.items())),
            "concreteness": dict(sorted(self.concreteness.items())),
            "notes": dict(sorted(self.notes.items())),
        }

    def text(self) -> str:
        """The report for people."""
        share = f" ({100 * self.mined / self.rows:.1f}%)" if self.rows else ""
        lines = [f"rows: {self.rows}", f"mined: {self.mined}{share}"]
        lines += [f"  without, {why}: {count}" for why, count in sorted(self.without.items())]
        names = {"O": "object", "A": "attribute", "R": "relation"}
        lines.append(f"hard captions: {self.hard_captions}")
        lines += [f"  edit {edit} ({names[edit]}): {self.edits[edit]}" for edit in "OAR"]
        lines += [f"  rewriter {name}: {count}" for name, count in sorted(self.rewriters.items())]
        lines += [f"  {note}: {count}" for note, count in sorted(self.notes.items())]
        lines.append("concreteness of the replaced words:")
        most = max(self.concreteness.values(), default=1)
        for edge in _EDGES:
            name = f"{edge:.1f} to {edge + 0.5:.1f}"
            count = self.concreteness[name]
            lines.append(f"  {name} {'#' * round(40 * count / most):<40} {count}")
        return "\n".join(lines)
