"""Features kept on disk by what they are of, so that nothing is encoded twice.

A folder holds one folder a model (its hash), with one of images and one of texts. Each of those
holds small numpy files of rows (key, feature), written whole and never changed: a run that is
killed loses the last few hundred features, and several runs may share a folder.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipform_training.evaluation.encoder import ImageItem, ModelSource, UnreadableImagesError

# Features that are kept in memory before they are written.
_ROWS = 512

_KEY_BYTES = 16


class FeatureCache:
    """A FeatureSource that encodes only what the folder does not hold.

    Args:
        source: encodes the rest.
        folder: the folder, made if needed.
        model: the hash of the model, its precision included; see models.model_hash.
        report: called with a message where a file of the cache is broken; its features are encoded
            again.

    Attributes:
        encoded: images and texts encoded so far; everything else came from the folder.
    """

    def __init__(
        self,
        source: ModelSource,
        folder: Path,
        *,
        model: str,
        report: Callable[[str], None] = print,
    ) -> None:
        self.source = source
        self.encoded = {"images": 0, "texts": 0}
        width = source.towers.width
        self._images = _Store(folder / model / "images", width, report)
        self._texts = _Store(folder / model / "texts", width, report)

    def images(self, items: Sequence[ImageItem]) -> Tensor:
        """See FeatureSource. The key is the file's content and the box, not its name."""
        contents: dict[Path, bytes] = {}
        failures: dict[ImageItem, str] = {}
        keys: dict[ImageItem, bytes] = {}
        for item in items:
            try:
                if item.path not in contents:
                    contents[item.path] = _file_digest(item.path)
            except OSError as error:
                failures[item] = error.strerror or str(error)
                continue
            keys[item] = _digest(contents[item.path], repr(item.box).encode())
        new = {key: item for item, key in keys.items() if key not in self._images}
        unread: dict[bytes, str] = {}
        self._images.add(self._encode_images(new, unread))
        failures.update({item: unread[key] for item, key in keys.items() if key in unread})
        if failures:
            raise UnreadableImagesError(failures)
        return self._images.gather([keys[item] for item in items])

    def texts(self, texts: Sequence[str]) -> Tensor:
        """See FeatureSource."""
        keys = [_digest(text.encode()) for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._texts}
        self._texts.add(self._encode_texts(new))
        return self._texts.gather(keys)

    def _encode_images(
        self, new: dict[bytes, ImageItem], unread: dict[bytes, str]
    ) -> Iterator[tuple[list[bytes], Tensor]]:
        keys = list(new)
        if not keys:
            return
        for places, failed, features in self.source.image_batches(list(new.values())):
            unread.update({keys[place]: reason for place, reason in failed.items()})
            self.encoded["images"] += len(places)
            yield [keys[place] for place in places], features

    def _encode_texts(self, new: dict[bytes, str]) -> Iterator[tuple[list[bytes], Tensor]]:
        keys = list(new)
        for places, features in self.source.text_batches(list(new.values())):
            self.encoded["texts"] += len(places)
            yield [keys[place] for place in places], features


class _Store:
    """Features [D] by key, in files of a folder."""

    def __init__(self, folder: Path, width: int, report: Callable[[str], None]) -> None:
        self._folder = folder
        self._layout = np.dtype([("key", "u1", _KEY_BYTES), ("feature", "<f4", width)])
        self._width = width
        self._files: list[Path] = []
        self._places: dict[bytes, tuple[int, int]] = {}
        for path in sorted(folder.glob("*.npy")):
            try:
                self._index(path)
            except (ValueError, EOFError, OSError) as error:
                report(f"feature cache: {path} is broken and is not used ({error})")

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    def add(self, batches: Iterator[tuple[list[bytes], Tensor]]) -> None:
        """Write batches of keys and features; what was computed is written at an error as well."""
        keys: list[bytes] = []
        features: list[Tensor] = []
        try:
            for own_keys, own_features in batches:
                keys += own_keys
                features.append(own_features)
                if len(keys) >= _ROWS:
                    self._write(keys, features)
                    keys, features = [], []
        finally:
            if keys:
                self._write(keys, features)

    def gather(self, keys: Sequence[bytes]) -> Tensor:
        """The features [n, D] of keys that are there."""
        found = np.empty((len(keys), self._width), dtype=np.float32)
        places = np.array([self._places[key] for key in keys], dtype=np.int64).reshape(-1, 2)
        order = np.argsort(places[:, 0], kind="stable")
        starts = np.flatnonzero(np.diff(places[order, 0], prepend=-1))
        for part in np.split(order, starts[1:]) if len(keys) else ():
            rows = self._open(self._files[places[part[0], 0]])
            found[part] = rows["feature"][places[part, 1]]
        return torch.from_numpy(found)

    def _open(self, path: Path) -> np.ndarray:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
        if rows.dtype != self._layout or rows.ndim != 1:
            raise ValueError(f"rows of {rows.dtype}")
        return rows

    def _index(self, path: Path) -> None:
        keys = np.ascontiguousarray(self._open(path)["key"]).tobytes()
        number = len(self._files)
        self._files.append(path)
        for row, start in enumerate(range(0, len(keys), _KEY_BYTES)):
            self._places[keys[start : start + _KEY_BYTES]] = (number, row)

    def _write(self, keys: Sequence[bytes], features: Sequence[Tensor]) -> None:
        rows = np.empty(len(keys), dtype=self._layout)
        rows["key"] = np.frombuffer(b"".join(keys), dtype="u1").reshape(-1, _KEY_BYTES)
        rows["feature"] = torch.cat(list(features)).numpy()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{uuid.uuid4().hex}.npy"
        temporary = path.with_suffix(".tmp")
        try:
            with temporary.open("wb") as file:
                np.save(file, rows, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        self._index(path)


def _digest(*parts: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=_KEY_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _file_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return _digest(file.read())
