"""Tries the distributions in fresh environments of each Python: `make packages`.

For each Python the wheel is installed with the extra `train` into one environment, and the source
distribution without extras into another. In both, outside of the checkout, one_step.py imports the
package and runs `slipform doctor`, a training step and, with `train`, `slipform train`. Ends with a
table, and with status 1 where anything failed. With torch's default wheel for Linux an environment
takes some GB of disk; it is removed before the next one is made.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import NamedTuple

from .distributions import ROOT, CommandError, build_sdist, build_wheel, call, repair
from .interpreters import Interpreter, ask, find_all, left_out

WORK = ROOT / "build" / "packages"
PROGRAM = Path(__file__).with_name("one_step.py")
COLUMNS = ("python", "installed", "dependencies", "torch", "doctor", "steps", "s")


class Trial(NamedTuple):
    """What is installed for which Python."""

    interpreter: Interpreter
    archive: Path
    extra: str
    lender: Path | None  # site-packages of another environment, for the dependencies


def install(trial: Trial, environment: Path, torch: str | None) -> Path:
    """Make the environment, install into it; its Python."""
    call([trial.interpreter.python, "-m", "venv", environment])
    python = environment / "bin" / "python"
    # From its cache pip would take the wheel of an earlier source distribution of this name.
    pip = [str(python), "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check"]
    if trial.lender is not None:
        fresh = ask(python)
        assert fresh is not None
        (fresh.site / "dependencies.pth").write_text(f"{trial.lender}\n")
        call([*pip, "--no-deps", "--ignore-installed", trial.archive])
    else:
        pinned = [f"torch=={torch}"] if torch else []
        call([*pip, f"{trial.archive}{trial.extra}", *pinned], cwd=environment)
    return python


def check(python: Path, extra: str, folder: Path) -> dict[str, str]:
    """What one_step.py finds in the environment, run in an empty folder: columns of the table."""
    folder.mkdir()
    clean = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONPATH" and not name.startswith("SLIPFORM_")
    }
    said = call([python, "-I", PROGRAM, f"{version()}{extra}"], env=clean, cwd=folder)
    return json.loads(said.splitlines()[-1])


def version() -> str:
    """The version in pyproject.toml, which is where it is set."""
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("version = "))
    return line.split('"')[1]


def run(trial: Trial, environment: Path, torch: str | None) -> tuple[dict[str, str], bool]:
    """A row of the table, and whether all went well; prints what did not."""
    start = time.monotonic()
    row = {
        "python": trial.interpreter.version,
        "installed": f"{'wheel' if trial.archive.suffix == '.whl' else 'sdist'}{trial.extra}",
        "dependencies": "installed" if trial.lender is None else "borrowed",
    }
    print(f"Python {row['python']}: {row['installed']} of {trial.archive.name}", flush=True)
    try:
        python = install(trial, environment, torch)
        row |= check(python, trial.extra, environment / "work")
    except CommandError as error:
        print(error, file=sys.stderr, flush=True)
        row["steps"] = "FAILED"
    row["s"] = f"{time.monotonic() - start:.0f}"
    return row, row["steps"] != "FAILED"


def try_python(
    sdist: Path, interpreter: Interpreter, *, torch: str | None, shared: bool
) -> tuple[list[dict[str, str]], bool]:
    """Both distributions on one Python: rows of the table, and whether all went well."""
    folder = WORK / interpreter.minor
    running = interpreter.python == Path(sys.executable)
    lender = interpreter.site if shared and running else None
    try:
        wheel, _ = repair(build_wheel(sdist, interpreter, folder / "wheel"))
    except CommandError as error:
        print(error, file=sys.stderr, flush=True)
        return [{"python": interpreter.version, "installed": "no wheel", "steps": "FAILED"}], False
    first = Trial(interpreter, wheel, "[train]", lender)
    row, well = run(first, folder / "with wheel", torch)
    if not shared:
        shutil.rmtree(folder / "with wheel", ignore_errors=True)
    elif well and lender is None:
        made = ask(folder / "with wheel" / "bin" / "python")
        lender = made.site if made is not None else None
    second = Trial(interpreter, sdist, "", lender)
    other_row, other_well = run(second, folder / "with sdist", torch)
    return [row, other_row], well and other_well


def table(rows: list[dict[str, str]]) -> str:
    """The rows, in columns as wide as they need to be."""
    lines = [COLUMNS, *(tuple(row.get(name, "-") for name in COLUMNS) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m release.environments", description=__doc__)
    parser.add_argument("pythons", nargs="*", metavar="3.X", help="(default: those found)")
    parser.add_argument(
        "--torch", metavar="VERSION", help="where one is installed (default: pip's)"
    )
    parser.add_argument(
        "--shared",
        action="store_true",
        help="install the dependencies once a Python, for the running one not at all: of two "
        "environments the second borrows those of the first, those of the running one are borrowed",
    )
    options = parser.parse_args(arguments)
    interpreters = find_all(options.pythons)
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    rows: list[dict[str, str]] = []
    well = True
    try:
        sdist = build_sdist(WORK / "sdist")
        for interpreter in interpreters:
            more, good = try_python(sdist, interpreter, torch=options.torch, shared=options.shared)
            rows, well = rows + more, well and good
            shutil.rmtree(WORK / interpreter.minor)
    except CommandError as error:
        raise SystemExit(f"failed: {error}") from None
    finally:
        shutil.rmtree(WORK)
    print(table(rows))
    for minor in left_out(interpreters):
        print(f"not tried: Python {minor}")
    if not well:
        raise SystemExit("some environments do not work")


if __name__ == "__main__":
    main()
