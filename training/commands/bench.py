"""``slipform bench``: what benchmarks found, as tables and figures."""

from __future__ import annotations

import argparse
from pathlib import Path

from .errors import CommandError, require, told


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command's parser."""
    bench = commands.add_parser(
        "bench",
        help="benchmarks as tables and figures",
        description="What the benchmarks of a checkout's folder benchmarks/ found.",
    )
    actions = bench.add_subparsers(title="actions", metavar="action", dest="action", required=True)
    report = actions.add_parser(
        "report",
        help="tables and figures of all results",
        description="Write markdown tables (report.md) and figures of time and memory against the "
        "batch size (png) of all results in a folder. What was not measured is said so.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    report.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        default=Path("benchmarks/results"),
        help="folder of the benchmarks' json files",
    )
    report.add_argument(
        "--out", type=Path, metavar="DIR", default=Path("runs/bench"), help="folder for the report"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the report and say where."""
    require("matplotlib")
    from slipform_training.benchmarks_report import ResultsError, write_report

    try:
        write_report(arguments.results, arguments.out)
    except (ResultsError, OSError) as error:
        raise CommandError(told(error)) from error
    return 0
