"""Compiles slipform_kernels._native with ninja, incrementally, in build/; see setup.py."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import NamedTuple

import nvcc
import toolchain
from nvcc import Cuda
from toolchain import X86_LEVELS, BuildError

CSRC = Path(__file__).resolve().parent
COMPILED_ONCE = ("bindings.cpp", "buffer.cpp", "positives.cpp")
COMPILED_PER_LEVEL = ("elementwise_cpu.cpp",)
COMMON_FLAGS = [
    *("-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-math-errno"),
    *("-fno-trapping-math", "-fopenmp-simd", "-pthread", "-Wall", "-Wextra"),
]
FUSED = "fused_cpu.cpp"
AMX = ("amx_products.cpp", "amx_permission.cpp")
# Without these flags the files compile to stubs that say so.
FUSED_FLAGS = [*X86_LEVELS["avx512"], "-mavx512bf16"]
AMX_FLAGS = ["-mamx-tile", "-mamx-bf16"]


class Outcome(NamedTuple):
    """What became of the extension: its file, or None and the reason; and of its CUDA half."""

    library: Path | None
    reason: str = ""
    compiler: str = ""
    levels: tuple[str, ...] = ()
    cuda: bool = False
    cuda_reason: str = ""
    nvcc: str = ""
    cuda_architectures: tuple[str, ...] = ()


class Job(NamedTuple):
    """One object: which rule compiles which source, with which flags."""

    target: str
    source: str
    flags: list[str]
    rule: str = "compile"


class Build(NamedTuple):
    """Everything that the text of build.ninja depends on."""

    compiler: list[str]
    levels: dict[str, list[str]]
    fused_flags: list[str]
    amx_flags: list[str]
    include: list[Path]
    library: str
    cuda: Cuda | None = None

    def jobs(self) -> list[Job]:
        once = [f"-I{folder}" for folder in self.include]
        if "avx512" in self.levels:
            once.append("-DSLIPFORM_LEVELS_X86=1")
        cuda_sources: tuple[str, ...] = ()
        names: tuple[str, ...] = COMPILED_ONCE
        if self.cuda is not None:
            once.append("-DSLIPFORM_CUDA=1")
            once.append(f'-DSLIPFORM_CUDA_ARCHS="{";".join(self.cuda.architectures)}+PTX"')
            names, cuda_sources = (*COMPILED_ONCE, nvcc.BINDINGS), nvcc.SOURCES
        result = [Job(f"{Path(name).stem}.o", name, once) for name in names]
        result += [
            Job(f"{Path(name).stem}.{level}.o", name, [*flags, f"-DSLIPFORM_LEVEL={level}"])
            for name in COMPILED_PER_LEVEL
            for level, flags in self.levels.items()
        ]
        result.append(Job(f"{Path(FUSED).stem}.o", FUSED, self.fused_flags))
        result += [Job(f"{Path(name).stem}.o", name, self.amx_flags) for name in AMX]
        return result + [Job(f"{Path(n).stem}.cu.o", n, [], "nvcc") for n in cuda_sources]


def ninja_file(build: Build) -> str:
    """Text of build.ninja: every object, and the library linked from them."""

    def words(flags: list[str]) -> str:
        return shlex.join(flags).replace("$", "$$")

    def path(name: str) -> str:
        source = str(CSRC / name)
        return source.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")

    def given(name: str) -> list[str]:
        return shlex.split(os.environ.get(name, ""))

    darwin = sys.platform == "darwin"
    architectures = toolchain.architecture_flags()
    common = [*COMMON_FLAGS, *architectures, *given("CPPFLAGS"), *given("CXXFLAGS")]
    link = ["-bundle", "-undefined", "dynamic_lookup"] if darwin else ["-shared"]
    link += ["-pthread", *architectures, *given("LDFLAGS")]
    lines = [f"cxx = {words(build.compiler)}", f"common = {words(common)}"]
    depfile = ["  depfile = $out.d", "  deps = gcc"]
    if build.cuda is not None:
        link += build.cuda.link_flags()
        lines += [f"nvcc = {words([build.cuda.nvcc, *build.cuda.flags(build.compiler)])}"]
        lines += ["rule nvcc", "  command = $nvcc $flags -MMD -MF $out.d -c $in -o $out", *depfile]
    lines += [f"link = {words(link)}"]
    lines += ["rule compile", "  command = $cxx $common $flags -MMD -MF $out.d -c $in -o $out"]
    lines += [*depfile, "rule link", "  command = $cxx $in $link -o $out"]
    jobs = build.jobs()
    for job in jobs:
        lines.append(f"build {job.target}: {job.rule} {path(job.source)}")
        lines.append(f"  flags = {words(job.flags)}")
    lines += [f"build {build.library}: link {' '.join(job.target for job in jobs)}"]
    return "\n".join(lines) + "\n"


def compile_native(root: Path) -> Outcome:
    """Compile and link in root/build; BuildError where the CPU half fails.

    Where SLIPFORM_CUDA is auto, a CUDA half that fails is left out, and the outcome says why.
    """
    if os.name == "nt":
        raise BuildError("the extension is not built on Windows")
    compiler = toolchain.find_compiler()
    try:
        return _compile(root, compiler, nvcc.find())
    except (BuildError, OSError) as error:
        if nvcc.mode() == "1":
            raise SystemExit(f"SLIPFORM_CUDA=1, but {error}") from None
        return _compile(root, compiler, None)._replace(cuda_reason=str(error))


def _compile(root: Path, compiler: list[str], cuda: Cuda | None) -> Outcome:
    version = toolchain.compiler_version(compiler)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    # One folder a compiler: ninja compares commands, and an upgraded compiler keeps its command.
    key = version if cuda is None else f"{version}, {cuda.version}"
    build_dir = root / "build" / f"native{Path(suffix).stem}-{zlib.crc32(key.encode()):08x}"
    build_dir.mkdir(parents=True, exist_ok=True)
    levels, reason = toolchain.levels_for(compiler, build_dir)
    with_fused = "avx512" in levels and toolchain.knows(compiler, FUSED_FLAGS, build_dir)
    build = Build(
        compiler,
        levels,
        FUSED_FLAGS if with_fused else [],
        AMX_FLAGS if with_fused and toolchain.knows(compiler, AMX_FLAGS, build_dir) else [],
        [toolchain.python_include(), toolchain.stage_pybind11(build_dir)],
        f"_native{suffix}",
        cuda,
    )
    (build_dir / "build.ninja").write_text(ninja_file(build))
    run = subprocess.run(
        [toolchain.find_ninja(), "-C", str(build_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if run.returncode:
        raise BuildError(f"the compiler failed: {_first_error(run.stdout)} ({key})\n{run.stdout}")
    print(run.stdout, file=sys.stderr)
    outcome = Outcome(build_dir / build.library, reason, version, tuple(levels))
    if cuda is None:
        return outcome
    return outcome._replace(
        cuda=True,
        cuda_reason=cuda.note,
        nvcc=cuda.version,
        cuda_architectures=cuda.architectures,
    )


def _first_error(output: str) -> str:
    """The line that says what is wrong, for a summary."""
    lines = [line.strip() for line in output.splitlines()]
    found = (line for line in lines if re.search(r"\berror\b|unsupported", line, re.IGNORECASE))
    return next(found, "no message")
