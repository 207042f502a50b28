"""A run that stops at one of its writes to disk, as a crash would."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class Crash(BaseException):
    """Not caught by what a run catches."""


class WriteStops:
    """Counts os.replace, os.fsync and Path.unlink, and can stop a run at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._at, self._after = -1, False
        for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def stops(self, run: Callable[[], Any], *, step: int, after: bool) -> bool:
        """Whether `run` came to its write number `step`, from 1, and was stopped there: before
        it took effect, or `after`. `count` begins anew with it."""
        self.count, self._at, self._after = 0, step, after
        try:
            run()
        except Crash:
            return True
        finally:
            self._at = -1
        return False

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            due = self.count == self._at
            if due and not self._after:
                raise Crash
            result = real(*arguments, **named)
            if due:
                raise Crash
            return result

        return call
