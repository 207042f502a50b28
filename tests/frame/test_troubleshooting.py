"""Every message that the page on troubleshooting quotes is one that the sources give.

A message stands in a `text` block, a line each, or in the first column of a table headed "message"
or "line". `...` stands for what changes. Its other parts must occur, in order, in one text of the
code.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.documents import ROOT, blocks, prose, read

PAGE = read("docs/troubleshooting.md")
VARIABLE = "\0"


def quoted(page: str) -> Iterator[str]:
    for block in blocks("text", page):
        yield from block.splitlines()
    for table in re.findall(r"(?:^\|.*\n)+", prose(page), re.MULTILINE):
        header, _, *rows = table.splitlines()
        if re.match(r"\| (message|line) \|", header):
            for row in rows:
                yield re.match(r"\| `([^`]*)`", row)[1]


def texts_of_python(path: Path) -> Iterator[str]:
    """Every text of the file, a NUL in place of what is filled in; its constants are filled in."""
    tree = ast.parse(path.read_text())
    constants = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    for node in ast.walk(tree):
        text = _text(node, constants)
        if text.strip(VARIABLE):
            yield text


def _text(node: ast.AST, constants: dict[str, str]) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else VARIABLE
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value, constants) for value in node.values)
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
        return constants.get(node.value.id, VARIABLE)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, constants) + _text(node.right, constants)
    return VARIABLE


def texts_of_cpp(path: Path) -> Iterator[str]:
    for statement in path.read_text().split(";\n"):
        yield VARIABLE.join(re.findall(r'"((?:[^"\\]|\\.)*)"', statement))


@functools.cache
def texts() -> tuple[str, ...]:
    found: list[str] = []
    for folder in ("slipform_kernels", "training", "csrc"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found += texts_of_python(path)
    for path in sorted((ROOT / "csrc").glob("*.cpp")):
        found += texts_of_cpp(path)
    return (*found, *(ROOT / "Makefile").read_text().splitlines())


def is_given(message: str) -> bool:
    """Whether the message's fixed parts occur in order in one text, but for signs around them."""
    parts = [part.strip(" :;,.'\"()=") for part in message.split("...")]
    pattern = ".*".join(re.escape(part) for part in parts if part)
    return any(re.search(pattern, text, re.DOTALL) for text in texts())


@pytest.mark.parametrize("message", list(quoted(PAGE)))
def test_a_quoted_message_is_one_of_the_code(message):
    assert len(re.sub(r"[\W\d]", "", message)) >= 8 or message == "no: ..."
    assert is_given(message), message


def test_the_page_covers_what_users_meet():
    messages = list(quoted(PAGE))
    assert len(messages) > 60
    headings = " ".join(re.findall(r"^## (.*)$", PAGE, re.MULTILINE)).lower()
    for subject in ("install", "nan", "slower", "memory", "processes", "compile", "resum", "eval"):
        assert subject in headings, subject


def test_a_message_that_the_code_does_not_give_is_noticed():
    assert is_given("rows: got device meta; expected a CPU or GPU")
    assert not is_given("rows: got device meta; expected a TPU")
    assert not is_given("expected a CPU or GPU: ... got device meta")  # the other order
    # Parts of two messages are none.
    assert not is_given("no C++ compiler: ... has no bin/nvcc")
