"""What a command says when it cannot do what was asked."""

from __future__ import annotations

import importlib.util


class CommandError(Exception):
    """A mistake that the user can mend; shown as one line, without a traceback."""


def require(*modules: str, extra: str = "train") -> None:
    """Raise CommandError, with the command that installs them, if any of `modules` is missing.

    extra: the optional dependencies of slipform-kernels that hold them.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(
            f"this command needs packages that are not installed ({', '.join(missing)}); "
            f'install them with: pip install "slipform-kernels[{extra}]"'
        )


def told(error: Exception) -> str:
    """The error in words: of the system's, the file and what is wrong with it."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror[:1].lower()}{error.strerror[1:]}"
    return str(error)


def shard_of(text: str) -> tuple[int, int]:
    """The part that "i/n" names; CommandError where it names none."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal()):
        raise CommandError(f"shard: got {text!r}, expected i/n")
    return int(part), int(parts)
