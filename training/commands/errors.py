"""What a command says when it cannot do what was asked."""

from __future__ import annotations

import importlib.util


class CommandError(Exception):
    """A mistake that the user can mend; shown as one line, without a traceback."""


def require(*modules: str, extra: str = "train") -> None:
    """Raise CommandError, with the extra that brings them, if any of `modules` is missing."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(
            f"this command needs packages that are not installed ({', '.join(missing)}); "
            f'install them with: pip install "slipform-kernels[{extra}]"'
        )
