"""setup.py: what a build with, without and with a broken compiler leaves behind.

The builds use the project's setup.py and packages with a stand-in for csrc that compiles in a
moment, and no build isolation, so nothing is fetched.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "csrc"))

import native_build
import toolchain

from support.backends import native_missing
from support.builds import COMPILER, ROOT, SUFFIX, Wheel, needs_compiler, pip_wheel


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """A compiler that fails at the bindings only, after the probes of its flags have passed."""
    script = tmp_path / "broken++"
    script.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        '  *bindings.cpp*) echo "bindings.cpp:1: error: nothing works" >&2; exit 1;;\n'
        f'  *) exec {COMPILER} "$@";;\nesac\n'
    )
    script.chmod(0o755)
    return str(script)


@needs_compiler
def test_a_compiler_gives_a_platform_wheel_whose_extension_loads(tree):
    wheel = Wheel(tree, pip_wheel(tree))
    assert (wheel.pure, wheel.has_library, wheel.info["native"]) == (False, True, True)
    assert wheel.info["reason"] == ""
    assert "baseline" in wheel.info["levels"]
    spec = importlib.util.spec_from_file_location(
        "_native", tree.parent / "unpacked" / wheel.library
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.answer == 42


def test_without_a_compiler_the_wheel_is_pure_and_says_why(tree, empty):
    run = pip_wheel(tree, PATH=empty)
    wheel = Wheel(tree, run)
    assert (wheel.pure, wheel.has_library, wheel.info["native"]) == (True, False, False)
    assert "no C++ compiler: c++, g++, clang++ not found" in wheel.info["reason"]
    assert "warning: slipform_kernels._native: no C++ compiler" in run.stdout + run.stderr


def test_native_1_without_a_compiler_fails_and_says_so(tree, empty):
    run = pip_wheel(tree, PATH=empty, SLIPFORM_NATIVE="1")
    assert run.returncode != 0
    assert "SLIPFORM_NATIVE=1, but no C++ compiler" in run.stdout + run.stderr


@needs_compiler
def test_a_failing_compiler_leaves_a_pure_wheel_with_its_message(tree, broken):
    wheel = Wheel(tree, pip_wheel(tree, CXX=broken))
    assert (wheel.pure, wheel.has_library, wheel.info["native"]) == (True, False, False)
    assert "error: nothing works" in wheel.info["reason"]


@needs_compiler
def test_native_1_with_a_failing_compiler_fails_with_its_message(tree, broken):
    run = pip_wheel(tree, CXX=broken, SLIPFORM_NATIVE="1")
    assert run.returncode != 0
    assert "error: nothing works" in run.stdout + run.stderr


@needs_compiler
def test_a_pure_wheel_after_a_native_one_holds_nothing_of_it(tree):
    assert Wheel(tree, pip_wheel(tree)).has_library
    wheel = Wheel(tree, pip_wheel(tree, SLIPFORM_NATIVE="0"))
    assert (wheel.pure, wheel.has_library, wheel.info["native"]) == (True, False, False)
    assert wheel.info["reason"] == "left out by SLIPFORM_NATIVE=0"


@needs_compiler
def test_an_editable_install_leaves_the_library_in_the_tree_or_takes_it_out(tree):
    code = "from setuptools.build_meta import build_editable; build_editable('.')"
    package = tree / "slipform_kernels"
    for mode, expected in (("1", [f"_native{SUFFIX}"]), ("0", [])):
        environment = os.environ | {"SLIPFORM_NATIVE": mode, "SLIPFORM_CUDA": "0"}
        command = [sys.executable, "-c", code]
        subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=True)
        assert [path.name for path in package.glob("_native*.so")] == expected
        info = json.loads((package / "_build_info.json").read_text())
        assert info["native"] == bool(expected)


@pytest.mark.parametrize("value", ["yes", ""])
def test_another_value_of_native_is_an_error(tree, value):
    run = pip_wheel(tree, SLIPFORM_NATIVE=value)
    assert run.returncode != 0
    assert f"SLIPFORM_NATIVE: got '{value}', expected '0', '1' or 'auto'" in run.stdout + run.stderr


def test_a_compiler_named_and_missing_is_named_in_the_reason(tree):
    wheel = Wheel(tree, pip_wheel(tree, CXX="no-such-compiler --flag"))
    assert wheel.info["reason"] == (
        "no C++ compiler: CXX=no-such-compiler --flag not found on the PATH"
    )


@needs_compiler
def test_a_second_build_compiles_only_what_changed(tree):
    def built() -> dict[str, int]:
        Wheel(tree, pip_wheel(tree))
        return {path.name: path.stat().st_mtime_ns for path in (tree / "build").rglob("*.o")}

    first = built()
    assert built() | {"probe.o": first["probe.o"]} == first
    (tree / "csrc" / "answer.h").write_text("#define ANSWER 43\n")
    third = built()
    changed = {name for name in first if first[name] != third[name]}
    assert changed - {"probe.o"} == {"bindings.o"}


def test_a_module_that_was_removed_is_not_in_the_next_wheel(tree):
    module = tree / "slipform_kernels" / "passing.py"
    module.write_text("")
    assert "slipform_kernels/passing.py" in Wheel(tree, pip_wheel(tree, SLIPFORM_NATIVE="0")).names
    module.unlink()
    wheel = Wheel(tree, pip_wheel(tree, SLIPFORM_NATIVE="0"))
    assert "slipform_kernels/passing.py" not in wheel.names


def test_the_wheel_holds_every_file_of_both_packages(tree):
    wheel = Wheel(tree, pip_wheel(tree, SLIPFORM_NATIVE="0"))
    folders = {"slipform_kernels": "slipform_kernels", "training": "slipform_training"}
    expected = {
        str(Path(package, path.relative_to(tree / folder)))
        for folder, package in folders.items()
        for path in (tree / folder).rglob("*")
        if path.is_file() and path.name != "_build_info.json"
    }
    assert expected <= wheel.names
    assert {name for name in wheel.names if name.startswith("training")} == set()


def test_the_source_distribution_holds_what_a_build_needs(tree):
    code = "from setuptools.build_meta import build_sdist; print(build_sdist('.'))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=True
    )
    with tarfile.open(tree / run.stdout.split()[-1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {f"csrc/{path.name}" for path in (tree / "csrc").iterdir()}
    assert sources | {"setup.py", "pyproject.toml", "LICENSE", "README.md"} <= names
    assert "training/__init__.py" in names
    assert not [name for name in names if name.endswith((".so", "_build_info.json"))]


@pytest.mark.parametrize(
    ("machine", "system"), [("aarch64", "linux"), ("arm64", "darwin"), ("x86_64", "darwin")]
)
def test_x86_levels_are_left_out_elsewhere(monkeypatch, tmp_path, machine, system):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("sys.platform", system)
    levels, reason = toolchain.levels_for(["c++"], tmp_path)
    assert (list(levels), reason) == (["baseline"], "")
    build = native_build.Build(["c++"], levels, [], [], [tmp_path], "_native.so")
    text = native_build.ninja_file(build)
    assert "x86" not in text.replace(str(tmp_path), "").replace(str(ROOT), "")
    assert ("-bundle" in text, "-shared" in text) == (system == "darwin", system != "darwin")


def test_a_compiler_too_old_for_the_x86_levels_builds_the_baseline(monkeypatch, tmp_path):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("sys.platform", "linux")
    old = tmp_path / "old++"
    old.write_text('#!/bin/sh\ncase "$*" in *-march=x86-64-v*) exit 1;; esac\n')
    old.chmod(0o755)
    levels, reason = toolchain.levels_for([str(old)], tmp_path)
    assert list(levels) == ["baseline"]
    assert "-march=x86-64-v3" in reason


def test_both_halves_of_a_universal_mac_build_are_compiled(monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setenv("ARCHFLAGS", "-g -arch arm64 -O2 -arch x86_64")
    assert toolchain.architecture_flags() == ["-arch", "arm64", "-arch", "x86_64"]


@pytest.mark.skipif(not shutil.which("objdump"), reason="objdump is not installed")
@pytest.mark.skipif(native_missing() is not None, reason="the extension is not built")
def test_nothing_shared_between_the_levels_needs_more_than_the_baseline():
    """Of a template that several levels instantiate the linker keeps one copy, for every processor.

    What the levels compile for themselves stands in an anonymous namespace; VEX and BMI2
    instructions anywhere else would end the process on a processor without them.
    """
    from slipform_kernels import _native

    listing = subprocess.run(
        ["objdump", "-d", "-C", "--no-show-raw-insn", _native.__file__],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    advanced = re.compile(r"\t(v[a-z0-9]+|shlx|shrx|sarx|rorx|mulx) ")
    functions = dict.fromkeys(re.findall(r"^[0-9a-f]+ <(.*)>:$", listing, re.MULTILINE), False)
    current = ""
    for line in listing.splitlines():
        header = re.match(r"[0-9a-f]+ <(.*)>:$", line)
        if header:
            current = header[1]
        elif advanced.search(line):
            functions[current] = True
    using = {name for name, used in functions.items() if used}
    shared = {name for name in using if "(anonymous namespace)" not in name}
    assert shared == set()
    if len(_native.levels()) > 1:
        assert using, "the levels use no vector instructions at all"
