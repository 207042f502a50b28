"""Rows of a data set that was downloaded from the hub: a json list, json lines, or parquet.

In parquet, an image column holds {bytes, path}; the bytes are written to the image folder once, as
they are, so that every later step reads plain files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from slipform_training.evaluation.suites.suite import ImageRef, Request, list_rows, text_at

# Rows of parquet in memory at a time; each may hold images.
_BATCH = 64


def hub_rows(request: Request, *names: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of the first of the files that is there, with their place for messages.

    names: json, jsonl or parquet files; a pattern such as data/test-*.parquet means all of them.

    Raises FileNotFoundError if there is none, ValueError for a file that is not what its name says.
    """
    for path in _files(request, names):
        if path.suffix == ".parquet":
            yield from _parquet_rows(path)
        elif path.suffix == ".jsonl":
            yield from _line_rows(path)
        else:
            yield from list_rows(path)


def hub_image(
    row: dict[str, Any], key: str, where: str, request: Request, root: str, name: str
) -> ImageRef:
    """The image at a key: the name of a file, or an image of parquet, which is written as `name`.

    Raises ValueError where there is neither, or no folder to write to.
    """
    cell = row.get(key)
    if not isinstance(cell, dict):
        return ImageRef(root, text_at(row, key, where))
    content = cell.get("bytes")
    if not content:
        return ImageRef(root, text_at(cell, "path", f"{where}, {key}"))
    path = request.roots.new_folder(root) / name
    if not path.is_file() or path.stat().st_size != len(content):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{name}.{os.getpid()}.tmp")
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return ImageRef(root, name)


def _files(request: Request, names: Sequence[str]) -> list[Path]:
    for name in names if request.annotations.is_dir() else ():
        if "*" in name and (found := sorted(request.annotations.glob(name))):
            return found
        if (request.annotations / name).is_file():
            return [request.annotations / name]
    return [request.find(*names)]


def _line_rows(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield f"{path}: line {number}", json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}: line {number} must be json, got {error}") from error


def _parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow
    import pyarrow.parquet

    try:
        number = 0
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=_BATCH):
            for row in batch.to_pylist():
                yield f"{path}: row {number}", row
                number += 1
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} must be parquet, got {error}") from error
