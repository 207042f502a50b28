"""Rows of training data: what a sample is, and how each file format gives them."""

from __future__ import annotations

import ast
import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from slipform_training.macco.rows import CONCEPT_COLUMNS, concepts_of

from .config import HARD_LOSSES, TrainConfig
from .shards import IMAGE_ENDINGS, Members, shard_paths, shard_samples

_SUFFIXES = {
    ".jsonl": "jsonl",
    ".tsv": "tsv",
    ".csv": "csv",
    ".json": "coco",
    ".tar": "shards",
}


class SampleError(ValueError):
    """A sample that cannot be used. kind: what is wrong, in the words that reports count by."""

    def __init__(self, kind: str, where: str, detail: str) -> None:
        super().__init__(f"{where}: {kind}: {detail}")
        self.kind, self.where, self.detail = kind, where, detail

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.kind, self.where, self.detail)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """An image with its captions, of which each epoch takes one, and hard captions.

    where: place in the data file, for messages. span: place and size of the image in the file
    `image`, where that is an archive. concreteness and hard_images: one for each hard caption, or
    empty. concepts: of the only caption, as macco.rows.Concepts.plain gives them.
    """

    where: str
    image: str
    captions: Sequence[str]
    span: Sequence[int] = ()
    hard_captions: Sequence[str] = ()
    concreteness: Sequence[float] = ()
    hard_images: Sequence[str] = ()
    concepts: Mapping[str, Any] | None = None


class Samples:
    """The samples of a data file, and the rows that were left out.

    They are kept as one block of bytes, which worker processes share as it is.

    groups: int64 [N], equal for samples of the same image.
    """

    def __init__(self, samples: Iterable[Sample], left_out: Sequence[SampleError] = ()) -> None:
        found = [asdict(sample) for sample in samples]
        packed = [json.dumps(sample).encode() for sample in found]
        self._digest = _digest(found)
        numbers: dict[tuple[Any, ...], int] = {}
        images = ((sample["image"], *sample["span"]) for sample in found)
        groups = [numbers.setdefault(image, len(numbers)) for image in images]
        self.groups = np.array(groups, dtype=np.int64)
        self._ends = np.cumsum([len(row) for row in packed], dtype=np.int64)
        self._bytes = np.frombuffer(b"".join(packed), dtype=np.uint8)
        self.left_out = list(left_out)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Sample:
        start = self._ends[index - 1] if index else 0
        return Sample(**json.loads(self._bytes[start : self._ends[index]].tobytes()))

    def digest(self) -> str:
        """A hash of the contents, wherever the file lies."""
        return self._digest


def _digest(samples: Iterable[dict[str, Any]]) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for sample in samples:
        image = Path(sample["image"]).name if sample["span"] else sample["image"]
        contents = {**sample, "where": None, "image": image}
        hashed.update(json.dumps(contents).encode() + b"\n")
    return hashed.hexdigest()


def read_samples(config: TrainConfig) -> Samples:
    """The samples in config.data.

    A row that cannot be used is a SampleError that names it, or with on_error "skip" is kept in
    the result's `left_out`. Raises ValueError where the file as a whole does not fit: unknown
    format, missing columns, no samples, no hard captions for a loss that needs them.
    """
    path = Path(config.data)
    kind = config.format
    if kind == "auto":
        kind = "shards" if path.is_dir() else _SUFFIXES.get(path.suffix, "")
    if not kind:
        raise ValueError(
            f"data: got {path}, expected a name in {', '.join(_SUFFIXES)}, or format to be given"
        )
    if kind == "tsv" and config.format == "auto" and _has_concepts(path):
        kind = "macco"
    if config.objective == "macco" and kind != "macco":
        raise ValueError(
            f"data: got {path}, expected MACCO's tsv with the objective macco; "
            "`slipform concepts` makes it"
        )
    rows_of, sample_of = _FORMATS[kind]
    samples: list[Sample] = []
    left_out: list[SampleError] = []
    for where, row in rows_of(path, config):
        try:
            sample = sample_of(where, row, config)
            _check(sample, config)
            samples.append(sample)
        except SampleError as error:
            if config.on_error == "raise":
                raise
            left_out.append(error)
    if not samples:
        reason = f"; the first of {len(left_out)} left out: {left_out[0]}" if left_out else ""
        raise ValueError(f"data: got {path} without a usable sample{reason}")
    if config.loss in HARD_LOSSES and not any(sample.hard_captions for sample in samples):
        raise ValueError(
            f"data: got {path} without hard captions, expected some for the loss {config.loss}; "
            "`slipform mine` makes them"
        )
    if config.hard_images and not any(sample.hard_images for sample in samples):
        raise ValueError(
            f"data: got {path} without hard images, expected some with the setting hard_images; "
            "`slipform hard-images` makes them"
        )
    return Samples(samples, left_out)


