"""Building wheels of the project with a stand-in for csrc that compiles in a moment.

No build isolation, so nothing is fetched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
HEADERS = Path(sysconfig.get_paths()["include"], "Python.h").is_file()

needs_compiler = pytest.mark.skipif(
    COMPILER is None or not HEADERS, reason="no C++ compiler or no Python headers"
)

BINDINGS = """
#include <Python.h>
#include "answer.h"
int launch();
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit__native() {
    PyObject* module = PyModule_Create(&definition);
    PyModule_AddIntConstant(module, "answer", ANSWER);
#ifdef SLIPFORM_CUDA
    PyModule_AddIntConstant(module, "launch", launch());
#endif
    return module;
}
"""
LAUNCH = "int launch() { return 7; }\n"

# A stand-in for nvcc, which leaves the work to the C++ compiler. In its environment, BROKEN_NVCC
# makes every compilation fail.
NVCC = """#!/bin/sh
case "$*" in
    --version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit;;
    --list-gpu-code) printf 'sm_75\\nsm_80\\nsm_90\\n'; exit;;
    *-dryrun*) echo '#$ LIBRARIES=  "-L{libraries}"' >&2; exit;;
esac
[ -z "$BROKEN_NVCC" ] || {{ echo "error: nothing works" >&2; exit 1; }}
echo "$*" >>'{log}'
while [ $# -gt 0 ]; do
    case "$1" in
        -c) source=$2;;
        -o) object=$2;;
        -MF) depfile=$2;;
    esac
    shift
done
exec {compiler} -x c++ -fPIC -MMD -MF "$depfile" -c "$source" -o "$object"
"""


def source_tree(parent: Path) -> Path:
    """The sources as a checkout has them, with the stand-in for csrc."""
    tree = parent / "a tree"  # the space is part of the test
    tree.mkdir()
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    ignored = shutil.ignore_patterns("_native.*.so", "_build_info.json", "__pycache__")
    for name in ("slipform_kernels", "training"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    csrc = tree / "csrc"
    csrc.mkdir()
    (csrc / "answer.h").write_text("#define ANSWER 42\n")
    for source in (ROOT / "csrc").glob("*.cpp"):
        (csrc / source.name).write_text("static const char* unused = 0;\n")
    (csrc / "bindings.cpp").write_text(BINDINGS)
    for source in (ROOT / "csrc").glob("*.cu"):
        (csrc / source.name).write_text("")
    (csrc / "merge.cu").write_text(LAUNCH)
    for script in (ROOT / "csrc").glob("*.py"):
        shutil.copy(script, csrc)
    return tree


def cuda_toolkit(folder: Path) -> Path:
    """A folder for CUDA_HOME with the stand-in for nvcc, whose commands go to `log` there."""
    (folder / "bin").mkdir(parents=True)
    (folder / "libcudart_static.a").write_bytes(b"!<arch>\n")
    script = folder / "bin" / "nvcc"
    script.write_text(NVCC.format(libraries=folder, log=folder / "log", compiler=COMPILER))
    script.chmod(0o755)
    return folder


def pip_wheel(tree: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`pip wheel` of the tree into tree/wheels.

    SLIPFORM_* and the compilers' variables only as given here; no CUDA unless asked for.
    """
    set_here = ("CXX", "CUDA_HOME", "CUDA_PATH", "NVCCFLAGS", "PIP_QUIET")
    set_here += tuple(name for name in os.environ if name.startswith("SLIPFORM_"))
    environment = {"SLIPFORM_CUDA": "0"} | environment
    clean = {k: v for k, v in os.environ.items() if k not in set_here}
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation"]
    return subprocess.run(
        [*command, "--wheel-dir", "wheels", "."],
        cwd=tree,
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
    )


class Wheel:
    """The one wheel in tree/wheels, taken out of there."""

    def __init__(self, tree: Path, run: subprocess.CompletedProcess[str]) -> None:
        assert run.returncode == 0, run.stdout + run.stderr
        (path,) = (tree / "wheels").iterdir()
        with zipfile.ZipFile(path) as archive:
            self.names = set(archive.namelist())
            self.info = json.loads(archive.read("slipform_kernels/_build_info.json"))
            archive.extractall(tree.parent / "unpacked")
        path.unlink()
        self.pure = path.name.endswith("-py3-none-any.whl")
        self.library = f"slipform_kernels/_native{SUFFIX}"
        self.has_library = self.library in self.names
