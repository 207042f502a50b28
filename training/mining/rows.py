"""A row of a caption file, and the errors that name where one came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class InputError(ValueError):
    """A caption file that cannot be read; the message names the file and the place."""


@dataclass(frozen=True)
class Row:
    """One caption.

    Attributes:
        id: fixes the choices for the row: the file's own, else the file's name and the row's
            number.
        image: path or key of the image; "" if the file names none.
        caption: the text; None where the file has none.
        extra: columns that are handed on.
        files: reads the sample's files, (name, content) each, of an archive.
    """

    id: str
    image: str
    caption: str | None
    extra: dict[str, Any] = field(default_factory=dict)
    files: Callable[[], list[tuple[str, bytes]]] | None = None