def _check(sample: Sample, config: TrainConfig) -> None:
    """Raise SampleError where the sample lacks what it or the loss needs."""
    where, hard = sample.where, len(sample.hard_captions)
    if not sample.image:
        raise SampleError("no image", where, "the path is empty")
    if not sample.captions or not all(text.strip() for text in sample.captions):
        raise SampleError("empty caption", where, f"of {sample.image}")
    if not all(text.strip() for text in sample.hard_captions):
        raise SampleError("empty hard caption", where, f"of {sample.image}")
    for name in ("concreteness", "hard_images"):
        count = len(getattr(sample, name))
        if count not in (0, hard):
            raise SampleError("broken row", where, f"{count} {name} for {hard} hard captions")
    if config.loss == "cement" and hard and not sample.concreteness:
        raise SampleError(
            "no concreteness", where, "the loss cement needs it for every hard caption"
        )
    if not all(1 <= value <= 5 for value in sample.concreteness):
        raise SampleError("broken row", where, "concreteness outside 1 to 5")
    if config.loss == "triplet" and not sample.hard_images:
        raise SampleError("no hard image", where, "the loss triplet needs hard_images")


def _json_lines(path: Path, _: TrainConfig) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield f"{path}, line {number}", line


def _mined(where: str, line: bytes, _: TrainConfig) -> Sample:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise SampleError("broken row", where, f"not json ({error})") from error
    if not isinstance(row, dict):
        raise SampleError("broken row", where, f"got {type(row).__name__}, expected an object")
    return _mined_object(where, row)


def _mined_object(where: str, row: Mapping[str, Any], span: Sequence[int] = ()) -> Sample:
    missing = [name for name in ("image", "caption") if not isinstance(row.get(name), str)]
    if missing:
        raise SampleError("broken row", where, f"no text under {' and '.join(missing)}")
    return Sample(
        where=where,
        image=row["image"],
        captions=[row["caption"]],
        span=span,
        hard_captions=_list(row.get("hard_captions", []), str, "hard_captions", where),
        concreteness=_list(row.get("concreteness", []), float, "concreteness", where),
        hard_images=_list(row.get("hard_images", []), str, "hard_images", where),
    )


def _shard_members(_: Path, config: TrainConfig) -> Iterator[tuple[str, Any]]:
    for path in shard_paths(config.data):
        for key, members, entries in shard_samples(path):
            yield f"{path}, sample {key}", (path, members, entries)


def _shard_sample(where: str, row: tuple[Path, Members, dict[str, Any]], _: TrainConfig) -> Sample:
    path, members, entries = row
    if "error" in entries and "caption" not in entries:
        raise SampleError("broken row", where, entries["error"])
    endings = [ending for ending in IMAGE_ENDINGS if ending in members]
    if len(endings) != 1:
        raise SampleError("no image", where, f"one is expected, its files are {sorted(members)}")
    entries = {**entries, "image": str(path.resolve())}
    return _mined_object(where, entries, members[endings[0]])


