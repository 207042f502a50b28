"""What a run that makes hard images did, in numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

from slipform_training.train.samples import SampleError


class ImageReport:
    """Counts of a run.

    Attributes:
        rows: read, without those of other parts.
        complete: rows that have an image of every hard caption.
        made, found: images made by this run, and by earlier ones.
        without: rows without hard captions.
        skipped: rows by what was wrong with them.
    """

    def __init__(self) -> None:
        self.rows = self.complete = self.made = self.found = self.without = 0
        self.skipped: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def skip(self, error: SampleError) -> None:
        """Counts a row that is left without hard images."""
        self.skipped[error.kind] += 1
        self._first.setdefault(error.kind, str(error))

    @property
    def data(self) -> dict[str, Any]:
        """The report as json."""
        return {
            "rows": self.rows,
            "complete": self.complete,
            "made": self.made,
            "found": self.found,
            "without": self.without,
            "skipped": dict(sorted(self.skipped.items())),
        }

    def text(self) -> str:
        """The report for people."""
        lines = [
            f"rows: {self.rows}",
            f"with hard images: {self.complete}",
            f"  without a hard caption: {self.without}",
        ]
        lines += [
            f"  skipped, {kind}: {count} (the first: {self._first[kind]})"
            for kind, count in sorted(self.skipped.items())
        ]
        lines.append(f"images made: {self.made}, there before: {self.found}")
        return "\n".join(lines)
