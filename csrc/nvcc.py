"""The CUDA half of a build: where nvcc is, what it compiles for, and what to link.

SLIPFORM_CUDA decides about it:
    auto (default)  build it where nvcc is found and works; else say why not, and build without
    1               build it or fail with the compiler's message
    0               leave it out

SLIPFORM_CUDA_ARCHS lists compute capabilities without the dot, such as "80;90". Each becomes
machine code, and the newest PTX as well, which newer GPUs compile when they load it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

from toolchain import BuildError, output_of

ARCHITECTURES = ("80", "86", "89", "90", "100", "120")
SOURCES = ("elementwise_cuda.cu", "fused_gradient.cu", "fused_statistics.cu", "merge.cu")
BINDINGS = "bindings_cuda.cpp"
FLAGS = ["-O3", "-std=c++17", "-Xcompiler=-fPIC,-fvisibility=hidden"]
# The static runtime: the module imports on machines without CUDA.
LIBRARIES = ["-lcudart_static", "-ldl", "-lrt", "-lpthread"]


class Cuda(NamedTuple):
    """What to compile with and for."""

    nvcc: str
    version: str
    architectures: tuple[str, ...]
    library_folders: tuple[str, ...]
    note: str = ""  # architectures that this nvcc does not know

    def flags(self, compiler: list[str]) -> list[str]:
        """Of every compilation; `compiler` is the host's."""
        targets = [f"-gencode=arch=compute_{n},code=sm_{n}" for n in self.architectures]
        newest = self.architectures[-1]
        targets.append(f"-gencode=arch=compute_{newest},code=compute_{newest}")
        host = [f"-ccbin={compiler[0]}", *(f"-Xcompiler={word}" for word in compiler[1:])]
        return [*FLAGS, *targets, *host, *shlex.split(os.environ.get("NVCCFLAGS", ""))]

    def link_flags(self) -> list[str]:
        return [*(f"-L{folder}" for folder in self.library_folders), *LIBRARIES]


def mode() -> str:
    """The value of SLIPFORM_CUDA; anything but 0, 1 and auto is an error."""
    value = os.environ.get("SLIPFORM_CUDA", "auto")
    if value not in ("0", "1", "auto"):
        raise SystemExit(f"SLIPFORM_CUDA: got {value!r}, expected '0', '1' or 'auto'")
    return value


def find() -> Cuda:
    """The toolkit of CUDA_HOME, CUDA_PATH or the PATH; BuildError where there is none."""
    if mode() == "0":
        raise BuildError("left out by SLIPFORM_CUDA=0")
    nvcc = _find_nvcc()
    version = output_of([nvcc, "--version"])
    release = re.search(r"release ([\d.]+)", version)
    known = set(re.findall(r"sm_(\d+)", output_of([nvcc, "--list-gpu-code"])))
    if release is None or not known:
        raise BuildError(f"{nvcc} does not run: {version or 'no output'}")
    architectures, note = _architectures(known, nvcc)
    plan = output_of([nvcc, "-dryrun", "-shared", "none.o", "-o", "none.so"])
    libraries = re.search(r"LIBRARIES=(.*)", plan)
    folders = [word[2:] for word in shlex.split(libraries[1])] if libraries else []
    if not any(Path(folder, "libcudart_static.a").is_file() for folder in folders):
        where = ", ".join(folders) or "no folder"
        raise BuildError(f"libcudart_static.a not found in {where} (part of the CUDA toolkit)")
    return Cuda(nvcc, f"{nvcc}: CUDA {release[1]}", architectures, tuple(folders), note)


def _find_nvcc() -> str:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        home = os.environ.get(variable)
        if home:
            nvcc = Path(home, "bin", "nvcc")
            if nvcc.is_file():
                return str(nvcc)
            raise BuildError(f"no nvcc: {variable}={home} has no bin/nvcc")
    found = shutil.which("nvcc")
    if found is None:
        raise BuildError("no nvcc: CUDA_HOME is not set, and it is not on the PATH")
    return found


def _architectures(known: set[str], nvcc: str) -> tuple[tuple[str, ...], str]:
    """In ascending order; of the default list those that nvcc knows, with a note on the rest."""
    named = os.environ.get("SLIPFORM_CUDA_ARCHS")
    if named is None:
        usable = tuple(name for name in ARCHITECTURES if name in known)
        left_out = [name for name in ARCHITECTURES if name not in known]
        if not usable:
            raise BuildError(f"{nvcc} knows none of the architectures {', '.join(ARCHITECTURES)}")
        note = f"{nvcc} does not know {', '.join(left_out)}" if left_out else ""
        return usable, note
    wanted = [name for name in re.split(r"[;,\s]+", named) if name]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        expected = ";".join(sorted(known, key=int))
        raise SystemExit(
            f"SLIPFORM_CUDA_ARCHS: got {named!r}, expected a list of those that {nvcc} knows: "
            f"{expected}"
        )
    return tuple(sorted(set(wanted), key=int)), ""