def _table_rows(path: Path, config: TrainConfig) -> Iterator[tuple[str, Any]]:
    delimiter = "," if path.suffix == ".csv" or config.format == "csv" else "\t"
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter=delimiter)
        found = list(rows.fieldnames or ())
        needed = {
            "image_column": config.image_column,
            "caption_column": config.caption_column,
        }
        if config.loss in HARD_LOSSES:
            needed["hard_caption_column"] = config.hard_caption_column
        if config.loss == "cement":
            needed["concreteness_column"] = config.concreteness_column
        if config.format == "macco" or config.objective == "macco":
            needed.update((f"format: macco, {column}", column) for column in CONCEPT_COLUMNS)
        for setting, column in needed.items():
            if column not in found:
                raise ValueError(
                    f"{setting}: got {column!r}, expected a column of {path}: {', '.join(found)}"
                )
        for row in rows:
            yield f"{path}, line {rows.line_num}", row


def _table_row(where: str, row: Mapping[str, Any], config: TrainConfig) -> Sample:
    if None in row or None in row.values():
        raise SampleError("broken row", where, "not as many cells as columns")

    def cell(column: str, kind: type) -> list[Any]:
        text = row.get(column, "").strip()
        if not text:
            return []
        try:
            return _list(ast.literal_eval(text), kind, column, where)
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            if isinstance(error, SampleError):
                raise
            raise SampleError("broken row", where, f"{column} is not a Python list") from error

    return Sample(
        where=where,
        image=row[config.image_column],
        captions=[row[config.caption_column]],
        hard_captions=cell(config.hard_caption_column, str),
        concreteness=cell(config.concreteness_column, float),
        hard_images=cell("hard_images", str),
    )


def _has_concepts(path: Path) -> bool:
    """Whether a tsv file has MACCO's columns."""
    with path.open(encoding="utf-8", newline="") as file:
        return set(CONCEPT_COLUMNS) <= set(next(csv.reader(file, delimiter="\t"), ()))


def _concept_row(where: str, row: Mapping[str, Any], config: TrainConfig) -> Sample:
    sample = _table_row(where, row, config)
    if config.objective != "macco":
        return sample
    try:
        return replace(sample, concepts=concepts_of(row).plain())
    except ValueError as error:
        raise SampleError("broken row", where, str(error)) from error


def _coco_images(path: Path, _: TrainConfig) -> Iterator[tuple[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        captions: dict[Any, list[Any]] = {}
        for annotation in found["annotations"]:
            captions.setdefault(annotation["image_id"], []).append(annotation["caption"])
        images = [(image["id"], image["file_name"]) for image in found["images"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"data: got {path}, expected COCO captions with images (id, file_name) and "
            f"annotations (image_id, caption): {type(error).__name__} {error}"
        ) from error
    for number, name in images:
        yield f"{path}, image {number}", (name, captions.get(number, []))


def _coco_image(where: str, row: tuple[Any, list[Any]], _: TrainConfig) -> Sample:
    name, captions = row
    if not captions:
        raise SampleError("no caption", where, f"of {name}")
    return Sample(where=where, image=str(name), captions=_list(captions, str, "caption", where))


def _list(found: Any, kind: type, name: str, where: str) -> list[Any]:
    """`found` if it is a list of `kind`, with whole numbers taken as float."""
    wanted = (int, float) if kind is float else (kind,)
    if not isinstance(found, list) or not all(
        isinstance(one, wanted) and not isinstance(one, bool) for one in found
    ):
        raise SampleError("broken row", where, f"{name} is not a list of {kind.__name__}")
    return [kind(one) for one in found]


_Rows = Callable[[Path, TrainConfig], Iterator[tuple[str, Any]]]
_Row = Callable[[str, Any, TrainConfig], Sample]
_FORMATS: dict[str, tuple[_Rows, _Row]] = {
    "jsonl": (_json_lines, _mined),
    "tsv": (_table_rows, _table_row),
    "csv": (_table_rows, _table_row),
    "macco": (_table_rows, _concept_row),
    "shards": (_shard_members, _shard_sample),
    "coco": (_coco_images, _coco_image),
}
