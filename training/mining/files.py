"""Writing files that are whole or not there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


def write_atomically(path: Path, text: str) -> None:
    """Writes a text file; after a crash the path has the old content or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name when it is complete; what a crash leaves is written over."""
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    """Writes json atomically, keys in their order."""
    write_atomically(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def read_json(path: Path) -> Any | None:
    """The file's json; None if there is no such file.

    Raises:
        ValueError: not json; the message names the file.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} is not json: {error}") from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock on a file, which is deleted at the end; a killed process gives it up.

    Raises:
        ValueError: another process holds it.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{path}: another process is at work on this output") from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
