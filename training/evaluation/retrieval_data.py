"""Images with their captions for retrieval: Karpathy's json, and tables of image and caption."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipform_training.mining.readers import Columns, read_rows


@dataclass(frozen=True)
class RetrievalSet:
    """Images and captions; every caption belongs to one image, an image may have several.

    images: paths relative to the image folder, each once. captions: C texts. image_of: for each
    caption the number of its image.
    """

    images: tuple[str, ...]
    captions: tuple[str, ...]
    image_of: tuple[int, ...]

    def where(self, keep: Callable[[str], bool]) -> RetrievalSet:
        """The images for which keep(image) holds, with their captions."""
        kept = {name for name in self.images if keep(name)}
        return _gathered(
            (self.images[image], caption)
            for image, caption in zip(self.image_of, self.captions, strict=True)
            if self.images[image] in kept
        )


def read_retrieval(
    path: Path, *, split: str = "test", columns: Columns | None = None
) -> RetrievalSet:
    """Karpathy's json or a file of captions, whichever `path` is; see the two readers.

    split: of Karpathy's json. columns: of other files.
    """
    if path.suffix == ".json" and not _is_coco(path):
        return read_karpathy(path, split=split)
    return read_captions(path, columns)


def _is_coco(path: Path) -> bool:
    """Whether the json has COCO's annotations; Karpathy's keeps captions with the images."""
    try:
        return "annotations" in json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: cannot be read as json ({error})") from error


def read_karpathy(path: Path, *, split: str = "test") -> RetrievalSet:
    """One split of dataset_coco.json or dataset_flickr30k.json (Karpathy & Fei-Fei 2015).

    An image's path is filepath/filename where the file has a filepath (COCO's "val2014"), else
    filename. The published test splits have 5,000 images with 25,010 captions (COCO) and 1,000
    with 5,000 (Flickr30k).

    Raises:
        FileNotFoundError: no such file.
        ValueError: not this format, or no image in the split; the message names the place.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["images"]
        splits = sorted({str(entry["split"]) for entry in entries})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: expected Karpathy's json, images of split, filename and sentences "
            f"({type(error).__name__}: {error})"
        ) from error
    pairs = []
    for number, entry in enumerate(entries):
        if entry["split"] == split:
            pairs += _pairs_of(entry, where=f"{path}, image {number}")
    if not pairs:
        raise ValueError(f"split: got {split!r}, expected one of {path}: {', '.join(splits)}")
    return _gathered(pairs)


def read_captions(path: Path, columns: Columns | None = None) -> RetrievalSet:
    """Images and captions of a tsv, csv, jsonl or COCO captions json, as `slipform mine` reads.

    Rows with the same image are its captions.

    Raises:
        OSError, mining.rows.InputError: as `read_rows`.
        ValueError: a row without image or caption, or no rows.
    """
    pairs = []
    for row in read_rows([path], columns):
        if not row.image or not (row.caption or "").strip():
            raise ValueError(f"{path}: row {row.id} has no {'caption' if row.image else 'image'}")
        pairs.append((row.image, row.caption or ""))
    if not pairs:
        raise ValueError(f"{path}: got no rows, expected images with captions")
    return _gathered(pairs)


def _pairs_of(entry: dict[str, Any], *, where: str) -> list[tuple[str, str]]:
    try:
        folder = entry.get("filepath")
        name = f"{folder}/{entry['filename']}" if folder else entry["filename"]
        captions = [sentence["raw"] for sentence in entry["sentences"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{where}: no {error}") from error
    if not captions:
        raise ValueError(f"{where}: got no sentences, expected one at least")
    return [(name, caption) for caption in captions]


def _gathered(pairs: Iterable[tuple[str, str]]) -> RetrievalSet:
    numbers: dict[str, int] = {}
    captions, image_of = [], []
    for image, caption in pairs:
        captions.append(caption)
        image_of.append(numbers.setdefault(image, len(numbers)))
    return RetrievalSet(tuple(numbers), tuple(captions), tuple(image_of))
