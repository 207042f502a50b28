"""Mined rows as files: jsonl, NegCLIP's tsv, webdataset's tar files.

A writer appends to a ".partial" file. What `commit` returns is all that is needed to go on after a
crash: the file is cut to the size that it had then.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from slipform_training.mining.archives import check_member_name, split_key
from slipform_training.mining.rows import InputError, Row

# A mined row's json: what the training data reader expects.
FIELDS = (
    "id",
    "image",
    "caption",
    "hard_captions",
    "replaced",
    "replacement",
    "edit",
    "concreteness",
    "rewriter",
)


class Writer(Protocol):
    """Writes rows; see the module."""

    @property
    def full(self) -> bool:
        """Whether a file is complete, and must be committed after this block."""

    def resume(self, state: dict[str, Any] | None) -> None:
        """Starts, or goes on from a commit's state."""

    def write(self, row: Row, mined: dict[str, Any]) -> None:
        """Appends a row; `mined` has FIELDS, and "reason" where nothing was mined."""

    def commit(self, *, last: bool) -> dict[str, Any]:
        """Brings everything so far to disk; `last` ends the output."""

    def settle(self, state: dict[str, Any]) -> None:
        """Gives what the state calls complete its final name; may be repeated."""


class FileWriter:
    """One file: jsonl or tsv."""

    full = False

    def __init__(self, path: Path, *, tsv: bool) -> None:
        self._path, self._tsv = path, tsv
        self._partial = path.with_name(path.name + ".partial")
        self._file: IO[bytes] | None = None

    def resume(self, state: dict[str, Any] | None) -> None:
        self._file = _open_at(self._partial, 0 if state is None else state["bytes"])
        if state is None and self._tsv:
            names = ["title", "filepath", "neg_caption", "neg_image", *FIELDS[4:], "id", "reason"]
            self._file.write(tsv_line(names))

    def write(self, row: Row, mined: dict[str, Any]) -> None:
        assert self._file is not None
        if self._tsv:
            self._file.write(tsv_line(_cells(row, mined)))
        else:
            self._file.write(json.dumps(mined, ensure_ascii=False).encode() + b"\n")

    def commit(self, *, last: bool) -> dict[str, Any]:
        assert self._file is not None
        state = {"bytes": _sync(self._file), "complete": last}
        if last:
            self._file.close()
        return state

    def settle(self, state: dict[str, Any]) -> None:
        if state["complete"] and self._partial.exists():
            os.replace(self._partial, self._path)


class ShardWriter:
    """A folder of tar files: a sample's own files, and its mined json.

    Args:
        folder: made if it is not there.
        prefix: of the files' names.
        rows: how many samples a file holds, rounded up to whole blocks.
        images: folder of the images, for rows that name a file; None: rows from tar files only
            bring theirs.
    """

    def __init__(self, folder: Path, *, prefix: str, rows: int, images: Path | None) -> None:
        self._folder, self._prefix, self._rows, self._images = folder, prefix, rows, images
        self._file: IO[bytes] | None = None
        self._shard = self._count = self._total = 0

    @property
    def full(self) -> bool:
        return self._count >= self._rows

    def resume(self, state: dict[str, Any] | None) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if state is None:
            # Left by an earlier run that this one replaces.
            for path in self._folder.iterdir():
                if re.fullmatch(rf"{self._prefix}\d{{6}}\.tar(\.partial)?", path.name):
                    path.unlink()
        state = state or {"shard": 0, "bytes": 0, "count": 0, "total": 0}
        self._shard, self._count = state["shard"], state["count"]
        self._total = state["total"]
        if state["bytes"]:
            self._file = _open_at(self._partial(self._shard), state["bytes"])

    def write(self, row: Row, mined: dict[str, Any]) -> None:
        if self._file is None:
            self._file = _open_at(self._partial(self._shard), 0)
        # The key must be unique, and its file name without a dot.
        key = f"{self._prefix}{self._total:09d}"
        for ending, content in self._files(row, mined):
            name = f"{key}.{ending}"
            check_member_name(name, row.id)
            info = tarfile.TarInfo(name)
            info.size = len(content)
            self._file.write(info.tobuf(tarfile.PAX_FORMAT))
            self._file.write(content + bytes(-len(content) % tarfile.BLOCKSIZE))
        self._count += 1
        self._total += 1

    def commit(self, *, last: bool) -> dict[str, Any]:
        size = 0 if self._file is None else _sync(self._file)
        if self._file is not None and (last or self.full):
            self._file.write(bytes(2 * tarfile.BLOCKSIZE))
            _sync(self._file)
            self._file.close()
            self._file, size = None, 0
            self._shard, self._count = self._shard + 1, 0
        return {
            "shard": self._shard,
            "bytes": size,
            "count": self._count,
            "total": self._total,
            "complete": last,
        }

    def settle(self, state: dict[str, Any]) -> None:
        for number in range(state["shard"] - 1, -1, -1):
            if not self._partial(number).exists():
                break
            os.replace(self._partial(number), self._final(number))

    def _final(self, number: int) -> Path:
        return self._folder / f"{self._prefix}{number:06d}.tar"

    def _partial(self, number: int) -> Path:
        return self._folder / f"{self._prefix}{number:06d}.tar.partial"

    def _files(self, row: Row, mined: dict[str, Any]) -> list[tuple[str, bytes]]:
        out: dict[str, bytes] = {}
        entries: dict[str, Any] = {}
        for name, content in row.files() if row.files is not None else self._image(row):
            ending = split_key(name)[1]
            if ending == "json":
                entries = _object(content, row.id)
            else:
                out[ending] = content
        if row.caption is not None:
            out["txt"] = row.caption.encode()
        out["json"] = json.dumps({**entries, **mined}, ensure_ascii=False).encode()
        return list(out.items())

    def _image(self, row: Row) -> list[tuple[str, bytes]]:
        if self._images is None:
            return []
        path = self._images / row.image
        try:
            return [(f"image{path.suffix.lower()}", path.read_bytes())]
        except OSError as error:
            raise InputError(f"{row.id}: the image {path}: {error.strerror or error}") from error


def _open_at(path: Path, size: int) -> IO[bytes]:
    file = path.open("r+b" if path.exists() else "w+b")
    if file.seek(0, os.SEEK_END) < size:
        file.close()
        raise ValueError(f"{path} is shorter than the {size} bytes that were written; use --fresh")
    file.truncate(size)
    file.seek(size)
    return file


def _object(content: bytes, sample: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise InputError(f"{sample}: its json file is not json: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{sample}: its json file must hold an object, got {found!r}")
    return found


def _sync(file: IO[bytes]) -> int:
    file.flush()
    os.fsync(file.fileno())
    return file.tell()


def _cells(row: Row, mined: dict[str, Any]) -> Sequence[str]:
    return [
        mined["caption"] or "",
        mined["image"],
        repr(mined["hard_captions"]),
        row.extra.get("neg_image", "[]"),
        *(repr(mined[name]) for name in FIELDS[4:]),
        mined["id"],
        mined.get("reason", ""),
    ]


def tsv_line(cells: Sequence[str]) -> bytes:
    """A line of NegCLIP's tsv."""
    out = io.StringIO()
    csv.writer(out, delimiter="\t", lineterminator="\n").writerow(cells)
    return out.getvalue().encode()
