"""The entries of an array in a large json file, one by one: the file is never read whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from slipform_training.mining.position import Position, open_text
from slipform_training.mining.rows import InputError

_CHUNK = 1 << 16


def array_entries(path: Path, name: str, position: Position | None = None) -> Iterator[Any]:
    """The entries of the array under a key of the file's top object.

    Args:
        path: a json file whose top is an object.
        name: the key.
        position: follows the reading, if any.

    Raises:
        InputError: not json, no object, or no such array.
    """
    with open_text(path, position or Position((path,))) as file:
        text = _Text(file, path)
        text.expect("{")
        if text.peek() == "}":
            raise InputError(f"{path} has no array {name!r}")
        while True:
            key = text.value()
            text.expect(":")
            if key == name:
                if text.peek() != "[":
                    raise InputError(f"{path}: {name!r} must be an array")
                yield from text.entries()
                return
            if text.peek() == "[":
                for _ in text.entries():
                    pass
            else:
                text.value()
            if text.peek() != ",":
                raise InputError(f"{path} has no array {name!r}")
            text.expect(",")


class _Text:
    """A window onto the file that grows at the end and is cut at the front."""

    def __init__(self, file: IO[str], path: Path) -> None:
        self._file, self._path = file, path
        self._window, self._at, self._ended = "", 0, False
        self._decoder = json.JSONDecoder()

    def peek(self) -> str:
        while True:
            while self._at < len(self._window) and self._window[self._at].isspace():
                self._at += 1
            if self._at < len(self._window):
                return self._window[self._at]
            if not self._grow():
                raise InputError(f"{self._path} ends within its json")

    def expect(self, sign: str) -> None:
        if self.peek() != sign:
            found = self._window[self._at : self._at + 20]
            raise InputError(f"{self._path} is not as expected: {sign!r} wanted, got {found!r}")
        self._at += 1

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._window, self._at)
                # A number that reaches the window's end may go on after it.
                if end < len(self._window) or self._ended:
                    self._at = end
                    return value
            except json.JSONDecodeError as error:
                if self._ended:
                    raise InputError(f"{self._path} is not json: {error.msg}") from None
            self._grow()

    def entries(self) -> Iterator[Any]:
        self.expect("[")
        if self.peek() == "]":
            self.expect("]")
            return
        while True:
            yield self.value()
            if self.peek() == "]":
                self.expect("]")
                return
            self.expect(",")

    def _grow(self) -> bool:
        # Twice as much each time a value does not fit, so that long values stay cheap.
        more = self._file.read(max(_CHUNK, len(self._window) - self._at))
        self._window, self._at = self._window[self._at :] + more, 0
        self._ended = not more
        return bool(more)
