"""Progress on the terminal."""

from __future__ import annotations

from typing import Any


class Bars:
    """A progress bar for each pass, one after the other."""

    def __init__(self, *, shown: bool) -> None:
        self._shown, self._name = shown, ""
        self._bar: Any = None

    def update(self, name: str, rows: int) -> None:
        """More rows of the pass `name` are done."""
        from tqdm import tqdm

        if name != self._name:
            self.close()
            self._name = name
            self._bar = tqdm(desc=name, unit=" rows", unit_scale=True, disable=not self._shown)
        assert self._bar is not None
        self._bar.update(rows)

    def close(self) -> None:
        """Ends the bar that is shown."""
        if self._bar is not None:
            self._bar.close()
