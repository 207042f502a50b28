"""webdataset shards as training data: an index of plain tar files, which stay as they are.

Samples are read in place, by offset, so that their order can be any; nothing is unpacked.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

IMAGE_ENDINGS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")

# The files of a sample by ending: place and size in the archive.
Members = dict[str, tuple[int, int]]


def shard_paths(data: str) -> list[Path]:
    """The tar files that `data` names, in order: one, a folder of them, or a pattern like a-*.tar.

    Raises ValueError where there is none.
    """
    path = Path(data)
    if path.is_file():
        return [path]
    found = sorted(path.glob("*.tar")) if path.is_dir() else sorted(path.parent.glob(path.name))
    if not found:
        raise ValueError(f"data: got {data}, expected a tar file, a folder of them or a pattern")
    return found


def shard_samples(path: Path) -> Iterator[tuple[str, Members, dict[str, Any]]]:
    """The samples of a shard: key, members, and the entries of the text and json files.

    A sample's files follow one another and share the name up to its first dot. Of "txt" comes the
    entry "caption", of "json" (utf-8, an object) all of its own; "txt" goes first.

    Raises ValueError naming the shard: no plain tar file, a member that is no plain file.
    """
    try:
        with tarfile.open(path, "r:") as archive, path.open("rb") as file:
            key, members = "", Members()
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]  # else every header is kept
                if member.isdir():
                    continue
                if not member.isreg():
                    raise ValueError(f"data: {path}: the member {member.name!r} is no plain file")
                folder, slash, base = member.name.rpartition("/")
                name, _, ending = base.partition(".")
                if members and folder + slash + name != key:
                    yield key, members, _entries(file, members)
                    members = {}
                key = folder + slash + name
                members[ending.lower()] = (member.offset_data, member.size)
            if members:
                yield key, members, _entries(file, members)
    except tarfile.TarError as error:
        raise ValueError(f"data: {path} is not a plain tar file: {error}") from error


def read_span(path: Path, span: tuple[int, int]) -> bytes:
    """The bytes at (place, size) of a file; OSError where it is shorter."""
    with path.open("rb") as file:
        file.seek(span[0])
        content = file.read(span[1])
    if len(content) != span[1]:
        raise OSError(f"the file ends within the {span[1]} bytes at {span[0]}")
    return content


def _entries(file: Any, members: Members) -> dict[str, Any]:
    """What a sample's json and txt say; a part that cannot be read is told by its name's absence,
    with the reason under "error"."""
    entries: dict[str, Any] = {}

    def content(ending: str) -> bytes:
        file.seek(members[ending][0])
        return file.read(members[ending][1])

    try:
        if "json" in members:
            found = json.loads(content("json"))
            if not isinstance(found, dict):
                raise ValueError(f"its json holds {type(found).__name__}, expected an object")
            entries = found
        if "txt" in members:
            entries["caption"] = content("txt").decode()
    except ValueError as error:
        return {"error": str(error)}
    return entries
