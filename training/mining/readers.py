"""Caption files as streams of rows: jsonl, tsv and csv, COCO's json, webdataset's tar files."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipform_training.mining.archives import archive_rows
from slipform_training.mining.json_stream import array_entries
from slipform_training.mining.position import Position, open_text
from slipform_training.mining.rows import InputError, Row

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".tsv": "tsv",
    ".csv": "csv",
    ".json": "coco",
    ".tar": "shards",
}

# Columns of tables and keys of jsonl that go into a row's `extra`.
HANDED_ON = ("neg_caption", "neg_image", "hard_captions", "concreteness")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of the columns, or json keys, that hold what is read.

    Attributes:
        caption: None: "title" of tsv and csv (NegCLIP's), "caption" otherwise.
        image: None: "filepath" of tsv and csv, "image" otherwise.
        id: None: "id" of jsonl where a row has it; else rows are numbered.
        needs_image: whether a table without the column of images is refused.
    """

    caption: str | None = None
    image: str | None = None
    id: str | None = None
    needs_image: bool = False


def format_of(path: Path) -> str:
    """The format that the file's name tells.

    Raises:
        InputError: none that is known.
    """
    found = FORMATS.get(path.suffix.lower())
    if found is None:
        raise InputError(f"{path}: the name must end in one of {', '.join(FORMATS)}")
    return found


def read_rows(
    paths: Sequence[Path], columns: Columns | None = None, position: Position | None = None
) -> Iterator[Row]:
    """The rows of all files, in order; one row in memory at a time.

    Of COCO's json the images' names are kept as well.

    Args:
        paths: the files.
        columns: which columns to read.
        position: kept up while reading.

    Raises:
        OSError: a file cannot be read.
        InputError: a file's content is not what its name tells; the message names the place.
    """
    columns, position = columns or Columns(), position or Position(paths)
    names = [path.name for path in paths]
    for path in paths:
        prefix = path.name if names.count(path.name) == 1 else path.as_posix()
        try:
            for row in _rows_of(path, columns, prefix, position):
                position.rows += 1
                yield row
        except UnicodeDecodeError as error:
            raise InputError(f"{path} must be UTF-8: {error}") from error
        position.leave(path)


def _rows_of(path: Path, columns: Columns, prefix: str, position: Position) -> Iterator[Row]:
    kind = format_of(path)
    if kind == "jsonl":
        return _jsonl(path, columns, prefix, position)
    if kind == "coco":
        if (columns.caption, columns.image, columns.id) != (None, None, None):
            raise InputError(f"{path}: COCO's json has fixed names, got {columns}")
        return _coco(path, prefix, position)
    if kind == "shards":
        caption = columns.caption or "caption"
        return archive_rows(path, prefix=prefix, caption=caption, position=position)
    return _table(path, columns, prefix, "\t" if kind == "tsv" else ",", position)


def _text(value: Any, what: str, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise InputError(f"{where}: {what} must be text, got {value!r}")


def _jsonl(path: Path, columns: Columns, prefix: str, position: Position) -> Iterator[Row]:
    caption, image = columns.caption or "caption", columns.image or "image"
    with open_text(path, position) as file:
        for number, line in enumerate(file):
            if not line.strip():
                continue
            where = f"{path}, line {number + 1}"
            try:
                entries = json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(
                    f"{where} is not json: {error.msg}, character {error.colno}"
                ) from None
            if not isinstance(entries, dict) or caption not in entries:
                raise InputError(f"{where} must be an object with the key {caption!r}")
            if columns.id is not None and columns.id not in entries:
                raise InputError(f"{where} must have the key {columns.id!r}")
            own = entries.get(columns.id or "id")
            yield Row(
                id=f"{prefix}:{number}" if own is None else str(own),
                image=_text(entries.get(image), image, where) or "",
                caption=_text(entries[caption], caption, where),
                extra={name: entries[name] for name in HANDED_ON if name in entries},
            )


def _table(
    path: Path, columns: Columns, prefix: str, delimiter: str, position: Position
) -> Iterator[Row]:
    caption, image = columns.caption or "title", columns.image or "filepath"
    csv.field_size_limit(sys.maxsize)
    with open_text(path, position, newline="") as file:
        reader = csv.DictReader(file, delimiter=delimiter)
        header = reader.fieldnames or []
        wanted = [caption, *(name for name in (columns.image, columns.id) if name is not None)]
        if columns.needs_image and image not in wanted:
            wanted.append(image)
        for name in wanted:
            if name not in header:
                raise InputError(f"{path} must have the column {name!r}, got {list(header)}")
        for number, entries in enumerate(reader):
            if None in entries or None in entries.values():
                raise InputError(
                    f"{path}, line {reader.line_num}: as many cells as the header's "
                    f"{len(header)} expected"
                )
            yield Row(
                id=entries[columns.id] if columns.id else f"{prefix}:{number}",
                image=entries.get(image) or "",
                caption=entries[caption],
                extra={name: entries[name] for name in HANDED_ON if name in entries},
            )


def _coco(path: Path, prefix: str, position: Position) -> Iterator[Row]:
    try:
        names = {
            entry["id"]: entry["file_name"] for entry in array_entries(path, "images", position)
        }
        for entry in array_entries(path, "annotations", position):
            where = f"{path}, annotation {entry['id']}"
            if entry["image_id"] not in names:
                raise InputError(f"{where}: no image {entry['image_id']!r}")
            yield Row(
                id=f"{prefix}:{entry['id']}",
                image=names[entry["image_id"]],
                caption=_text(entry["caption"], "caption", where),
            )
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path} must be COCO's captions, with images (id, file_name) and annotations "
            f"(id, image_id, caption); missing: {error}"
        ) from error
