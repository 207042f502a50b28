"""From caption files to MACCO's tsv: concepts of the captions, and boxes of their phrases.

Bounded in memory, and resumed after a crash, as mining is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from slipform_training.macco.boxes import Box, Detector, with_boxes
from slipform_training.macco.concepts import ConceptTagger
from slipform_training.macco.report import ConceptReport
from slipform_training.macco.rows import WRITTEN, ConceptRow, Concepts, concept_line, list_in
from slipform_training.mining.files import locked
from slipform_training.mining.position import Position
from slipform_training.mining.readers import Columns, format_of, read_rows
from slipform_training.mining.resume import BlockRun, Progress
from slipform_training.mining.rows import InputError, Row
from slipform_training.mining.tagging import blocks_of, reason_of, tag_blocks
from slipform_training.mining.writers import FileWriter, Writer, tsv_line

NOT_ASKED = "no boxes asked for"


@dataclass(frozen=True, kw_only=True)
class ConceptSettings:
    """Options of a run; see `slipform concepts --help`.

    Attributes:
        inputs: caption files.
        out: the tsv file.
        columns: names of the inputs' columns.
        tagger: finds the concepts.
        images: folder that relative paths of images begin at.
        boxes: files of instances in COCO's format.
        detector: a zero-shot detector's name or folder; None: none.
        threshold: lowest score of the detector's boxes.
        device, batch_size: of the detector.

    Raises:
        ValueError: an option out of range.
    """

    inputs: tuple[Path, ...]
    out: Path
    columns: Columns = field(default_factory=Columns)
    tagger: ConceptTagger = field(default_factory=ConceptTagger)
    images: Path = Path()
    boxes: tuple[Path, ...] = ()
    detector: str | None = None
    threshold: float = 0.3
    device: str = "auto"
    batch_size: int = 8

    def __post_init__(self) -> None:
        if not self.inputs:
            raise ValueError("inputs: got none, expected at least one file")
        for path in self.inputs:
            if format_of(path) == "shards":
                raise ValueError(f"inputs: got {path}, expected files that name their images")
            if path.resolve() == self.out.resolve():
                raise ValueError(f"out: got {self.out}, where the input {path} is")
        if self.out.suffix.lower() != ".tsv":
            raise ValueError(f"out: got {self.out}, expected a name in .tsv")
        if self.boxes and self.detector is not None:
            raise ValueError(f"detector: got {self.detector} and boxes, expected one of them")

    def beside(self, name: str) -> Path:
        """A path beside the output's."""
        return self.out.with_name(f"{self.out.name}.{name}")

    def request(self) -> dict[str, Any]:
        """What the output depends on, as json."""
        return {
            "inputs": [[path.as_posix(), path.stat().st_size] for path in self.inputs],
            "columns": [self.columns.caption, self.columns.image, self.columns.id],
            "model": self.tagger.model,
            "boxes": [[path.as_posix(), path.stat().st_size] for path in self.boxes],
            "detector": self.detector,
            "images": None if self.detector is None else self.images.as_posix(),
            "threshold": None if self.detector is None else self.threshold,
            # A detector may see how images of other sizes are padded in its batch.
            "batch_size": None if self.detector is None else self.batch_size,
        }

    def make_detector(self) -> Detector | None:
        """What finds boxes; its errors come from here."""
        if self.boxes:
            from slipform_training.macco.instances import InstanceBoxes

            return InstanceBoxes.read(self.boxes)
        if self.detector is not None:
            from slipform_training.macco.zero_shot import ZeroShotDetector

            return ZeroShotDetector(
                self.detector,
                images=self.images,
                device=self.device,
                threshold=self.threshold,
                batch_size=self.batch_size,
            )
        return None


def find_all(
    settings: ConceptSettings,
    *,
    workers: int = 1,
    fresh: bool = False,
    progress: Progress = lambda name, done, total: None,
) -> ConceptReport:
    """Writes MACCO's tsv, or goes on where an earlier run with the same settings was stopped.

    Args:
        settings: what to do.
        workers: processes that parse captions.
        fresh: forget an earlier run, and replace its output.
        progress: called after each block.

    Returns:
        The report, which is beside the output as well.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: bad content of an input; or (MismatchError) the output, or what a stopped run
            left, belongs to other settings.
        RuntimeError: a package, a pipeline or a detector is missing.
    """
    if workers < 1:
        raise ValueError(f"workers: got {workers}, expected at least 1")
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    with locked(settings.beside("lock")):
        return _Run(settings, workers, progress).run(fresh=fresh)


class _Run(BlockRun[ConceptReport]):
    def __init__(self, settings: ConceptSettings, workers: int, progress: Progress) -> None:
        super().__init__(
            settings.request(),
            out=settings.out,
            beside=settings.beside,
            name="concepts",
            progress=progress,
        )
        self._settings, self._workers = settings, workers
        self._position = Position(settings.inputs)

    def _report(self, data: dict[str, Any] | None) -> ConceptReport:
        return ConceptReport(data)

    def _writer(self) -> Writer:
        return FileWriter(self._settings.out, _line, header=tsv_line(WRITTEN))

    def _write(self, writer: Writer, report: ConceptReport, *, skip: int) -> Iterator[None]:
        settings = self._settings
        detector = settings.make_detector()
        rows = read_rows(settings.inputs, settings.columns, self._position)
        blocks = islice(blocks_of(rows), skip, None)
        for block, tagged in tag_blocks(blocks, settings.tagger, workers=self._workers):
            kept = []
            for row, concepts in zip(block, tagged, strict=True):
                reason = "no image" if not row.image else reason_of(row)
                if reason is None:
                    kept.append((row, concepts))
                else:
                    report.leave_out(reason)
            for row, concepts, boxes in _boxed(kept, detector):
                report.add(concepts, boxes)
                if not isinstance(boxes, str):
                    concepts = with_boxes(concepts, boxes)
                writer.write(row, {"concepts": concepts})
            yield

    def _total(self) -> int:
        return self._position.estimate()


_Boxes = list[list[Box]] | str


def _boxed(
    rows: Sequence[tuple[Row, Concepts]], detector: Detector | None
) -> Iterator[tuple[Row, Concepts, _Boxes]]:
    found: Iterator[_Boxes] = (NOT_ASKED for _ in rows)
    if detector is not None:
        found = detector.detect(
            [row.image for row, _ in rows], [concepts.phrases for _, concepts in rows]
        )
    for (row, concepts), boxes in zip(rows, found, strict=True):
        yield row, concepts, boxes


def _line(row: Row, found: dict[str, Any]) -> bytes:
    """A row of the output; hard captions go along, from a mined row or a table."""
    extra = row.extra
    hard = "hard_captions" if "hard_captions" in extra else "neg_caption"
    try:
        return concept_line(
            ConceptRow(
                image=row.image,
                caption=row.caption or "",
                concepts=found["concepts"],
                hard_captions=_list(extra, hard),
                hard_images=_list(extra, "neg_image"),
                concreteness=_list(extra, "concreteness"),
            )
        )
    except ValueError as error:
        raise InputError(f"{row.id}: {error}") from error


def _list(extra: dict[str, Any], name: str) -> list[Any]:
    """A table's cell is spelt as Python, a mined row has a list already."""
    found = extra.get(name, [])
    return found if isinstance(found, list) else list_in(str(found), name)
