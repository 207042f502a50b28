"""Compiles C++ and CUDA sources for the CPU, against the emulation of the GPU primitives in shim/.

Objects and programs are kept under build/native, by the hash of the preprocessed source, the
flags and the compiler: a macro that a source does not look at costs no new compilation.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "tests" / "native"
CACHE = ROOT / "build" / "native"
INCLUDES = [f"-I{ROOT / 'csrc'}", f"-I{NATIVE / 'shim'}", f"-I{NATIVE}"]
COMMON = ["-std=c++17", "-g1", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror"]


@dataclass(frozen=True)
class Variant:
    """A way to compile, and what its programs need in their environment."""

    name: str
    flags: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    needs_clang: bool = False


PLAIN = Variant("plain", ("-O2",))
SANITIZED = Variant(
    "sanitized",
    ("-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    # Python and torch leak at exit; an abandoned kernel's stack is no root for the leak checker.
    (("ASAN_OPTIONS", "detect_leaks=0"), ("UBSAN_OPTIONS", "print_stacktrace=1")),
)
# Every variable that is not initialised holds large negative numbers.
PATTERN = Variant("pattern", ("-O1", "-ftrivial-auto-var-init=pattern"))
MEMORY = Variant("memory", ("-O1", "-fsanitize=memory"), needs_clang=True)
# The fibres of processors that have no assembly switch.
UCONTEXT = Variant("ucontext", ("-O2", "-DSLIPFORM_UCONTEXT"))

VARIANTS = (PLAIN, SANITIZED, PATTERN, MEMORY, UCONTEXT)


def compiler(variant: Variant) -> str | None:
    """The C++ compiler for this variant; CXX is taken as it stands where it is set."""
    names: Sequence[str] = ("clang++",) if variant.needs_clang else ("g++", "clang++")
    if "CXX" in os.environ and not variant.needs_clang:
        names = (os.environ["CXX"],)
    return next(filter(None, map(shutil.which, names)), None)


def missing(variant: Variant) -> str | None:
    """Why this variant cannot be built here, or None."""
    if compiler(variant) is not None:
        return None
    return "no clang++ on the PATH" if variant.needs_clang else "no g++ or clang++ on the PATH"


def program(source: Path, variant: Variant, defines: Iterable[str] = ()) -> Path:
    """The program of one source; `defines` as "NAME=value"."""
    return _link(_objects([source], variant, defines), [], variant)


def extension(
    name: str, sources: Iterable[Path], variant: Variant, defines: Iterable[str] = ()
) -> Path:
    """A Python extension module of that name, in a folder of its own; needs pybind11."""
    import pybind11

    includes = [f"-isystem{pybind11.get_include()}", f"-isystem{sysconfig.get_paths()['include']}"]
    objects = _objects(sources, variant, defines, includes)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return _link(objects, ["-shared"], variant, name=f"{name}{suffix}")


def environment(variant: Variant, *, preload: bool = False) -> dict[str, str]:
    """The process environment for this variant; `preload` for an interpreter without sanitizers
    that is going to import a sanitized extension."""
    merged = {**os.environ, **dict(variant.environment)}
    if preload and "-fsanitize=address,undefined" in variant.flags:
        # The sanitizer looks up the C++ library's functions when it starts: before the extension
        # brings that library.
        names = ("libasan.so", "libstdc++.so.6")
        ask = _compiler_or_error(variant)
        paths = [_output([ask, f"-print-file-name={name}"]).decode().strip() for name in names]
        merged["LD_PRELOAD"] = " ".join(paths)
    return merged


def run(
    executable: Path, *arguments: str, variant: Variant, extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a program; `extra` are environment variables."""
    return subprocess.run(
        [executable, *arguments],
        env={**environment(variant), **(extra or {})},
        capture_output=True,
        text=True,
        timeout=600,
    )


def _objects(
    sources: Iterable[Path], variant: Variant, defines: Iterable[str], includes: Iterable[str] = ()
) -> list[Path]:
    settings = [*INCLUDES, *includes, *(f"-D{define}" for define in defines)]
    return [_object(source, variant, settings) for source in sources]


def _object(source: Path, variant: Variant, settings: list[str]) -> Path:
    command = [_compiler_or_error(variant), "-x", "c++", *COMMON, *variant.flags]
    text = _output([*command, *settings, "-E", str(source)])
    target = CACHE / f"{source.stem}-{variant.name}-{_hash(command, text)}.o"

    def compile_to(path: Path) -> None:
        # From the source and not its preprocessed text: warnings then know about macros.
        _output([*command, *settings, "-c", str(source), "-o", str(path)])

    return _make(target, compile_to)


def _link(objects: list[Path], flags: list[str], variant: Variant, name: str = "program") -> Path:
    command = [_compiler_or_error(variant), *COMMON, *variant.flags, *flags]
    names = " ".join(str(path) for path in objects)
    folder = CACHE / f"{objects[0].stem}-{_hash(command, names.encode())}"
    return _make(folder / name, lambda path: _output([*command, *objects, "-o", path]))


def _make(target: Path, make: Callable[[Path], object]) -> Path:
    """Makes `target` if it is not there; several processes may ask for it at once."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_suffix(".lock")):
        if not target.exists():
            unfinished = target.with_suffix(".unfinished")
            make(unfinished)
            unfinished.replace(target)
    return target


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compiler_or_error(variant: Variant) -> str:
    found = compiler(variant)
    if found is None:
        raise RuntimeError(f"{variant.name}: {missing(variant)}")
    return found


@cache
def _version(name: str) -> bytes:
    return subprocess.run([name, "--version"], capture_output=True, check=True).stdout


def _hash(command: list[str], text: bytes) -> str:
    return hashlib.sha256(_version(command[0]) + repr(command).encode() + text).hexdigest()[:20]


def _output(command: Iterable[str | Path]) -> bytes:
    words = list(map(str, command))
    done = subprocess.run(words, capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}\n{done.stderr.decode()}")
    return done.stdout
