"""What an evaluation leaves: one json, the single scores as parquet, a table as markdown."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipform_training.evaluation.tasks import TaskResult
from slipform_training.mining.files import read_json, write_atomically, write_json

# Counts up when the layout of the json or the parquet changes.
FORMAT = 1

# A table of more subsets than these shows their means alone.
_SHOWN = 20

Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Results:
    """An evaluation that was read: the json's content, and the margins by (suite, metric, subset,
    id)."""

    path: Path
    content: Mapping[str, Any]
    margins: Mapping[Key, float]


def beside(path: Path) -> dict[str, Path]:
    """The files of an evaluation whose json is `path`."""
    return {"scores": path.with_suffix(".parquet"), "table": path.with_suffix(".md")}


def write_results(path: Path, about: Mapping[str, Any], results: Mapping[str, TaskResult]) -> str:
    """Writes an evaluation, each file whole or not at all, the json last.

    Args:
        path: the json; the parquet and the markdown have its name.
        about: versions, model and settings, plain values.
        results: by suite.

    Returns:
        The markdown table.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    files = beside(path)
    _write_scores(files["scores"], results)
    table = markdown(about, results)
    write_atomically(files["table"], table + "\n")
    content = {
        "format": FORMAT,
        **about,
        "scores": files["scores"].name,
        "suites": {name: result.to_dict() for name, result in results.items()},
    }
    write_json(path, content)
    return table


def read_results(path: Path) -> Results:
    """Reads what write_results wrote.

    Raises ValueError where the json or its parquet is missing or something else.
    """
    import pyarrow
    import pyarrow.parquet

    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path}: expected the json of slipform eval, format {FORMAT}")
    scores = path.parent / content["scores"]
    try:
        table = pyarrow.parquet.read_table(scores).to_pydict()
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise ValueError(f"{path}: its scores {scores} cannot be read: {error}") from error
    keys = zip(table["suite"], table["metric"], table["subset"], table["id"], strict=True)
    return Results(path, content, dict(zip(keys, table["margin"], strict=True)))


def markdown(about: Mapping[str, Any], results: Mapping[str, TaskResult]) -> str:
    """The results as markdown: a line a suite and metric, and below it its subsets.

    Accuracies are in percent, of the scored items; ties count as wrong.
    """
    model = about["model"]
    lines = [
        f"{model['name']}, {model['weights']}, {model['activation']}, {model['precision']}",
        "",
        "| suite | subset | metric | accuracy | macro | scored | of | ties | near ties |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        for metric, counts in result.counts.items():
            own = {"**all**": result.micro(metric)}
            if 1 < len(counts) <= _SHOWN:
                own.update(counts)
            for subset, one in own.items():
                mean = percent(result.macro(metric)) if subset == "**all**" else ""
                lines.append(
                    f"| {name} | {subset} | {metric} | {percent(one.accuracy)} | {mean} "
                    f"| {one.scored} | {one.items} | {one.ties} | {one.near_ties} |"
                )
    for name, result in results.items():
        lines += _notes(name, result)
    return "\n".join(lines)


def percent(value: float) -> str:
    """A share in percent with two digits; "" for nan."""
    return "" if math.isnan(value) else f"{100 * value:.2f}"


def _notes(name: str, result: TaskResult) -> list[str]:
    """What a reader of the table must know: everything that was not scored."""
    notes = []
    if result.missing:
        notes.append(f"{len(result.missing)} images are missing, such as {result.missing[0]}")
    if result.unreadable:
        first, reason = next(iter(result.unreadable.items()))
        notes.append(f"{len(result.unreadable)} images are unreadable, such as {first} ({reason})")
    for reason, number in result.details.get("left_out", {}).items():
        notes.append(f"left out, {reason}: {number}")
    for kind, number in result.details.get("incomplete_groups", {}).items():
        if number:
            notes.append(f"left out, incomplete {kind}s: {number}")
    if unlike := result.details.get("unlike_published"):
        notes.append(f"the number of items is not that published: {unlike}")
    return [f"\n{name}: {note}" for note in notes]


def _write_scores(path: Path, results: Mapping[str, TaskResult]) -> None:
    import pyarrow
    import pyarrow.parquet

    tables = []
    for name, result in results.items():
        scores = result.scores
        margin = np.asarray(scores.margin, dtype=np.float64)
        tables.append(
            pyarrow.table(
                {
                    "suite": pyarrow.array([name] * len(margin), pyarrow.string()),
                    "subset": pyarrow.array(scores.subset, pyarrow.string()),
                    "id": pyarrow.array(scores.id, pyarrow.string()),
                    "metric": pyarrow.array(scores.metric, pyarrow.string()),
                    "margin": margin,
                    "correct": scores.correct,
                    "tie": margin == 0,
                }
            )
        )
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        pyarrow.parquet.write_table(pyarrow.concat_tables(tables), temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
