"""Build: the Python packages and, where a C++ compiler is found, slipform_kernels._native.

The extension includes no torch header, so build isolation holds: setuptools, pybind11 and ninja are
all it needs, and one build serves every torch version.

SLIPFORM_NATIVE decides about the extension:
    auto (default)  build it; without a working compiler install the pure Python package and say why
    1               build it or fail with the compiler's message
    0               leave it out

CXX, CPPFLAGS, CXXFLAGS and LDFLAGS are honoured. What was built, and the reason where nothing was,
is written to slipform_kernels/_build_info.json, which `slipform doctor` reads.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zlib
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, NamedTuple

from setuptools import Command, Distribution, Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
PACKAGE = "slipform_kernels"
EXTENSION = f"{PACKAGE}._native"
COMPILERS = ("c++", "g++", "clang++")
COMPILED_ONCE = ("bindings.cpp",)
COMPILED_PER_LEVEL = ("elementwise_cpu.cpp",)

COMMON_FLAGS = [
    *("-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-math-errno"),
    *("-fno-trapping-math", "-fopenmp-simd", "-pthread", "-Wall", "-Wextra"),
]
PRODUCT = "similarities_avx512.cpp"
BASELINE: dict[str, list[str]] = {"baseline": []}
# The baseline comes first, here and so on the linker's command: of a function template that several
# objects hold, the linker keeps the first copy, and that one must run on every processor.
X86_LEVELS = {
    **BASELINE,
    "avx2": ["-march=x86-64-v3"],
    "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
}
# Without these flags the file compiles to a stub that says so.
PRODUCT_FLAGS = [*X86_LEVELS["avx512"], "-mavx512bf16"]


class BuildError(Exception):
    """The extension cannot be built; the message says what is missing or what the compiler said."""


class Outcome(NamedTuple):
    """What became of the extension: its file, or None and the reason."""

    library: Path | None
    reason: str = ""
    compiler: str = ""
    levels: tuple[str, ...] = ()


def native_mode() -> str:
    """The value of SLIPFORM_NATIVE; anything but 0, 1 and auto is an error."""
    mode = os.environ.get("SLIPFORM_NATIVE", "auto")
    if mode not in ("0", "1", "auto"):
        raise SystemExit(f"SLIPFORM_NATIVE: got {mode!r}, expected '0', '1' or 'auto'")
    return mode


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
    run = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    first = (run.stdout or run.stderr).strip().partition("\n")[0]
    return f"{shlex.join(compiler)}: {first}"


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


def ninja_file(
    compiler: list[str],
    levels: dict[str, list[str]],
    product_flags: list[str],
    include: list[Path],
    library: str,
) -> str:
    """Text of build.ninja: every object, and the library linked from them."""

    def words(flags: list[str]) -> str:
        return shlex.join(flags).replace("$", "$$")

    def path(name: str) -> str:
        source = str(ROOT / "csrc" / name)
        return source.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")

    def given(name: str) -> list[str]:
        return shlex.split(os.environ.get(name, ""))

    darwin = sys.platform == "darwin"
    common = [*COMMON_FLAGS, *architecture_flags(), *given("CPPFLAGS"), *given("CXXFLAGS")]
    link = ["-bundle", "-undefined", "dynamic_lookup"] if darwin else ["-shared"]
    link += ["-pthread", *architecture_flags(), *given("LDFLAGS")]
    once = [f"-I{folder}" for folder in include]
    if "avx512" in levels:
        once.append("-DSLIPFORM_LEVELS_X86=1")
    jobs = [(f"{Path(name).stem}.o", name, once) for name in COMPILED_ONCE]
    jobs += [
        (f"{Path(name).stem}.{level}.o", name, [*flags, f"-DSLIPFORM_LEVEL={level}"])
        for name in COMPILED_PER_LEVEL
        for level, flags in levels.items()
    ]
    jobs.append((f"{Path(PRODUCT).stem}.o", PRODUCT, product_flags))
    lines = [
        f"cxx = {words(compiler)}",
        f"common = {words(common)}",
        f"link = {words(link)}",
        "rule compile",
        "  command = $cxx $common $flags -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        "  command = $cxx $in $link -o $out",
    ]
    for target, name, flags in jobs:
        lines += [f"build {target}: compile {path(name)}", f"  flags = {words(flags)}"]
    lines += [f"build {library}: link {' '.join(target for target, _, _ in jobs)}"]
    return "\n".join(lines) + "\n"


def compile_native() -> Outcome:
    """Compile and link in build/, incrementally; BuildError where that fails."""
    if os.name == "nt":
        raise BuildError("the extension is not built on Windows")
    compiler = find_compiler()
    version = compiler_version(compiler)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    # One folder a compiler: ninja compares commands, and an upgraded compiler keeps its command.
    build_dir = ROOT / "build" / f"native{Path(suffix).stem}-{zlib.crc32(version.encode()):08x}"
    build_dir.mkdir(parents=True, exist_ok=True)
    levels, reason = levels_for(compiler, build_dir)
    library = f"_native{suffix}"
    include = [python_include(), stage_pybind11(build_dir)]
    with_product = "avx512" in levels and knows(compiler, PRODUCT_FLAGS, build_dir)
    product_flags = PRODUCT_FLAGS if with_product else []
    text = ninja_file(compiler, levels, product_flags, include, library)
    (build_dir / "build.ninja").write_text(text)
    run = subprocess.run(
        [find_ninja(), "-C", str(build_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if run.returncode:
        raise BuildError(f"the C++ compiler failed ({version}):\n{run.stdout}")
    print(run.stdout, file=sys.stderr)
    return Outcome(build_dir / library, reason, version, tuple(levels))


def settle(distribution: Distribution) -> Outcome:
    """Build the extension once a run, as SLIPFORM_NATIVE says; without it, the package is pure."""
    known = getattr(distribution, "native_outcome", None)
    if known is not None:
        return known
    mode = native_mode()
    try:
        if mode == "0":
            raise BuildError("left out by SLIPFORM_NATIVE=0")
        outcome = compile_native()
    except (BuildError, OSError) as error:
        if mode == "1":
            raise SystemExit(f"SLIPFORM_NATIVE=1, but {error}") from None
        outcome = Outcome(None, str(error))
    if outcome.reason:
        print(f"warning: slipform_kernels._native: {outcome.reason}", file=sys.stderr)
    if outcome.library is None:
        distribution.ext_modules = []
    distribution.native_outcome = outcome
    return outcome


class CleanBuild(build):
    """Build into an empty folder: build/lib keeps modules that have since been removed."""

    def run(self) -> None:
        for package in (PACKAGE, "slipform_training"):
            shutil.rmtree(Path(self.build_lib, package), ignore_errors=True)
        super().run()


class NativeBuild(build_ext):
    """Put ninja's library where setuptools wants it."""

    def run(self) -> None:
        if settle(self.distribution).library is None:
            self.extensions = []
        super().run()

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copy2(settle(self.distribution).library, target)


