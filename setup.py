"""Build: the Python packages and, where a C++ compiler is found, slipform_kernels._native.

The extension includes no torch header, so build isolation holds: setuptools, pybind11 and ninja are
all it needs, and one build serves every torch version.

SLIPFORM_NATIVE decides about the extension:
    auto (default)  build it; without a working compiler install the pure Python package and say why
    1               build it or fail with the compiler's message
    0               leave it out

SLIPFORM_CUDA=auto, 1 or 0 decides likewise about its CUDA kernels, which need nvcc, and
SLIPFORM_CUDA_ARCHS about the GPUs that they are compiled for: csrc/nvcc.py.

CXX, CPPFLAGS, CXXFLAGS, NVCCFLAGS and LDFLAGS are honoured. What was built, and the reason where
nothing was, is written to slipform_kernels/_build_info.json, which `slipform doctor` reads.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.command.egg_info import egg_info

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "csrc"))  # a build's folder is not on the path

import nvcc  # noqa: E402
from native_build import (  # noqa: E402
    AMX,
    COMPILED_ONCE,
    COMPILED_PER_LEVEL,
    FUSED,
    Outcome,
    compile_native,
)
from toolchain import BuildError  # noqa: E402

PACKAGE = "slipform_kernels"
EXTENSION = f"{PACKAGE}._native"
SOURCES = (*COMPILED_ONCE, *COMPILED_PER_LEVEL, FUSED, *AMX, nvcc.BINDINGS, *nvcc.SOURCES)


def native_mode() -> str:
    """The value of SLIPFORM_NATIVE; anything but 0, 1 and auto is an error."""
    mode = os.environ.get("SLIPFORM_NATIVE", "auto")
    if mode not in ("0", "1", "auto"):
        raise SystemExit(f"SLIPFORM_NATIVE: got {mode!r}, expected '0', '1' or 'auto'")
    return mode


def settle(distribution: Distribution) -> Outcome:
    """Build the extension once a run, as SLIPFORM_NATIVE says; without it, the package is pure."""
    known = getattr(distribution, "native_outcome", None)
    if known is not None:
        return known
    mode = native_mode()
    if mode == "0" and nvcc.mode() == "1":
        raise SystemExit("SLIPFORM_CUDA=1, but SLIPFORM_NATIVE=0 leaves the extension out")
    try:
        if mode == "0":
            raise BuildError("left out by SLIPFORM_NATIVE=0")
        outcome = compile_native(ROOT)
    except (BuildError, OSError) as error:
        if mode == "1":
            raise SystemExit(f"SLIPFORM_NATIVE=1, but {error}") from None
        outcome = Outcome(None, str(error))
    if outcome.reason:
        print(f"warning: slipform_kernels._native: {outcome.reason}", file=sys.stderr)
    if outcome.cuda_reason:
        print(f"warning: slipform_kernels._native, CUDA: {outcome.cuda_reason}", file=sys.stderr)
    if outcome.library is None:
        distribution.ext_modules = []
    distribution.native_outcome = outcome
    return outcome


def long_description() -> str:
    """The README for the page of a package index, where a link into the checkout leads nowhere.

    Of such links the text remains, which names the file.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\[([^]]+)\]\((?!https?://|#)[^)]+\)", r"\1", text)


class FreshList(egg_info):
    """List the files of a source distribution anew: setuptools adds those of its last list."""

    def find_sources(self) -> None:
        Path(self.egg_info, "SOURCES.txt").unlink(missing_ok=True)
        super().find_sources()


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
    sources = [f"csrc/{name}" for name in SOURCES]
    setup(
        long_description=long_description(),
        long_description_content_type="text/markdown",
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
            "egg_info": FreshList,
            "native_info": NativeInfo,
            "bdist_wheel": HonestWheel,
        },
    )
