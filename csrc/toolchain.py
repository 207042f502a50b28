"""What a build needs of the machine: compiler, ninja, headers, and what the compiler knows."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from itertools import pairwise
from pathlib import Path

COMPILERS = ("c++", "g++", "clang++")
BASELINE: dict[str, list[str]] = {"baseline": []}
# The baseline comes first, here and so on the linker's command: of a function template that several
# objects hold, the linker keeps the first copy, and that one must run on every processor.
X86_LEVELS = {
    **BASELINE,
    "avx2": ["-march=x86-64-v3"],
    "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
}


class BuildError(Exception):
    """Something cannot be built; the message says what is missing or what the compiler said."""


def find_compiler() -> list[str]:
    """The compiler's command: CXX where set, else the first of COMPILERS on the PATH."""
    named = shlex.split(os.environ.get("CXX", ""))
    for words in [named] if named else [[name] for name in COMPILERS]:
        found = shutil.which(words[0])
        if found:
            return [found, *words[1:]]
    wanted = f"CXX={shlex.join(named)}" if named else ", ".join(COMPILERS)
    raise BuildError(f"no C++ compiler: {wanted} not found on the PATH")


def compiler_version(compiler: list[str]) -> str:
    """First line of `--version`, as the record of what built the extension."""
    return f"{shlex.join(compiler)}: {output_of([*compiler, '--version']).partition(chr(10))[0]}"


def output_of(command: list[str]) -> str:
    """What the command prints, on either stream; empty where it cannot run."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return (run.stdout or run.stderr).strip()


def find_ninja() -> str:
    """The ninja of the Python package, else the one on the PATH."""
    try:
        import ninja

        return str(Path(ninja.BIN_DIR) / "ninja")
    except ImportError:
        found = shutil.which("ninja")
    if not found:
        raise BuildError("ninja is not installed (needed where build isolation is off)")
    return found


def stage_pybind11(build_dir: Path) -> Path:
    """Copy of pybind11's headers in the build folder.

    Build isolation installs pybind11 under another path each time; from there every rebuild would
    compile everything anew.
    """
    try:
        import pybind11
    except ImportError as error:
        raise BuildError(
            "pybind11 is not installed (needed where build isolation is off)"
        ) from error
    staged = build_dir / f"pybind11-{pybind11.__version__}"
    if not staged.exists():
        partial = build_dir / f"pybind11-partial-{os.getpid()}"
        shutil.copytree(pybind11.get_include(), partial)
        partial.rename(staged)
    return staged


def python_include() -> Path:
    """Folder of Python.h."""
    folder = Path(sysconfig.get_paths()["include"])
    if not (folder / "Python.h").is_file():
        raise BuildError(
            f"Python.h not found in {folder}: install this Python's headers "
            "(python3-dev on Debian and Ubuntu, python3-devel on Fedora)"
        )
    return folder


def architecture_flags() -> list[str]:
    """The `-arch` pairs of a macOS Python, so that a universal2 wheel holds both halves."""
    if sys.platform != "darwin":
        return []
    words = shlex.split(os.environ.get("ARCHFLAGS") or sysconfig.get_config_var("CFLAGS") or "")
    return [word for pair in pairwise(words) if pair[0] == "-arch" for word in pair]


def levels_for(compiler: list[str], build_dir: Path) -> tuple[dict[str, list[str]], str]:
    """CPU levels to compile, and the reason where an x86-64 machine gets the baseline only."""
    if platform.machine().lower() not in ("x86_64", "amd64") or sys.platform == "darwin":
        return BASELINE, ""
    for flags in X86_LEVELS.values():
        if not knows(compiler, flags, build_dir):
            return BASELINE, f"the compiler does not know {shlex.join(flags)}: baseline level only"
    return X86_LEVELS, ""


def knows(compiler: list[str], flags: list[str], build_dir: Path) -> bool:
    """Whether the compiler accepts the flags."""
    probe = build_dir / "probe.cpp"
    probe.write_text("int probe;\n")
    command = [*compiler, *flags, "-c", str(probe), "-o", str(probe.with_suffix(".o"))]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
