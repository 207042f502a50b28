"""``slipform study``: many branches from one start, compared seed by seed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .demo import MODULES
from .errors import CommandError, require

_NAMES = ("margins", "sweep", "early", "macco")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command's parser."""
    study = commands.add_parser(
        "study",
        help="ablations on the demo's scenes, over several seeds",
        description="Train small models that differ in one thing alone and compare them seed by "
        "seed. margins: margin against none, adaptive against static, increasing against "
        "decreasing, concrete against less concrete targets. sweep: margins from 0 to the demo's. "
        "early: the losses from a start that knows fewer words. macco: MACCO against "
        "InfoNCE and without each of its parts, and with Cement. Run again, it continues where it "
        "stopped.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    study.add_argument("name", choices=_NAMES, help="which study")
    study.add_argument(
        "--out",
        type=Path,
        default=argparse.SUPPRESS,
        help="folder for everything (runs/NAME; for margins and sweep the demo's, runs/demo)",
    )
    study.add_argument("--seeds", type=int, metavar="N", default=3, help="repetitions")
    study.add_argument(
        "--quick", action="store_true", help="a few steps of everything: a test, not a result"
    )
    study.add_argument("--no-progress", action="store_true", help="no progress bars")


def run(arguments: argparse.Namespace) -> int:
    """Run the study; 130 where it was interrupted, with its state saved."""
    require(*MODULES)
    from slipform_training.finetune import (
        ConfigMismatchError,
        NonFiniteLossError,
        TrainingInterrupted,
    )
    from slipform_training.study import STUDIES, run_study

    default = "demo" if arguments.name in ("margins", "sweep") else arguments.name
    out = getattr(arguments, "out", Path("runs") / default)
    study = STUDIES[arguments.name]
    try:
        run_study(
            study,
            study.config(seeds=arguments.seeds, quick=arguments.quick),
            out,
            progress=not arguments.no_progress,
        )
    except OSError as error:
        raise CommandError(f"--out {out}: {error.strerror or error}") from error
    except (ValueError, NonFiniteLossError, ConfigMismatchError) as error:
        raise CommandError(str(error)) from error
    except TrainingInterrupted as stopped:
        print(f"slipform: {stopped}", file=sys.stderr)
        return 130
    return 0
