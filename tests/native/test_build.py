"""The build helper: what is compiled anew, and what is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from native import build

pytestmark = pytest.mark.skipif(
    build.missing(build.PLAIN) is not None, reason=build.missing(build.PLAIN) or ""
)

HEADER = "constexpr int answer = 42;\n"
SOURCE = """
#include "answer.h"
int main() {
#if FAULT == 1
  return 1;
#endif
  return answer - 42;
}
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(build, "CACHE", tmp_path / "cache")
    (tmp_path / "answer.h").write_text(HEADER)
    path = tmp_path / "main.cpp"
    path.write_text(SOURCE)
    return path


def compiled(tmp_path: Path) -> int:
    return len(list((tmp_path / "cache").glob("*.o")))


def test_a_macro_makes_a_program_of_its_own_where_it_matters(source: Path, tmp_path: Path) -> None:
    programs = [
        build.program(source, build.PLAIN, defines)
        for defines in ((), ("FAULT=0",), ("FAULT=2",), ("FAULT=1",))
    ]
    assert programs[0] == programs[1] == programs[2] != programs[3]
    assert compiled(tmp_path) == 2
    codes = [build.run(path, variant=build.PLAIN).returncode for path in programs]
    assert codes == [0, 0, 0, 1]


def test_a_changed_header_is_noticed(source: Path, tmp_path: Path) -> None:
    first = build.program(source, build.PLAIN)
    (tmp_path / "answer.h").write_text(HEADER.replace("42", "43"))
    second = build.program(source, build.PLAIN)
    assert build.run(first, variant=build.PLAIN).returncode == 0
    assert build.run(second, variant=build.PLAIN).returncode == 1


def test_an_error_has_the_compilers_words(source: Path) -> None:
    source.write_text("int main() { return nothing; }\n")
    with pytest.raises(RuntimeError, match=r"nothing.*declared"):
        build.program(source, build.PLAIN)


@pytest.mark.parametrize("variant", [build.PLAIN, build.SANITIZED], ids=lambda v: v.name)
def test_an_extension_reports_a_rejected_kernel_to_python(
    variant: build.Variant, source: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pybind11")
    source.write_text(
        """
#include <pybind11/pybind11.h>
#include "primitives.cuh"
namespace slipform { namespace gpu {
SLIPFORM_KERNEL(32, 1) void reads_nothing(float* out) {
  out[0] = load_shared<float>(shared_base());
}
PYBIND11_MODULE(example, m) {
  m.def("run", [] {
    float out;
    launch(reads_nothing, "reads_nothing", Grid{1, 1}, 32, 4, nullptr, &out);
  });
}
}}
"""
    )
    module = build.extension("example", [source], variant)
    script = "import example\ntry: example.run()\nexcept RuntimeError as error: print(error)"
    environment = build.environment(variant, preload=True)
    done = build.run(
        Path(sys.executable),
        "-c",
        script,
        variant=variant,
        extra={**environment, "PYTHONPATH": str(module.parent)},
    )
    assert "reads_nothing: block (0, 0), thread 0, main.cpp:" in done.stdout, done.stderr
    assert "uninitialised" in done.stdout
