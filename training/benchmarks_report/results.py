"""Results of benchmarks: files of {"machine": {...}, "rows": [flat objects]}, read with care."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ResultsError(ValueError):
    """A file of results that cannot be used; the message names the file and the key."""


@dataclass(frozen=True)
class Row:
    """One line of a benchmark; `where` is its place for messages, such as "x.json: rows[3]"."""

    where: str
    values: dict[str, Any]

    def __contains__(self, key: str) -> bool:
        return key in self.values

    @property
    def not_run(self) -> str:
        """Why there are no figures; "" where there are."""
        return str(self.values.get("not_run") or "")

    def number(self, key: str) -> float:
        """The value, which must be a finite number."""
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value - value != 0:
            raise ResultsError(f"{self.where}.{key}: got {value!r}, expected a number")
        return value

    def count(self, key: str) -> int:
        """The value, which must be a whole number."""
        value = self.number(key)
        if value != int(value):
            raise ResultsError(f"{self.where}.{key}: got {value!r}, expected a whole number")
        return int(value)

    def text(self, key: str) -> str:
        """The value, which must be text."""
        value = self._value(key)
        if not isinstance(value, str):
            raise ResultsError(f"{self.where}.{key}: got {value!r}, expected text")
        return value

    def said(self, key: str) -> str:
        """The value in words: yes or no for a bool, a dash for nothing."""
        value = self.values.get(key)
        if isinstance(value, bool):
            return "yes" if value else "no"
        return "–" if value is None or value == "" else str(value)  # noqa: RUF001

    def _value(self, key: str) -> Any:
        if key not in self.values:
            raise ResultsError(f"{self.where}.{key}: got nothing, expected a value")
        return self.values[key]


@dataclass(frozen=True)
class Results:
    """What a benchmark found, and on which machine."""

    path: Path
    machine: dict[str, Any]
    rows: list[Row]

    def provenance(self, command: str) -> str:
        """One line: device, threads, versions, date, commit, and the command that measured it.

        The command that the file names goes before `command`.

        Raises ResultsError if the file names no date or no device.
        """
        return provenance(self.machine, command, where=str(self.path))


@dataclass(frozen=True)
class Folder:
    """A folder of results, one file a question."""

    path: Path

    def get(self, stem: str) -> Results | None:
        """The results of that name; None where they have not been measured."""
        path = self.path / f"{stem}.json"
        return read_results(path) if path.exists() else None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises ResultsError if it holds none."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ResultsError(f"{path}: got bytes that are no UTF-8, expected json") from None
    if not text.strip():
        raise ResultsError(f"{path}: got an empty file, expected json")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ResultsError(f"{path}: got no json ({error}), expected an object") from None
    if not isinstance(content, dict):
        raise ResultsError(f"{path}: got {type(content).__name__}, expected an object")
    return content


def read_results(path: Path) -> Results:
    """The results in a file. Raises ResultsError, naming the file and the key."""
    content = read_json(path)
    machine, rows = content.get("machine"), content.get("rows")
    if not isinstance(machine, dict):
        raise ResultsError(f"{path}: machine: got {machine!r}, expected an object")
    if not isinstance(rows, list) or not rows:
        raise ResultsError(f"{path}: rows: got {rows!r}, expected a list of objects")
    if path.stem.endswith("_cpu"):  # a card that was there had no part in it
        machine = {key: value for key, value in machine.items() if not key.startswith("gpu")}
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ResultsError(f"{path}: rows[{number}]: got {row!r}, expected an object")
    return Results(path, machine, [Row(f"{path}: rows[{n}]", row) for n, row in enumerate(rows)])


def provenance(machine: dict[str, Any], command: str, *, where: str) -> str:
    """`Results.provenance` of a machine's description alone; where: the file, for messages."""
    if "date" not in machine:
        raise ResultsError(f"{where}: machine.date: got nothing, expected a date")
    device = machine.get("gpu") or machine.get("cpu")
    if not device:
        raise ResultsError(f"{where}: machine.cpu: got nothing, expected the cpu or gpu")
    parts = [str(device)]
    if "threads" in machine and "gpu" not in machine:
        threads = machine["threads"]
        parts.append(f"{threads} thread" if threads == 1 else f"{threads} threads")
    if "torch" in machine:
        parts.append(f"torch {machine['torch']}")
    parts.append(str(machine["date"]))
    parts.append(f"commit {machine.get('commit', 'not recorded')}")
    return f"_{', '.join(parts)}: `{machine.get('command', command)}`_"
