"""Mined rows, and the same rows with their hard images: jsonl, NegCLIP's tsv, tar files."""

from __future__ import annotations

import ast
import csv
import io
import json
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from slipform_training.mining.archives import check_member_name, split_key
from slipform_training.train.samples import SampleError
from slipform_training.train.shards import IMAGE_ENDINGS, Members, read_span, shard_samples

FIELD = "hard_images"


@dataclass(frozen=True, kw_only=True)
class MinedRow:
    """A row with its hard captions.

    Attributes:
        where: its place, for messages.
        id: fixes the noise: the row's own, else the file's name and the row's number.
        image: path of the image, or of the archive that holds it.
        span: place and size of the image in the archive; () for a file.
        hard_captions: one image is made of each.
        entries: the row as it was read.
        files: reads the sample's files, (name, content) each, of an archive.
    """

    where: str
    id: str
    image: str
    hard_captions: list[str]
    entries: dict[str, Any]
    span: tuple[int, ...] = ()
    files: Callable[[], list[tuple[str, bytes]]] = field(default=list)


def read_mined(path: Path) -> Iterator[MinedRow | SampleError]:
    """The rows of a file in order; a row that cannot be used is the error that names it.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file as a whole; the message names it.
    """
    readers = {".jsonl": _json_lines, ".tsv": _table, ".tar": _archive}
    yield from readers[path.suffix](path)


def _tried(read: Callable[..., MinedRow], *args: Any) -> MinedRow | SampleError:
    try:
        return read(*args)
    except SampleError as error:
        return error


def _json_lines(path: Path) -> Iterator[MinedRow | SampleError]:
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if line.strip():
                yield _tried(_json_row, path, number, line)


def _json_row(path: Path, number: int, line: bytes) -> MinedRow:
    where = f"{path}, line {number + 1}"
    try:
        entries = json.loads(line)
    except ValueError as error:
        raise SampleError("broken row", where, f"not json ({error})") from error
    if not isinstance(entries, dict):
        raise SampleError("broken row", where, f"got {type(entries).__name__}, expected an object")
    return _row(where, f"{path.name}:{number}", entries, entries.get("image"))


def _row(where: str, place: str, entries: dict[str, Any], image: Any, **more: Any) -> MinedRow:
    own = entries.get("id")
    if not isinstance(image, str) or not image:
        raise SampleError("no image", where, f"got {image!r}, expected a path")
    return MinedRow(
        where=where,
        id=place if own is None else str(own),
        image=image,
        hard_captions=_texts(entries.get("hard_captions", []), where),
        entries=entries,
        **more,
    )


def _texts(found: Any, where: str) -> list[str]:
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise SampleError("broken row", where, "the hard captions are no list of texts")
    if not all(one.strip() for one in found):
        raise SampleError("empty hard caption", where, f"in {found!r}")
    return found


def _table(path: Path) -> Iterator[MinedRow | SampleError]:
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t")
        header = reader.fieldnames or []
        for name in ("filepath", "neg_caption"):
            if name not in header:
                raise ValueError(f"{path} must have the column {name!r}, got {list(header)}")
        for number, cells in enumerate(reader):
            where = f"{path}, line {reader.line_num}"
            yield _tried(_table_row, where, f"{path.name}:{number}", cells)


def _table_row(where: str, place: str, cells: dict[str, Any]) -> MinedRow:
    if None in cells or None in cells.values():
        raise SampleError("broken row", where, "not as many cells as columns")
    try:
        hard = ast.literal_eval(cells["neg_caption"].strip() or "[]")
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise SampleError("broken row", where, "neg_caption is not a Python list") from error
    row = {"id": cells.get("id"), "hard_captions": hard}
    found = _row(where, place, row, cells["filepath"])
    return MinedRow(**{**vars(found), "entries": cells})


def _archive(path: Path) -> Iterator[MinedRow | SampleError]:
    for key, members, entries in shard_samples(path):
        yield _tried(_sample, path, key, members, entries)


def _sample(path: Path, key: str, members: Members, entries: dict[str, Any]) -> MinedRow:
    where = f"{path}, sample {key}"
    if "error" in entries and "hard_captions" not in entries:
        raise SampleError("broken row", where, str(entries["error"]))
    images = [ending for ending in IMAGE_ENDINGS if ending in members]
    if len(images) != 1:
        raise SampleError("no image", where, f"one is expected, its files are {sorted(members)}")
    names = {f"{key}.{ending}": span for ending, span in members.items()}
    for name in names:
        check_member_name(name, where)
    return _row(
        where,
        f"{path.name}:{key}",
        entries,
        str(path),
        span=members[images[0]],
        files=lambda: [(name, read_span(path, span)) for name, span in names.items()],
    )


class RowWriter(Protocol):
    """Writes rows to an open file."""

    def write(self, row: MinedRow, hard_images: list[str]) -> None:
        """Appends a row with the paths of its hard images."""

    def close(self) -> None:
        """Ends the content; the file stays open."""


def row_writer(kind: str, file: IO[bytes]) -> RowWriter:
    """The writer for the file names' ending `kind`."""
    writers: dict[str, Callable[[IO[bytes]], RowWriter]] = {
        ".jsonl": _JsonLines,
        ".tsv": _Table,
        ".tar": _Archive,
    }
    return writers[kind](file)


class _JsonLines:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, row: MinedRow, hard_images: list[str]) -> None:
        line = json.dumps({**row.entries, FIELD: hard_images})
        self._file.write(line.encode() + b"\n")

    def close(self) -> None: ...


class _Table:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._columns: list[str] = []

    def write(self, row: MinedRow, hard_images: list[str]) -> None:
        cells = {**row.entries, FIELD: repr(hard_images)}
        if not self._columns:
            self._columns = list(cells)
            self._line(self._columns)
        self._line([cells[name] for name in self._columns])

    def _line(self, cells: list[str]) -> None:
        text = io.StringIO()
        csv.writer(text, delimiter="\t", lineterminator="\n").writerow(cells)
        self._file.write(text.getvalue().encode())

    def close(self) -> None: ...


class _Archive:
    def __init__(self, file: IO[bytes]) -> None:
        self._tar = tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    def write(self, row: MinedRow, hard_images: list[str]) -> None:
        files = dict(row.files())
        key = split_key(next(iter(files)))[0]
        entries = {**row.entries, FIELD: hard_images}
        files[f"{key}.json"] = json.dumps(entries).encode()
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            self._tar.addfile(info, io.BytesIO(content))

    def close(self) -> None:
        self._tar.close()
