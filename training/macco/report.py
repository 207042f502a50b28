"""What a run of `slipform concepts` found, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from slipform_training.macco.boxes import Box
from slipform_training.macco.rows import Concepts

_WORDS = ("objects", "attributes", "relations")


class ConceptReport:
    """Counts, kept up while running; `data` is json, from which it goes on.

    Args:
        data: of an earlier report; None starts at zero.
    """

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        data = data or {}
        self.rows: int = data.get("rows", 0)
        self.with_boxes: int = data.get("with_boxes", 0)
        self.words = Counter(data.get("words", {}))
        self.with_words = Counter(data.get("with_words", {}))
        self.phrases = Counter(data.get("phrases", {}))
        self.without_boxes = Counter(data.get("without_boxes", {}))
        self.left_out = Counter(data.get("left_out", {}))

    def leave_out(self, reason: str) -> None:
        """Counts a row of the input that is not in the output."""
        self.left_out[reason] += 1

    def add(self, concepts: Concepts, boxes: Sequence[Sequence[Box]] | str) -> None:
        """Counts a row.

        Args:
            concepts: of the row.
            boxes: of its phrases, or why there are none.
        """
        self.rows += 1
        for name in _WORDS:
            found = len(getattr(concepts, name))
            self.words[name] += found
            self.with_words[name] += bool(found)
        boxed = 0 if isinstance(boxes, str) else sum(map(bool, boxes))
        self.phrases["all"] += len(concepts.phrases)
        self.phrases["with boxes"] += boxed
        self.with_boxes += bool(boxed)
        if not boxed:
            found_none = boxes if isinstance(boxes, str) else "no box found"
            self.without_boxes[found_none if concepts.phrases else "no phrase"] += 1

    @property
    def data(self) -> dict[str, Any]:
        """The report as json."""
        return {
            "rows": self.rows,
            "left_out": dict(sorted(self.left_out.items())),
            "words": {name: self.words[name] for name in _WORDS},
            "with_words": {name: self.with_words[name] for name in _WORDS},
            "phrases": {name: self.phrases[name] for name in ("all", "with boxes")},
            "with_boxes": self.with_boxes,
            "without_boxes": dict(sorted(self.without_boxes.items())),
        }

    def text(self) -> str:
        """The report for people."""

        def share(count: int) -> str:
            return f"{count}" + (f" ({100 * count / self.rows:.1f}%)" if self.rows else "")

        lines = [f"rows: {self.rows}"]
        lines += [f"left out, {why}: {count}" for why, count in sorted(self.left_out.items())]
        lines += [
            f"rows with {name}: {share(self.with_words[name])}, {self.words[name]} in all"
            for name in _WORDS
        ]
        lines.append(f"phrases: {self.phrases['all']}, with boxes {self.phrases['with boxes']}")
        lines.append(f"rows with boxes: {share(self.with_boxes)}")
        lines += [f"  without, {why}: {n}" for why, n in sorted(self.without_boxes.items())]
        return "\n".join(lines)
