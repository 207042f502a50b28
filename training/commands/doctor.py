"""``slipform doctor``: which backends work here, and why others do not."""

from __future__ import annotations

import argparse


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command's parser."""
    commands.add_parser(
        "doctor",
        help="say which backends work here, and why others do not",
        description="Say which backends of the loss work on this machine, and why others do not.",
    )


def run(_: argparse.Namespace) -> int:
    """Print the report."""
    from slipform_kernels import doctor

    print(doctor.report())
    return 0
