"""How far a reader is through its files: for progress, which needs no exact figure."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, TextIO


class _Tells(Protocol):
    def tell(self) -> int: ...


class Position:
    """Rows and bytes read so far of some files.

    Args:
        paths: the files, in the order of reading.

    Attributes:
        rows: read so far.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._total = sum(path.stat().st_size for path in paths)
        self._before = self._inside = 0
        self._file: _Tells | None = None
        self.rows = 0

    @contextlib.contextmanager
    def within(self, file: _Tells) -> Iterator[None]:
        """Follows the reading of a file."""
        self._file = file
        try:
            yield
        finally:
            self._file, self._inside = None, file.tell()

    def leave(self, path: Path) -> None:
        """Takes note that a file was read to its end."""
        self._before += path.stat().st_size
        self._inside = 0

    def estimate(self) -> int:
        """The rows of all files, as far as those read so far tell; never less than these."""
        done = self._before + (self._inside if self._file is None else self._file.tell())
        return max(self.rows, round(self.rows * self._total / done)) if done else self.rows


@contextlib.contextmanager
def open_text(path: Path, position: Position, *, newline: str | None = None) -> Iterator[TextIO]:
    """A text file in UTF-8, with or without a mark, whose reading the position follows."""
    with path.open("rb", buffering=0) as raw, position.within(raw):
        yield io.TextIOWrapper(io.BufferedReader(raw), encoding="utf-8-sig", newline=newline)
