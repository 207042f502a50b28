"""The emulation of the GPU primitives: what it computes, and what it rejects.

The cases are in the C++ programs beside this file; each is a test here, with and without
sanitizers.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from native import build

SOURCES = {
    name: build.NATIVE / f"{name}.cpp"
    for name in ("test_primitives", "test_matrices", "test_shim", "test_shim_memory")
}
FAULTS = build.NATIVE / "sanitizer_faults.cpp"


def cases(source: Path) -> list[str]:
    return re.findall(r"^CASE\((\w+)\)", source.read_text(), flags=re.MULTILINE)


@cache
def built(source: Path, variant: build.Variant) -> Path:
    if reason := build.missing(variant):
        pytest.skip(reason)
    return build.program(source, variant)


VARIANTS_BY_CASE = (build.PLAIN, build.SANITIZED)


@pytest.mark.parametrize("variant", VARIANTS_BY_CASE, ids=lambda variant: variant.name)
@pytest.mark.parametrize(
    ("program", "case"), [(name, case) for name, path in SOURCES.items() for case in cases(path)]
)
def test_case(program: str, case: str, variant: build.Variant) -> None:
    executable = built(SOURCES[program], variant)
    done = build.run(executable, case, variant=variant)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "variant",
    [variant for variant in build.VARIANTS if variant not in VARIANTS_BY_CASE],
    ids=lambda variant: variant.name,
)
@pytest.mark.parametrize("program", SOURCES)
def test_all_cases(program: str, variant: build.Variant) -> None:
    done = build.run(built(SOURCES[program], variant), variant=variant)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", ["test_primitives", "test_matrices"])
def test_results_are_printed_for_a_comparison_with_a_gpu(program: str) -> None:
    executable = built(SOURCES[program], build.PLAIN)
    printed = [
        build.run(executable, "--print", variant=build.PLAIN, extra={"SLIPFORM_SHIM_ORDER": order})
        for order in ("forward", "random:5")
    ]
    assert printed[0].stdout == printed[1].stdout
    assert len(printed[0].stdout.splitlines()) >= 5


@pytest.mark.parametrize(
    ("case", "variant", "reason"),
    [
        ("read_past_a_global_array", build.SANITIZED, "heap-buffer-overflow"),
        ("copy_past_a_global_array", build.SANITIZED, "heap-buffer-overflow"),
        ("register_index", build.SANITIZED, "out of bounds for type 'float [4]'"),
        ("misaligned_pointer", build.SANITIZED, "misaligned address"),
        ("pointer_past_registers", build.SANITIZED, "stack-buffer-overflow"),
        ("uninitialised_accumulator", build.PATTERN, "expected 0"),
        ("uninitialised_accumulator", build.MEMORY, "use-of-uninitialized-value"),
    ],
)
def test_faults_that_the_compilers_checks_find(
    case: str, variant: build.Variant, reason: str
) -> None:
    executable = built(FAULTS, variant)
    done = build.run(executable, case, variant=variant)
    assert done.returncode != 0
    assert reason in done.stderr


def test_what_the_environment_says_about_the_order() -> None:
    executable = built(SOURCES["test_primitives"], build.PLAIN)
    extra = {"SLIPFORM_SHIM_ORDER": "sideways"}
    done = build.run(executable, "indices", variant=build.PLAIN, extra=extra)
    assert done.returncode != 0
    assert "got 'sideways'" in done.stderr
