"""An output that grows block by block, and goes on after a crash without a row lost or doubled.

Every second or so, after a block, what was done is committed: first the output is brought to disk,
then a small state file with the output's size and the report. After a crash the output is cut to
that size.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from slipform_training.mining.files import read_json, write_json
from slipform_training.mining.writers import Writer

# A crash costs the work of so long; each commit waits for the disk.
COMMIT_SECONDS = 1.0

# Told after each block of the pass's name, its rows so far, and how many there will be, about.
Progress = Callable[[str, int, int], None]


class MismatchError(ValueError):
    """An earlier run with the same output was asked for something else."""


class RunReport(Protocol):
    """Counts of a run."""

    @property
    def rows(self) -> int:
        """Rows so far."""

    @property
    def data(self) -> dict[str, Any]:
        """The report as json."""


ReportT = TypeVar("ReportT", bound=RunReport)


class BlockRun(ABC, Generic[ReportT]):
    """A run that writes blocks of rows; see the module.

    Args:
        request: what the output depends on, as json: an earlier run must have had the same.
        out: the output, a file or a folder.
        beside: name -> a path beside the output's.
        name: of the pass that writes, for the progress.
        progress: called after each block.
    """

    def __init__(
        self,
        request: dict[str, Any],
        *,
        out: Path,
        beside: Callable[[str], Path],
        name: str,
        progress: Progress,
    ) -> None:
        self._request, self._out = request, out
        self._name, self._progress = name, progress
        self._state_file = beside("state.json")
        self._report_file = beside("report.json")

    @abstractmethod
    def _report(self, data: dict[str, Any] | None) -> ReportT:
        """The report to go on with; None starts at zero."""

    @abstractmethod
    def _writer(self) -> Writer:
        """What writes the output."""

    @abstractmethod
    def _write(self, writer: Writer, report: ReportT, *, skip: int) -> Iterator[None]:
        """Writes and counts a block after the other, from the `skip`-th; stops after each."""

    @abstractmethod
    def _total(self) -> int:
        """How many rows there will be, about."""

    def _forget(self, *, fresh: bool) -> None:
        """Deletes what the run keeps for itself; `fresh`: what outlives it as well."""

    def _is_taken(self) -> bool:
        """Whether something is in the output's place."""
        return self._out.exists()

    def _note(self, report: ReportT) -> None:
        """Adds to the report what is known by now, before each commit."""

    def run(self, *, fresh: bool) -> ReportT:
        """Runs, or goes on; `fresh` forgets an earlier run. Returns the report.

        Raises:
            MismatchError: the output, or what a stopped run left, belongs to other settings.
        """
        if fresh:
            self.forget()
        state = read_json(self._state_file)
        if state is None:
            finished = self.finished(fresh=fresh)
            if finished is not None:
                return finished
        if state is None or (state["blocks"] == 0 and state["request"] != self._request):
            # Nothing is written yet, so that other settings do no harm.
            self._forget(fresh=False)
            state = {"request": self._request, "blocks": 0, "output": None, "report": None}
            write_json(self._state_file, state)
        self._check(state["request"], self._state_file)
        writer = self._writer()
        if state["output"] is not None:
            writer.settle(state["output"])
        if state["output"] is None or not state["output"]["complete"]:
            self._work(state, writer)
        report = self._report(state["report"])
        self.finish(report)
        self._state_file.unlink()
        return report

    def forget(self) -> None:
        """Removes what an earlier run left beside the output."""
        self._state_file.unlink(missing_ok=True)
        self._report_file.unlink(missing_ok=True)
        self._forget(fresh=True)

    def finish(self, report: ReportT) -> None:
        """Writes the report, with which the run counts as finished."""
        write_json(self._report_file, {"request": self._request, **report.data})
        self._forget(fresh=False)

    def finished(self, *, fresh: bool) -> ReportT | None:
        """The report of an earlier run that did all of this; MismatchError if it was another."""
        report = read_json(self._report_file)
        if report is not None:
            self._check(report["request"], self._report_file)
            if self._out.exists():
                return self._report(report)
        elif not fresh and self._is_taken():
            raise MismatchError(
                f"{self._out} is there, but not its report; name another, or use --fresh"
            )
        return None

    def _check(self, earlier: dict[str, Any], where: Path) -> None:
        for name in sorted(self._request.keys() | earlier.keys()):
            was, asked = earlier.get(name), self._request.get(name)
            if was != asked:
                raise MismatchError(
                    f"{where}: the earlier run had {name} = {was!r}, this one has {asked!r}; "
                    "name another output, or use --fresh"
                )

    def _work(self, state: dict[str, Any], writer: Writer) -> None:
        report = self._report(state["report"])
        blocks, committed = state["blocks"], time.monotonic()

        def commit(*, last: bool) -> None:
            self._note(report)
            state.update(blocks=blocks, output=writer.commit(last=last), report=report.data)
            write_json(self._state_file, state)
            writer.settle(state["output"])

        writer.resume(state["output"])
        for _ in self._write(writer, report, skip=blocks):
            blocks += 1
            if writer.full or time.monotonic() - committed >= COMMIT_SECONDS:
                commit(last=False)
                committed = time.monotonic()
            self._progress(self._name, report.rows, max(self._total(), report.rows))
        commit(last=True)
