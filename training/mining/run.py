"""A mining run: from caption files to hard captions, in bounded memory, resumed after a crash.

Two passes. The first finds the candidates of the input's first rows and counts them into an
inventory; it is left out where there is one, or where the rewriter needs none. The second rewrites
each row of this part; candidates that the first pass left on disk are not found again.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from slipform_training.concreteplant.anchors import Candidate, draw_anchors, top_candidates
from slipform_training.concreteplant.corpus import CorpusRewriter
from slipform_training.concreteplant.inventory import Inventory, InventoryCounter
from slipform_training.concreteplant.rewrite import HardCaption
from slipform_training.concreteplant.rewriters import Job, Refusal, Rewriter
from slipform_training.mining.files import locked, read_json, write_json
from slipform_training.mining.position import Position
from slipform_training.mining.readers import read_rows
from slipform_training.mining.report import Report
from slipform_training.mining.resume import BlockRun, Progress
from slipform_training.mining.rows import Row
from slipform_training.mining.settings import MiningSettings
from slipform_training.mining.tagging import (
    BLOCK,
    PAYING_BLOCKS,
    Tagged,
    TaggedFile,
    blocks_of,
    reason_of,
    tag_blocks,
)
from slipform_training.mining.writers import ShardWriter, Writer, mined_file

NO_CANDIDATE = "no rated word"


def mine(
    settings: MiningSettings,
    *,
    workers: int = 1,
    fresh: bool = False,
    progress: Progress = lambda name, done, total: None,
) -> Report:
    """Mines, or goes on where an earlier run with the same settings was stopped.

    Args:
        settings: what to do.
        workers: processes that find candidates, where there is enough to do for them.
        fresh: forget an earlier run, and replace its output.
        progress: called after each block.

    Returns:
        The report, which is beside the output as well.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: bad content of an input; or (MismatchError) the output, or what a stopped run
            left, belongs to other settings.
        RuntimeError: a package or its data is missing, or the endpoint gave up.
    """
    if workers < 1:
        raise ValueError(f"workers: got {workers}, expected at least 1")
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    with locked(settings.beside("lock")), _long_lived():
        run = Run(settings, workers, progress)
        report = run.run(fresh=fresh)
        report.workers = run.used
        return report


class Run(BlockRun[Report]):
    """A run's files and passes; the output must be locked."""

    def __init__(self, settings: MiningSettings, workers: int, progress: Progress) -> None:
        super().__init__(
            settings.request(),
            out=settings.out_file,
            beside=settings.beside,
            name="mine",
            progress=progress,
        )
        self._settings, self._workers = settings, workers
        self._tagged = TaggedFile(settings.beside("tagged.jsonl"))
        self._position = Position(())
        self.used = 1
        self._rewriter: Rewriter | None = None

    def _report(self, data: dict[str, Any] | None) -> Report:
        return Report(data)

    def _writer(self) -> Writer:
        return _writer(self._settings)

    def _forget(self, *, fresh: bool) -> None:
        self._tagged.remove()
        if fresh and self._settings.inventory is None:
            self._settings.inventory_file.unlink(missing_ok=True)

    def _note(self, report: Report) -> None:
        report.notes.update(getattr(self._rewriter, "take_notes", dict)())

    def _is_taken(self) -> bool:
        return any(path.exists() for path in self._settings.mined_files())

    def _write(self, writer: Writer, report: Report, *, skip: int) -> Iterator[None]:
        self._rewriter = self._make_rewriter()
        gc.freeze()  # the inventory, as long as this run
        for block, tagged in self._own_blocks(skip=skip):
            outcomes = mine_block(block, tagged, self._rewriter, self._settings)
            for row, (hard, reason) in zip(block, outcomes, strict=True):
                writer.write(row, mined_json(row, hard, reason))
                report.add(hard, reason)
            yield

    def _total(self) -> int:
        return -(-self._position.estimate() // self._settings.shard[1])

    def _blocks(self) -> Iterator[list[Row]]:
        settings = self._settings
        self._position = Position(settings.inputs)
        return blocks_of(read_rows(settings.inputs, settings.columns, self._position))

    def _tag(self, blocks: Iterator[list[Row]]) -> Iterator[tuple[list[Row], Tagged]]:
        first = list(islice(blocks, PAYING_BLOCKS))
        workers = self._workers if len(first) == PAYING_BLOCKS else 1
        self.used = max(self.used, workers)
        return tag_blocks(chain(first, blocks), self._settings.tagger, workers=workers)

    def _own_blocks(self, *, skip: int) -> Iterator[tuple[list[Row], Tagged]]:
        """This part's blocks with their candidates, from disk as far as they are there."""
        i, n = self._settings.shard
        known = len(range(i, self._tagged.mend(), n))
        blocks = islice(self._blocks(), i + skip * n, None, n)
        if skip < known:
            tagged = islice(self._tagged, i + skip * n, None, n)
            yield from zip(islice(blocks, known - skip), tagged, strict=True)
        yield from self._tag(blocks)

    def _make_rewriter(self) -> Rewriter:
        settings = self._settings
        thesaurus = None
        if settings.wordnet is not None:
            from slipform_training.concreteplant.wordnet import WordNet

            thesaurus = WordNet(settings.wordnet)
        if settings.rewriter == "llm":
            from slipform_training.concreteplant.llm import LlmRewriter

            assert settings.llm is not None  # the settings see to it
            return LlmRewriter(settings.llm)
        if settings.rewriter == "wordnet":
            from slipform_training.concreteplant.wordnet import WordNetRewriter

            assert thesaurus is not None
            rate = settings.tagger.load()[1].rate
            return WordNetRewriter(thesaurus, rate, tolerance=settings.tolerance)
        return CorpusRewriter(self.inventory(), tolerance=settings.tolerance, thesaurus=thesaurus)

    def inventory(self) -> Inventory:
        """The corpus's words, from their file or counted now."""
        settings = self._settings
        path, source = settings.inventory_file, settings.source()
        found = read_json(path)
        if found is not None and (settings.inventory is not None or found.get("source") == source):
            try:
                return Inventory(found)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
        limit = -(-settings.inventory_rows // BLOCK)
        done = self._tagged.mend()
        new = self._tag(islice(self._blocks(), done, limit))
        counter, rows = InventoryCounter(), 0
        for tagged in chain(self._tagged, self._tagged.append(tagged for _, tagged in new)):
            for row in tagged:
                counter.add(_rated(row, settings))
            rows += len(tagged)
            self._progress("inventory", rows, min(self._position.estimate(), limit * BLOCK))
        inventory = counter.inventory()
        write_json(path, {"source": source, **inventory.data})
        return inventory


@contextlib.contextmanager
def _long_lived() -> Iterator[None]:
    """Spares the garbage collector what is there already: it would look at it again and again."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _rated(candidates: Iterable[Candidate], settings: MiningSettings) -> list[Candidate]:
    return [item for item in candidates if item.concreteness >= settings.min_concreteness]


def _writer(settings: MiningSettings) -> Writer:
    if settings.format == "shards":
        prefix = settings.part + "-" if settings.part else ""
        return ShardWriter(
            settings.out, prefix=prefix, rows=settings.shard_rows, images=settings.images
        )
    return mined_file(settings.out_file, tsv=settings.format == "tsv")


def mine_block(
    block: list[Row], tagged: Tagged, rewriter: Rewriter, settings: MiningSettings
) -> list[tuple[list[HardCaption], str | None]]:
    """The hard captions of each row, or none and the reason."""
    hard: list[list[HardCaption]] = [[] for _ in block]
    reasons: list[str | None] = [reason_of(row) for row in block]
    for number in range(settings.hard):
        jobs: list[tuple[int, Job]] = []
        for at, (row, candidates) in enumerate(zip(block, tagged, strict=True)):
            if reasons[at] is not None:
                continue
            top = top_candidates(
                candidates,
                k=settings.k,
                min_concreteness=settings.min_concreteness,
                targets=settings.targets,
            )
            used = {item.replaced for item in hard[at]}
            drawn = draw_anchors(top, seed=settings.seed, sample=row.id)
            anchors = [item for item in drawn if item.text not in used]
            if not top:
                reasons[at] = NO_CANDIDATE
            elif anchors and len(hard[at]) == number:
                job = Job(row.caption or "", anchors, candidates, settings.seed, row.id, number)
                jobs.append((at, job))
        outcomes = rewriter.rewrite([job for _, job in jobs])
        for (at, _), outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, Refusal):
                reasons[at] = outcome.reason
            else:
                hard[at].append(outcome)
    return list(zip(hard, reasons, strict=True))


def mined_json(row: Row, hard: list[HardCaption], reason: str | None) -> dict[str, Any]:
    """A row as the training data reader expects it."""
    mined: dict[str, Any] = {
        "id": row.id,
        "image": row.image,
        "caption": row.caption,
        "hard_captions": [item.hard_caption for item in hard],
        "replaced": [item.replaced for item in hard],
        "replacement": [item.replacement for item in hard],
        "edit": [item.edit for item in hard],
        "concreteness": [item.concreteness for item in hard],
        "rewriter": [item.rewriter for item in hard],
    }
    if not hard:
        mined["reason"] = reason
    return mined
