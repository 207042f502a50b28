"""The command ``slipform``: parses arguments and calls a module of ``commands``."""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Sequence

from slipform_training.commands import CommandError

__all__ = ["CommandError", "main"]

# Modules of slipform_training.commands, in the order of the help.
COMMANDS = (
    "demo",
    "study",
    "mine",
    "hard_images",
    "concepts",
    "train",
    "eval",
    "probe",
    "analyze",
    "bench",
    "doctor",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (sys.argv by default).

    Returns the exit code: 0, 2 for an error in the request (one line on stderr), 130 when
    interrupted.
    """
    parser, commands = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        _refuse(unknown, commands[arguments.command])
    try:
        module = arguments.command.replace("-", "_")
        return importlib.import_module(f"slipform_training.commands.{module}").run(arguments)
    except CommandError as error:
        print(f"slipform: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("slipform: interrupted", file=sys.stderr)
        return 130


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser, and those of the commands by name."""
    parser = argparse.ArgumentParser(
        prog="slipform", description="Contrastive vision-language training with hard negatives."
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(
        title="commands", metavar="command", dest="command", required=True
    )
    for name in COMMANDS:
        importlib.import_module(f"slipform_training.commands.{name}").add(commands)
    return parser, dict(commands.choices)


def _refuse(unknown: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Exit as argparse does for arguments that it does not know, naming the nearest option."""
    known = [option for option in parser._option_string_actions if option.startswith("--")]
    hints = [
        f"; nearest to {word.partition('=')[0]}: {near[0]}"
        for word in unknown
        if word.startswith("--") and (near := difflib.get_close_matches(word.split("=")[0], known))
    ]
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{''.join(hints)}")


class _Version(argparse.Action):
    """Imports the package only when the version is asked for: importing torch takes seconds."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from slipform_kernels import __version__

        print(f"slipform {__version__}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
