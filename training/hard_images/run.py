"""Making hard images: rows in, images and the rows with their paths out, in bounded memory.

An image's name is a hash of what it shows, so that no data can name a file elsewhere, and what is
there need not be made again: that is all there is to going on after a stop. The rows are written
anew by every run, and get their name when they are complete.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from PIL import Image

from slipform_training.data import Stream
from slipform_training.hard_images.report import ImageReport
from slipform_training.hard_images.rows import MinedRow, RowWriter, read_mined, row_writer
from slipform_training.hard_images.settings import HardImageSettings
from slipform_training.mining.files import locked, read_json, replacing, write_json
from slipform_training.mining.resume import MismatchError
from slipform_training.train.images import load_image
from slipform_training.train.samples import SampleError

# Threads that read and write images; both leave Python's lock to others.
_THREADS = 4
_QUALITY = 95

# Told of how many images there are by now, and of how many there will be.
Progress = Callable[[int, int], None]


class Pipeline(Protocol):
    """Makes images; see HardImagePipeline."""

    def make(
        self, images: list[Image.Image], captions: list[str], seeds: list[int]
    ) -> list[Image.Image | None]: ...


@dataclass
class _Entry:
    """A row that waits for its images."""

    row: MinedRow
    paths: list[Path]
    waiting: int = 0
    error: SampleError | None = None


@dataclass(frozen=True)
class _Job:
    """An image to make: the hard caption `number` of an entry."""

    entry: _Entry
    number: int

    @property
    def path(self) -> Path:
        return self.entry.paths[self.number]


def make_hard_images(
    settings: HardImageSettings,
    *,
    progress: Progress = lambda done, total: None,
    load: Callable[[HardImageSettings], Pipeline] | None = None,
) -> ImageReport:
    """Makes the images that are not there yet, and writes the rows with "hard_images".

    Args:
        settings: what to do.
        progress: called after each batch.
        load: makes the model, when the first image is wanted; None: HardImagePipeline.

    Returns:
        The report, which is beside the rows as well.

    Raises:
        OSError: a file cannot be read or written.
        SampleError: a row or its image cannot be used, unless they are to be skipped.
        ValueError: bad settings; a file that holds no rows; or (MismatchError) `out` holds images
            made with other settings.
        RuntimeError: a package is missing, or the device has too little memory.
    """
    files = settings.files()
    missing = [path for path in files if not path.is_file()]
    if missing:
        raise FileNotFoundError(f"{missing[0]}: no such file")
    settings.out.mkdir(parents=True, exist_ok=True)
    with locked(settings.beside("lock")):
        _check_request(settings)
        return _Run(settings, progress, load or _load).run(files)


def _load(settings: HardImageSettings) -> Pipeline:
    from slipform_training.hard_images.pipeline import HardImagePipeline

    return HardImagePipeline(settings)


def _request_file(settings: HardImageSettings) -> Path:
    return settings.out / "settings.json"


def _check_request(settings: HardImageSettings) -> None:
    """Refuses a folder whose images were made otherwise."""
    where, asked = _request_file(settings), settings.request()
    earlier = read_json(where)
    if earlier is None:
        return
    for name in sorted(asked.keys() | earlier.keys()):
        if earlier.get(name) != asked.get(name):
            raise MismatchError(
                f"{where}: the images here were made with {name} = {earlier.get(name)!r}, this run "
                f"has {asked.get(name)!r}; name another folder"
            )


class _Run:
    def __init__(
        self,
        settings: HardImageSettings,
        progress: Progress,
        load: Callable[[HardImageSettings], Pipeline],
    ) -> None:
        self._settings, self._progress, self._load = settings, progress, load
        self._pipeline: Pipeline | None = None
        self._report = ImageReport()
        self._jobs: list[_Job] = []
        self._settled = self._total = 0
        self._pool: ThreadPoolExecutor
        self._skipped: IO[bytes]

    def run(self, files: list[Path]) -> ImageReport:
        for path in files:
            self._total += sum(
                len(row.hard_captions)
                for row in self._rows(path)
                if not isinstance(row, SampleError)
            )
        skipped = self._settings.beside("skipped.jsonl")
        with (
            ThreadPoolExecutor(_THREADS) as self._pool,
            skipped.open("wb", buffering=0) as self._skipped,
        ):
            for path in files:
                with replacing(self._settings.out_file(path)) as file:
                    writer = row_writer(path.suffix, file)
                    self._file(path, writer)
                    writer.close()
        write_json(self._settings.beside("report.json"), self._report.data)
        return self._report

    def _rows(self, path: Path) -> Iterator[MinedRow | SampleError]:
        i, n = self._settings.shard
        for number, row in enumerate(read_mined(path)):
            if number % n == i:
                yield row

    def _file(self, path: Path, writer: RowWriter) -> None:
        """Makes the images of a file's rows, and writes them in their order."""
        queue: deque[_Entry] = deque()
        for row in self._rows(path):
            self._report.rows += 1
            if isinstance(row, SampleError):
                self._skip(row)
                continue
            queue.append(self._entry(row))
            while len(self._jobs) >= self._settings.batch_size:
                self._make_batch()
            while queue and not queue[0].waiting:
                self._write(queue.popleft(), writer)
        while self._jobs:
            self._make_batch()
        for entry in queue:
            self._write(entry, writer)

    def _entry(self, row: MinedRow) -> _Entry:
        folder = self._settings.out / "images"
        entry = _Entry(row, [folder / _name(row, k) for k in range(len(row.hard_captions))])
        for number, path in enumerate(entry.paths):
            if path.exists():
                self._report.found += 1
                self._settle(1)
            else:
                entry.waiting += 1
                self._jobs.append(_Job(entry, number))
        return entry

    def _make_batch(self) -> None:
        size = self._settings.batch_size
        batch, self._jobs = self._jobs[:size], self._jobs[size:]
        # Equal rows have one image.
        jobs = {job.path: job for job in batch if not job.path.exists()}
        errors = self._make(list(jobs.values()))
        for job in batch:
            job.entry.waiting -= 1
            job.entry.error = errors.get(job.path, job.entry.error)
        self._report.made += len(jobs) - len(errors)
        self._settle(len(batch))

    def _make(self, jobs: list[_Job]) -> dict[Path, SampleError]:
        """Makes and keeps images; what went wrong, by the image's path."""
        errors: dict[Path, SampleError] = {}
        usable: list[_Job] = []
        images: list[Image.Image] = []
        for job, image in zip(jobs, self._pool.map(self._source, jobs), strict=True):
            if isinstance(image, SampleError):
                errors[job.path] = image
            else:
                usable.append(job)
                images.append(image)
        if not usable:
            return errors
        if self._pipeline is None:
            self._pipeline = self._load(self._settings)
            # Not before the model is there: a name mistyped must not bind the folder.
            write_json(_request_file(self._settings), self._settings.request())
        captions = [job.entry.row.hard_captions[job.number] for job in usable]
        made = self._pipeline.make(images, captions, [self._seed(job) for job in usable])
        kept: list[tuple[Path, Image.Image]] = []
        for job, hard in zip(usable, made, strict=True):
            if hard is None:
                detail = "the model's image is nan or infinite; another precision may help"
                errors[job.path] = SampleError("not finite", job.entry.row.where, detail)
            else:
                kept.append((job.path, hard))
        for _ in self._pool.map(_keep, kept):
            pass
        return errors

    def _source(self, job: _Job) -> Image.Image | SampleError:
        row = job.entry.row
        path = Path(row.image) if row.span else self._settings.images / row.image
        try:
            return load_image(path, row.span)
        except SampleError as error:
            return SampleError(error.kind, error.where, f"{error.detail}; {row.where}")

    def _seed(self, job: _Job) -> int:
        return Stream(self._settings.seed, "hard image", job.entry.row.id, job.number).below(2**53)

    def _write(self, entry: _Entry, writer: RowWriter) -> None:
        paths: list[str] = []
        if entry.error is not None:
            self._skip(entry.error)
        elif entry.paths:
            self._report.complete += 1
            paths = [self._reference(entry.row, path) for path in entry.paths]
        else:
            self._report.without += 1
        writer.write(entry.row, paths)

    def _reference(self, row: MinedRow, path: Path) -> str:
        """An image's path as training takes it: from the folder of the other images, or for tar
        files from the folder of the output. A link on the way would turn ".." elsewhere."""
        root = self._settings.out if row.span else self._settings.images
        return Path(os.path.relpath(path.resolve(), root.resolve())).as_posix()

    def _skip(self, error: SampleError) -> None:
        if self._settings.on_error == "raise":
            raise error
        self._report.skip(error)
        record = {"kind": error.kind, "where": error.where, "detail": error.detail}
        self._skipped.write(json.dumps(record).encode() + b"\n")

    def _settle(self, count: int) -> None:
        self._settled += count
        self._progress(self._settled, self._total)


def _name(row: MinedRow, number: int) -> str:
    """A path for an image, of hexadecimal digits alone."""
    image = row.id if row.span else row.image
    key = repr((row.id, image, row.hard_captions[number], number))
    name = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return f"{name[:2]}/{name}.jpg"


def _keep(made: tuple[Path, Image.Image]) -> None:
    path, image = made
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        image.save(file, "JPEG", quality=_QUALITY, subsampling=0)
