"""webdataset shards: the samples of a plain tar file, one by one."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from slipform_training.mining.position import Position
from slipform_training.mining.rows import InputError, Row

IMAGE_ENDINGS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")


def check_member_name(name: str, where: str) -> None:
    """Refuses a path that would leave the folder it is unpacked in.

    Raises:
        InputError: absolute, with "..", a backslash, a drive or a NUL; the message names it.
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or any(c in name for c in "\\:\0"):
        raise InputError(f"{where}: the member {name!r} would be written outside of its folder")


def split_key(name: str) -> tuple[str, str]:
    """webdataset's key and ending: the path up to, and after, the file name's first dot."""
    folder, slash, base = name.rpartition("/")
    key, _, ending = base.partition(".")
    return folder + slash + key, ending.lower()


def archive_rows(path: Path, *, prefix: str, caption: str, position: Position) -> Iterator[Row]:
    """One row a sample; its caption is the "txt" file, else the entry of the "json" file.

    Args:
        path: a tar file, not compressed.
        prefix: of the ids.
        caption: the key of the caption in a json file.
        position: follows the reading.

    Raises:
        InputError: not a tar file, a member that is no plain file or whose path would leave its
            folder; the message names it.
    """
    try:
        with (
            path.open("rb") as file,
            position.within(file),
            tarfile.open(fileobj=file, mode="r:") as archive,
        ):
            for key, members in _samples(archive, path):
                yield _row(key, members, path, prefix=prefix, caption=caption)
    except tarfile.TarError as error:
        raise InputError(f"{path} is not a plain tar file: {error}") from error


def _samples(
    archive: tarfile.TarFile, path: Path
) -> Iterator[tuple[str, dict[str, tarfile.TarInfo]]]:
    key: str | None = None
    members: dict[str, tarfile.TarInfo] = {}
    for member in archive:
        archive.members = []  # type: ignore[attr-defined]  # else every header is kept
        check_member_name(member.name, str(path))
        if member.isdir():
            continue
        if not member.isfile():
            raise InputError(f"{path}: the member {member.name!r} is no plain file")
        own, ending = split_key(member.name)
        if own != key:
            if key is not None:
                yield key, members
            key, members = own, {}
        if ending in members:
            raise InputError(f"{path}: two members for {member.name!r}")
        members[ending] = member
    if key is not None:
        yield key, members


def _row(
    key: str,
    members: dict[str, tarfile.TarInfo],
    path: Path,
    *,
    prefix: str,
    caption: str,
) -> Row:
    def read(member: tarfile.TarInfo) -> bytes:
        # Opened anew: by the time a sample is written, the archive may have been read to its end.
        with path.open("rb") as file:
            file.seek(member.offset_data)
            content = file.read(member.size)
        if len(content) != member.size:
            raise InputError(f"{path}: the member {member.name!r} is cut short")
        return content

    text: str | None = None
    try:
        if "txt" in members:
            text = read(members["txt"]).decode()
        elif "json" in members:
            entries: Any = json.loads(read(members["json"]))
            text = entries.get(caption) if isinstance(entries, dict) else None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: the caption of sample {key!r} is unreadable: {error}") from error
    if text is not None and not isinstance(text, str):
        raise InputError(f"{path}: the caption of sample {key!r} must be text, got {text!r}")
    kept = list(members.values())
    return Row(
        id=f"{prefix}:{key}",
        image=key,
        caption=text,
        files=lambda: [(member.name, read(member)) for member in kept],
    )
