"""Progress on the terminal."""

from __future__ import annotations

from typing import Any


class Bars:
    """A progress bar for each pass, one after the other."""

    def __init__(self, *, shown: bool) -> None:
        self._shown, self._name = shown, ""
        self._bar: Any = None

    def update(self, name: str, done: int, total: int) -> None:
        """`done` of about `total` rows of the pass `name` are done."""
        from tqdm import tqdm

        if name != self._name:
            self.close()
            self._name = name
            # A resumed pass starts where it was.
            self._bar = tqdm(
                desc=name, unit=" rows", unit_scale=True, initial=done, disable=not self._shown
            )
        assert self._bar is not None
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Ends the bar that is shown."""
        if self._bar is not None:
            self._bar.close()
