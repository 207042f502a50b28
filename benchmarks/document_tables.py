"""The tables of the documents beside those of `slipform bench report`: studies, demo, compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from slipform_training.benchmarks_report import BLOCKS, Folder, ResultsError, render
from slipform_training.benchmarks_report.results import Row, provenance, read_json
from slipform_training.benchmarks_report.words import NOTHING, percent
from slipform_training.demo.config import BAG, BRANCHES, CATEGORIES, LABELS
from slipform_training.demo.results import accuracy_cell
from slipform_training.markdown import markdown_table
from slipform_training.study import STUDIES
from slipform_training.study.report import Outcome, accuracy_table, gains_table

PUBLISHED = Path(__file__).resolve().parents[1] / "docs" / "published_figures.json"
Maker = Callable[[Folder], str]


def makers() -> Mapping[str, Maker]:
    """What writes each table, by the name that stands in the documents."""
    return {
        **{name: partial(render, name, figures="figures/") for name in BLOCKS},
        **{f"study-{name}": _study_maker(name) for name in STUDIES},
        "demo": demo,
        "gradient-shares": gradient_shares,
        "static-registers": static_registers,
        **{f"published-{name}": _published_maker(name) for name in ("suites", "macco")},
    }


def demo(folder: Folder) -> str:
    """Accuracies of the demo's models."""
    path = folder.path / "demo.json"
    stored = read_json(path)
    rows = [["", *CATEGORIES]]
    for stage in (BAG, *BRANCHES):
        try:
            columns = stored["accuracy"][stage]
            rows.append([LABELS[stage], *(accuracy_cell(columns[name]) for name in CATEGORIES)])
        except (KeyError, TypeError) as error:
            raise ResultsError(f"{path}: accuracy.{stage}: got no {error}, expected it") from None
    command = f"slipform demo --seeds {len(stored['seeds'])}"
    return f"{markdown_table(rows)}\n\n{_made(stored, command, path)}"


def _study_maker(name: str) -> Maker:
    def study(folder: Folder) -> str:
        """Accuracies of a study's branches, and the differences of those that it compares."""
        path = folder.path / f"study_{name}.json"
        stored = read_json(path)
        try:
            outcome = Outcome.from_dict(stored)
        except KeyError as error:
            raise ResultsError(f"{path}: {error.args[0]}: got nothing, expected it") from None
        tables = [markdown_table(accuracy_table(outcome)), markdown_table(gains_table(outcome))]
        command = f"slipform study {name} --seeds {outcome.config.seeds}"
        return "\n\n".join([*tables, _made(stored, command, path)])

    return study


def gradient_shares(folder: Folder) -> str:
    """The easy negatives' part of the pull, from the smallest to the largest batch."""
    path = folder.path / "analysis_demo.json"
    stored = read_json(path)
    rows = [Row(f"{path}: shares[{n}]", row) for n, row in enumerate(stored.get("shares", []))]
    if not rows:
        raise ResultsError(f"{path}: shares: got nothing, expected a list of objects")
    sizes = sorted({row.count("batch_size") for row in rows})
    margins = sorted({row.number("margin") for row in rows})
    found = {
        (row.text("model"), row.number("margin"), row.count("batch_size")): row for row in rows
    }
    table = [
        ["", *(f"margin {margin:g}" if margin else "no margin" for margin in margins)],
    ]
    for model in dict.fromkeys(row.text("model") for row in rows):
        cells = []
        for margin in margins:
            ends = [found.get((model, margin, size)) for size in (sizes[0], sizes[-1])]
            texts = [percent(row.number("easy_share")) if row else NOTHING for row in ends]
            cells.append(" to ".join(texts))
        table.append([model, *cells])
    said = f"Batch {sizes[0]:,} to {sizes[-1]:,}."
    made = _made(stored, "slipform analyze --demo runs/demo --out runs/analysis", path)
    return "\n\n".join([markdown_table(table), said, made])


def static_registers(folder: Folder) -> str:
    """What the assembler made of the half-precision kernels of the table, for each capability."""
    results = folder.get("static_report")
    if results is None:
        return "Not yet compiled."
    cases: dict[tuple[str, int, str], list[Row]] = {}
    for row in results.rows:
        if row.text("dtype") in ("bf16", "fp16"):
            key = (row.text("kernel"), row.count("sm"), row.said("options"))
            cases.setdefault(key, []).append(row)
    table = [
        [
            *("kernel", "compute capability", "options", "kernels compiled"),
            *("registers a thread", "local loads and stores", "blocks a multiprocessor"),
        ]
    ]
    order = sorted(cases, key=lambda case: (case[0] != "statistics", case[1], case[2] != NOTHING))
    for case in order:
        kernel, sm, options = case
        figures = [_range(cases[case], key) for key in ("registers", "LDL + STL", "blocks a SM")]
        table.append([kernel, f"{sm / 10:.1f}", options, str(len(cases[case])), *figures])
    made = results.provenance("python -m benchmarks.static_report")
    return f"{markdown_table(table, words=3)}\n\n{made}"


def _range(rows: list[Row], key: str) -> str:
    values = {row.count(key) for row in rows}
    return f"{min(values)} to {max(values)}" if len(values) > 1 else str(*values)


def _published_maker(name: str) -> Maker:
    def published(folder: Folder) -> str:
        """Figures of others as they published them, from the file that names their sources."""
        tables = read_json(PUBLISHED)
        try:
            table = tables[name]
            rows = [["", *table["models"], "yours"]]
            for suite, figures in table["figures"].items():
                rows.append([suite, *("" if f is None else str(f) for f in figures), ""])
            sources = "; ".join(table["sources"])
        except KeyError as error:
            raise ResultsError(f"{PUBLISHED.name}: {name}: got no {error}, expected it") from None
        return f"{markdown_table(rows)}\n\n_Published by others, not measured here: {sources}._"

    return published


def _made(stored: dict[str, Any], command: str, path: Path) -> str:
    """Where and when a run of the training package was made, with its version of torch."""
    machine = stored.get("machine")
    if not isinstance(machine, dict):
        raise ResultsError(f"{path}: machine: got {machine!r}, expected an object")
    torch = stored.get("versions", {}).get("torch")
    return provenance({**({"torch": torch} if torch else {}), **machine}, command, where=str(path))
