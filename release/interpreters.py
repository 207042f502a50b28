"""The Pythons of this machine, by version."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SUPPORTED = ("3.10", "3.11", "3.12", "3.13")
QUESTION = (
    "import ensurepip, json, sys, sysconfig, venv; print(json.dumps(["
    "'%d.%d' % sys.version_info[:2], sys.version.split()[0], sysconfig.get_paths()['purelib']]))"
)


class Interpreter(NamedTuple):
    """A Python that can make environments."""

    python: Path
    minor: str  # "3.12"
    version: str  # "3.12.1"
    site: Path  # its site-packages


def ask(python: Path) -> Interpreter | None:
    """What the executable says of itself; None where it does not run or lacks venv."""
    try:
        run = subprocess.run(
            [python, "-I", "-c", QUESTION], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    minor, version, site = json.loads(run.stdout)
    return Interpreter(python, minor, version, Path(site))


def find(minor: str) -> Interpreter | None:
    """A Python of that version ("3.12"): the running one, one on the PATH, or one of pyenv's."""
    for candidate in _candidates(minor):
        found = ask(candidate)
        if found is not None and found.minor == minor:
            return found
    return None


def _candidates(minor: str) -> Iterator[Path]:
    yield Path(sys.executable)
    name = f"python{minor}"
    on_path = shutil.which(name)
    if on_path is not None:
        yield Path(on_path)
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    # A shim of pyenv's on the PATH runs only where its version is switched on.
    yield from sorted(root.glob(f"versions/{minor}.*/bin/{name}"), reverse=True)


def find_all(wanted: Sequence[str]) -> list[Interpreter]:
    """The Pythons of these versions; without any, of the supported ones those that are found.

    SystemExit where one that was asked for is missing, or every supported one.
    """
    found = {minor: find(minor) for minor in wanted or SUPPORTED}
    present = [one for one in found.values() if one is not None]
    missing = [minor for minor, one in found.items() if one is None]
    if missing and (wanted or not present):
        raise SystemExit(
            f"Python {', '.join(missing)}: not found with venv, neither running this, nor as "
            f"python{missing[0]} on the PATH, nor among pyenv's versions"
        )
    return present


def left_out(interpreters: Iterable[Interpreter]) -> list[str]:
    """The supported versions that are not among these."""
    present = {one.minor for one in interpreters}
    return [minor for minor in SUPPORTED if minor not in present]
