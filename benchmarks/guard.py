"""Has the loss become slower, or its memory larger, since the last release? In one run.

    python -m benchmarks.guard [--against REF] [--sizes 256 1024 4096] [--dtypes fp32 bf16]
        [--tolerance 0.1] [--rounds 10] [--processes 3] [--threads 2]

Builds the working tree and the last release (tag v1.2.3, or REF), lets them take turns, and
compares their time beside open_clip's loss and beside a matrix product of the same process, and the
peak of their memory. Exits with 1 if the present tree is slower, or needs more, by more than the
tolerance, and noise does not explain it: the whole 95 % interval lies beyond. CPU only.

Each tree has a process of its own, and both live through all rounds: in a round one measures while
the other waits, first one, then the other, and the order changes from round to round. So both see
the same clock and the same neighbours, seconds apart, without the start of a process between them.
One process for both is not possible: they would register the same operators with torch. Processes
of the same code differ a little for as long as they live, so there are several pairs.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import guard_decision as decision
from benchmarks.guard_decision import Change, Round
from benchmarks.guard_trees import GuardError, Tree, built_trees, earlier_commit
from slipform_training.markdown import markdown_table

ROOT = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("guard_worker.py")
MEMORY_REPEATS = 3


class Worker:
    """A process that measures one tree."""

    def __init__(self, tree: Tree, what: str, threads: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), what, str(threads)],
            env={**os.environ, "PYTHONPATH": str(tree.path), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.tree = tree
        found = Path(self._answer()["file"])
        if not found.is_relative_to(tree.path):
            self.close()
            raise GuardError(f"{tree.name}: got the package of {found}, expected {tree.path}")

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its message tells more
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        if not line:
            message = self.process.stderr.read().strip()
            self.close()
            raise GuardError(f"{self.tree.name}: the process has ended:\n{message[-2000:]}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def workers(trees: Sequence[Tree], what: str, threads: int) -> Iterator[list[Worker]]:
    """A process for each tree, ended after."""
    with contextlib.ExitStack() as stack:
        started = []
        for tree in trees:
            started.append(Worker(tree, what, threads))
            stack.callback(started[-1].close)
        yield started


def time_trees(
    trees: tuple[Tree, Tree], cases: Sequence[dict[str, Any]], *, processes: int, rounds: int,
    threads: int, say: Callable[[str], None] = print,
) -> list[list[list[Round]]]:  # fmt: skip
    """For each case, for each pair of processes, the rounds."""
    found: list[list[list[Round]]] = [[] for _ in cases]
    for number in range(processes):
        say(f"timing: pair of processes {number + 1} of {processes}")
        with workers(trees, "timings", threads) as pair:
            for case, of_case in zip(cases, found, strict=True):
                of_case.append([_round(pair, case, turn) for turn in range(rounds)])
    return found


def _round(pair: Sequence[Worker], case: dict[str, Any], turn: int) -> Round:
    order = (0, 1) if turn % 2 == 0 else (1, 0)
    answers = {tree: pair[tree].ask(case) for tree in order}
    return answers[0], answers[1]


def weigh_trees(
    trees: tuple[Tree, Tree], case: dict[str, Any], *, threads: int
) -> tuple[list[int], list[int]]:
    """Extra bytes of forward and backward in each tree, a process each time."""
    found: tuple[list[int], list[int]] = ([], [])
    for _ in range(MEMORY_REPEATS):
        for tree, own in zip(trees, found, strict=True):
            with workers([tree], "memory", threads) as (worker,):
                own.append(worker.ask(case)["bytes"])
    return found


def report(
    trees: tuple[Tree, Tree], cases: Sequence[dict[str, Any]], times: list[list[list[Round]]],
    memory: Sequence[tuple[dict[str, Any], tuple[list[int], list[int]]]], tolerance: float,
) -> tuple[str, int]:  # fmt: skip
    """The table and the exit code: 1 if anything is slower or larger beyond noise."""
    now, then = trees
    rows = [["case", "beside", now.name, then.name, "cost, now / then", "95 % interval", ""]]
    verdicts = []
    for case, rounds in zip(cases, times, strict=True):
        for beside in decision.BESIDE:
            change = decision.change_in_time(rounds, beside)
            sides = [_cost(decision.cost(rounds, beside, tree=tree), beside) for tree in (0, 1)]
            rows.append([_named(case), beside, *sides, *_told(change, tolerance, verdicts)])
    for case, (ours, theirs) in memory:
        sides = [f"{statistics.median(one) / 2**20:.1f} MiB" for one in (ours, theirs)]
        told = _told(decision.change_in_memory(ours, theirs), tolerance, verdicts)
        rows.append([_named(case), "memory", *sides, *told])
    lines = [markdown_table(rows, words=2)]
    if decision.UNCLEAR in verdicts:
        lines.append("unclear: beyond the tolerance, but noise may explain it; try more --rounds")
    slower = verdicts.count(decision.SLOWER)
    lines.append(
        f"{slower} of {len(verdicts)} figures are worse than in {then.name} by more than "
        f"{tolerance:.0%}, beyond noise"
    )
    return "\n".join(lines), int(slower > 0)


def _named(case: dict[str, Any]) -> str:
    return f"N = {case['N']:,}, {case['dtype']}"


def _cost(value: float, beside: str) -> str:
    """Beside open_clip's loss as a speed, beside the product in products."""
    return f"{value:.2f} U" if beside == "product" else f"{1 / value:.2f} times as fast"


def _told(change: Change, tolerance: float, verdicts: list[str]) -> list[str]:
    verdicts.append(change.verdict(tolerance))
    return [f"{change.value:.3f}", f"{change.low:.3f} to {change.high:.3f}", verdicts[-1]]


def compare(trees: tuple[Tree, Tree], arguments: argparse.Namespace) -> int:
    """Measure, print the table, and return the exit code."""
    cases = [
        {"N": N, "D": arguments.dim, "dtype": dtype}
        for N, dtype in itertools.product(arguments.sizes, arguments.dtypes)
    ]
    threads = arguments.threads
    times = time_trees(
        trees, cases, processes=arguments.processes, rounds=arguments.rounds, threads=threads
    )
    print("memory")
    largest = [case for case in cases if case["N"] == max(arguments.sizes)]
    memory = [(case, weigh_trees(trees, case, threads=threads)) for case in largest]
    text, code = report(trees, cases, times, memory, arguments.tolerance)
    print(text)
    return code


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", metavar="REF", help="default: the last release")
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--dtypes", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--tolerance", type=float, default=0.1, help="0.1: a tenth slower is fine")
    parser.add_argument("--rounds", type=int, default=10, help="of each pair of processes")
    parser.add_argument("--processes", type=int, default=3, help="pairs, one after another")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args(argv)
    for name in ("dim", "rounds", "processes", "threads"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name}: got {getattr(arguments, name)}, expected at least 1")
    return arguments


def main(argv: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    arguments = parse(argv)
    # Sent by a scheduler; what was built must go then too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        commit = earlier_commit(root, arguments.against, say=print)
        with built_trees(root, commit, say=print, environment={"SLIPFORM_CUDA": "0"}) as trees:
            return compare(trees, arguments)
    except GuardError as error:
        print(f"guard: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("guard: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