class NativeInfo(Command):
    """Write _build_info.json beside the modules; remove a library that no longer belongs there."""

    editable_mode = False
    user_options: ClassVar[list[tuple[str, str, str]]] = []

    def initialize_options(self) -> None:
        self.build_lib: str | None = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        outcome = settle(self.distribution)
        folder = (ROOT if self.editable_mode else Path(self.build_lib)) / PACKAGE
        info = outcome._asdict() | {"native": outcome.library is not None}
        del info["library"]
        (folder / "_build_info.json").write_text(json.dumps(info, indent=2) + "\n")
        if outcome.library is None:
            for stale in folder.glob(f"_native*{sysconfig.get_config_var('EXT_SUFFIX')}"):
                stale.unlink()

    def get_source_files(self) -> list[str]:
        return []

    def get_outputs(self) -> list[str]:
        return [f"{self.build_lib}/{PACKAGE}/_build_info.json"]

    def get_output_mapping(self) -> dict[str, str]:
        return {self.get_outputs()[0]: f"{PACKAGE}/_build_info.json"} if self.editable_mode else {}


class HonestWheel(bdist_wheel):
    """A platform tag exactly where the extension is inside.

    setuptools decides on the tag before anything is compiled, when a failing compiler is not known.
    """

    def settle(self) -> None:
        self.root_is_pure = settle(self.distribution).library is None

    def run(self) -> None:
        self.settle()
        super().run()

    def write_wheelfile(self, *args: object, **kwargs: object) -> None:
        self.settle()
        super().write_wheelfile(*args, **kwargs)


build.sub_commands = [*build.sub_commands, ("native_info", None)]

if __name__ == "__main__":
    sources = [f"csrc/{name}" for name in (*COMPILED_ONCE, *COMPILED_PER_LEVEL, PRODUCT)]
    setup(
        packages=[
            *find_packages(include=[PACKAGE, f"{PACKAGE}.*"]),
            "slipform_training",
            *(f"slipform_training.{name}" for name in find_packages("training")),
        ],
        package_dir={"slipform_training": "training"},
        package_data={"": ["py.typed", "*.pyi", "*.json", "*.tsv", "*.csv", "*.txt"]},
        exclude_package_data={"": ["_build_info.json"]},
        ext_modules=[] if native_mode() == "0" else [Extension(EXTENSION, sources)],
        cmdclass={
            "build": CleanBuild,
            "build_ext": NativeBuild,
            "native_info": NativeInfo,
            "bdist_wheel": HonestWheel,
        },
    )
