"""The documents of the repository: their code blocks, commands, headings and links."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
)
EXAMPLES = tuple(f"examples/{path.name}" for path in sorted((ROOT / "examples").glob("*.py")))

_FENCE = re.compile(r"^ *(`{3,})(\w*)\n(.*?)^ *\1$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"`((?:make|slipform|pip install|python -m|torchrun) [^`]+)`")
_LINK = re.compile(r"(?<!!)\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Command:
    """A command's words, and whether all of it stands there or its beginning, as in running text.

    Assignments to environment variables before it are left out.
    """

    words: list[str]
    whole: bool


def read(document: str) -> str:
    """The document's text; of a script, its docstring."""
    text = (ROOT / document).read_text()
    return (ast.get_docstring(ast.parse(text)) or "") if document.endswith(".py") else text


def languages(text: str) -> set[str]:
    """What the fenced blocks say they are."""
    return {match[2] for match in _FENCE.finditer(text)}


def blocks(language: str, text: str) -> list[str]:
    """Contents of the fenced blocks of the language."""
    return [match[3] for match in _FENCE.finditer(text) if match[2] == language]


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return _FENCE.sub("", text)


def commands(document: str) -> Iterator[Command]:
    """The commands of sh blocks, of a script's docstring, and those in running text."""
    text = read(document)
    if document.endswith(".py"):
        scripts = re.findall(
            r"^ +(?:python|torchrun) [^\\\n]*(?:\\\n[^\\\n]*)*", text, re.MULTILINE
        )
    else:
        scripts = [*blocks("sh", text), *_torchruns(text)]
    for script in scripts:
        for line in script.replace("\\\n", " ").splitlines():
            if words := _words(line):
                yield Command(words, whole=True)
    for found in _COMMAND.findall(prose(text)):
        if words := _words(found):
            yield Command(words, whole=False)


def _torchruns(text: str) -> list[str]:
    return [block for block in blocks("text", text) if block.startswith("torchrun ")]


def _words(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    return words


def links(text: str) -> list[str]:
    """Targets of the links and images outside of code."""
    without = re.sub(r"`[^`\n]*`", "code", prose(text))
    return [link or image for link, image in _LINK.findall(without)]


def external_links() -> dict[str, list[str]]:
    """Address -> the documents that link to it."""
    found: dict[str, list[str]] = {}
    for document in DOCUMENTS:
        for target in links(read(document)):
            if re.match(r"[a-z]+:", target):
                found.setdefault(target, []).append(document)
    return found


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings, and pymdownx's slugs on the site as well."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", prose(text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        name, number = slug, 0
        while name in found:
            number += 1
            name = f"{slug}-{number}"
        found.add(name)
    return found
