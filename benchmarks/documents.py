"""Writes the tables of the documents, and the figures beside them, from the results.

    python -m benchmarks.documents [--check] [--results DIR] [README.md docs/mining.md ...]

What stands between `<!-- table: NAME -->` and `<!-- end of table -->` is written anew, by default
in README.md and docs/*.md; NAME is a table of `document_tables.makers()`. Figures are drawn in
docs/figures where what they show has changed. With --check nothing is written: it shows how tables
differ from the results, names outdated figures and tables of figures that stand between no markers,
and exits with 1.

A table with more than three figures must be generated. A figure is a cell that begins with a number
and is neither code nor a formula. `<!-- typed: why -->` above a table excuses it.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.document_tables import makers
from slipform_training.benchmarks_report import Folder, ResultsError
from slipform_training.benchmarks_report.figures import FIGURES, stored_digest
from slipform_training.mining.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]
FIGURES_FOLDER = "docs/figures"
MOST_TYPED_FIGURES = 3
END = "<!-- end of table -->"
_BLOCK = re.compile(rf"^<!-- table: (\S+) -->\n(.*?)^{END}$", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(r"^<!-- (?:table: \S+|end of table) -->$", re.MULTILINE)
_TYPED = re.compile(r"<!-- typed: \S.* -->")
_NUMBER = re.compile(r"[-+−±~≈]?\d")  # noqa: RUF001
# A letter alone is a quantity, and its cell a formula; but "s" and "h" are units.
_QUANTITY = re.compile(r"\b(?![sh]\b)[A-Za-z]\b")


def documents(root: Path) -> list[Path]:
    """Those whose tables are generated."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def written(text: str, folder: Folder, *, name: str) -> str:
    """The document's text with all tables made anew; name: of the document, for messages.

    Raises ResultsError for a table that nobody makes, a marker without its other one, and results
    that cannot be used.
    """
    known = makers()

    def table(match: re.Match[str]) -> str:
        if match[1] not in known:
            names = ", ".join(sorted(known))
            raise ResultsError(f"{name}: table: got {match[1]!r}, expected one of {names}")
        return f"<!-- table: {match[1]} -->\n\n{known[match[1]](folder)}\n\n{END}"

    blocks = list(_BLOCK.finditer(text))
    inner = [match for block in blocks for match in _MARKER.finditer(block[2])]
    if inner or len(_MARKER.findall(text)) != 2 * len(blocks):
        raise ResultsError(f"{name}: got a marker without its other one, expected pairs")
    return _BLOCK.sub(table, text)


def typed_tables(text: str) -> Iterator[tuple[int, int]]:
    """Tables with too many figures that stand between no markers: line, and how many figures."""
    outside = _BLOCK.sub(lambda match: "\n" * match[0].count("\n"), text)
    lines = outside.splitlines()
    start = 0
    while start < len(lines):
        if not lines[start].startswith("|"):
            start += 1
            continue
        end = start
        while end < len(lines) and lines[end].startswith("|"):
            end += 1
        cells = [cell for line in lines[start + 2 : end] for cell in line.strip("|").split("|")]
        figures = sum(is_figure(cell) for cell in cells)
        above = next((line for line in reversed(lines[:start]) if line.strip()), "")
        if figures > MOST_TYPED_FIGURES and not _TYPED.fullmatch(above.strip()):
            yield start + 1, figures
        start = end


def is_figure(cell: str) -> bool:
    """Whether a table's cell begins with a number and is neither code nor a formula."""
    plain = cell.replace("*", "").strip()
    return bool(_NUMBER.match(plain)) and "`" not in plain and not _QUANTITY.search(plain)


def outdated_figures(folder: Folder, drawn: Path) -> list[str]:
    """Names of figures whose png is missing or shows other results than those in the folder."""
    found = []
    for figure in FIGURES:
        results = figure.results(folder)
        if results is None:
            continue
        path = drawn / f"{figure.name}.png"
        if not path.exists() or stored_digest(path) != figure.digest(results, folder):
            found.append(figure.name)
    return found


def check(paths: list[Path], folder: Folder, *, root: Path = ROOT) -> list[str]:
    """What is wrong with the documents and figures, for the reader; nothing where all is right."""
    wrong = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        name = str(path.relative_to(root) if path.is_relative_to(root) else path)
        expected = written(text, folder, name=name)
        if expected != text:
            lines = difflib.unified_diff(
                text.splitlines(), expected.splitlines(), name, "from the results", lineterm=""
            )
            wrong.append("\n".join(lines))
        for line, figures in typed_tables(text):
            wrong.append(f"{name}:{line}: a table with {figures} figures between no markers")
    for figure in outdated_figures(folder, root / FIGURES_FOLDER):
        wrong.append(f"{FIGURES_FOLDER}/{figure}.png: not drawn from these results")
    return wrong


def write(paths: list[Path], folder: Folder, *, root: Path = ROOT) -> list[str]:
    """Write all tables and the figures that need it; returns what has changed."""
    changed = []
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    new = {path: written(text, folder, name=path.name) for path, text in texts.items()}
    for path, text in new.items():
        if text != texts[path]:
            write_atomically(path, text)
            changed.append(str(path))
    drawn = root / FIGURES_FOLDER
    drawn.mkdir(parents=True, exist_ok=True)
    outdated = outdated_figures(folder, drawn)
    for figure in FIGURES:
        results = figure.results(folder)
        if figure.name in outdated and results is not None:
            figure.draw(drawn / f"{figure.name}.png", results, folder)
            changed.append(str(drawn / f"{figure.name}.png"))
    return changed


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("documents", nargs="*", type=Path, help="README.md and docs/*.md if none")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if not so")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args(argv)
    if not arguments.results.is_dir():
        parser.error(f"--results: got {arguments.results}, expected a folder")
    paths = arguments.documents or documents(ROOT)
    folder = Folder(arguments.results)
    try:
        if arguments.check:
            wrong = check(paths, folder)
            print("\n".join(wrong) if wrong else "all tables and figures are from the results")
            return int(bool(wrong))
        changed = write(paths, folder)
    except (ResultsError, OSError) as error:
        print(f"documents: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(changed) if changed else "nothing has changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
