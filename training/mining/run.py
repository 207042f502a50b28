"""A mining run: from caption files to hard captions, in bounded memory, resumed after a crash.

Two passes. The first finds the candidates of the input's first rows and counts them into an
inventory; it is left out where there is one, or where the rewriter needs none. The second rewrites
each row of this part; candidates that the first pass left on disk are not found again.

Every second or so, after a block, what was done is committed: first the output is brought to disk,
then a small state file with the output's size and the report. After a crash the output is cut to
that size.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
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
from slipform_training.mining.writers import FileWriter, ShardWriter, Writer

# A crash costs the work of so long; each commit waits for the disk.
COMMIT_SECONDS = 1.0

NO_CANDIDATE = "no rated word"

# Told after each block of the pass's name, its rows so far, and how many there will be, about.
Progress = Callable[[str, int, int], None]


class MismatchError(ValueError):
    """An earlier run with the same output was asked for something else."""


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


class Run:
    """A run's files and passes; the output must be locked."""

    def __init__(self, settings: MiningSettings, workers: int, progress: Progress) -> None:
        self._settings, self._workers, self._progress = settings, workers, progress
        self._state_file = settings.beside("state.json")
        self._report_file = settings.beside("report.json")
        self._tagged = TaggedFile(settings.beside("tagged.jsonl"))
        self._request = settings.request()
        self._position = Position(())
        self.used = 1

    def run(self, *, fresh: bool) -> Report:
        if fresh:
            self.forget()
        state = read_json(self._state_file)
        if state is None:
            finished = self.finished(fresh=fresh)
            if finished is not None:
                return finished
        if state is None or (state["blocks"] == 0 and state["request"] != self._request):
            # Nothing is written yet, so that other settings do no harm.
            self._tagged.remove()
            state = {"request": self._request, "blocks": 0, "output": None, "report": None}
            write_json(self._state_file, state)
        self._check(state["request"], self._state_file)
        writer = _writer(self._settings)
        if state["output"] is not None:
            writer.settle(state["output"])
        if state["output"] is None or not state["output"]["complete"]:
            state = self._mine(state, writer)
        report = Report(state["report"])
        self.finish(report)
        self._state_file.unlink()
        return report

    def forget(self) -> None:
        """Removes what an earlier run left beside the output."""
        self._state_file.unlink(missing_ok=True)
        self._report_file.unlink(missing_ok=True)
        self._tagged.remove()
        if self._settings.inventory is None:
            self._settings.inventory_file.unlink(missing_ok=True)

    def finish(self, report: Report) -> None:
        """Writes the report, with which the run counts as finished."""
        write_json(self._report_file, {"request": self._request, **report.data})
        self._tagged.remove()

    def finished(self, *, fresh: bool) -> Report | None:
        """The report of an earlier run that did all of this; MismatchError if it was another."""
        out = self._settings.out_file
        report = read_json(self._report_file)
        if report is not None:
            self._check(report["request"], self._report_file)
            if out.exists():
                return Report(report)
        elif not fresh and any(path.exists() for path in self._settings.mined_files()):
            raise MismatchError(f"{out} is there, but not its report; name another, or use --fresh")
        return None

    def _check(self, earlier: dict[str, Any], where: Path) -> None:
        for name in sorted(self._request.keys() | earlier.keys()):
            was, asked = earlier.get(name), self._request.get(name)
            if was != asked:
                raise MismatchError(
                    f"{where}: the earlier run had {name} = {was!r}, this one has {asked!r}; "
                    "name another output, or use --fresh"
                )

    def _mine(self, state: dict[str, Any], writer: Writer) -> dict[str, Any]:
        settings = self._settings
        rewriter = self._rewriter()
        gc.freeze()  # the inventory, as long as this run
        report = Report(state["report"])
        writer.resume(state["output"])
        blocks, committed = state["blocks"], time.monotonic()
        for block, tagged in self._own_blocks(skip=blocks):
            outcomes = mine_block(block, tagged, rewriter, settings)
            for row, (hard, reason) in zip(block, outcomes, strict=True):
                writer.write(row, mined_json(row, hard, reason))
                report.add(hard, reason)
            blocks += 1
            if writer.full or time.monotonic() - committed >= COMMIT_SECONDS:
                self._save(state, blocks, writer, report, rewriter, last=False)
                committed = time.monotonic()
            total = -(-self._position.estimate() // settings.shard[1])
            self._progress("mine", report.rows, max(total, report.rows))
        self._save(state, blocks, writer, report, rewriter, last=True)
        return state

    def _save(
        self,
        state: dict[str, Any],
        blocks: int,
        writer: Writer,
        report: Report,
        rewriter: Rewriter,
        *,
        last: bool,
    ) -> None:
        report.notes.update(getattr(rewriter, "take_notes", dict)())
        state.update(blocks=blocks, output=writer.commit(last=last), report=report.data)
        write_json(self._state_file, state)
        writer.settle(state["output"])

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

    def _rewriter(self) -> Rewriter:
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
    return FileWriter(settings.out_file, tsv=settings.format == "tsv")


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
                candidates, k=settings.k, min_concreteness=settings.min_concreteness
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
