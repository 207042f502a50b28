"""Commands and settings in the documents are accepted by the parsers that would get them."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import re
import runpy
import shlex
import sys

import pytest
import yaml

from benchmarks.options import OPTIONS
from slipform_training import cli
from support.documents import (
    DOCUMENTS,
    EXAMPLES,
    ROOT,
    Command,
    blocks,
    commands,
    languages,
    prose,
    read,
)

MAKEFILE = (ROOT / "Makefile").read_text()


class Parsed(Exception):
    """A parser has accepted its arguments."""


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch):
    """Commands of slipform end where they would run; other scripts once their options are read."""
    for name in cli.COMMANDS:
        module = importlib.import_module(f"slipform_training.commands.{name}")
        monkeypatch.setattr(module, "run", lambda arguments: 0)


@pytest.mark.parametrize("document", [*DOCUMENTS, *EXAMPLES])
def test_commands_in_the_documents_are_accepted(document, monkeypatch):
    for command in commands(document):
        refusal = refused(command, monkeypatch)
        assert not refusal, f"{shlex.join(command.words)}: {refusal}"


def test_there_are_commands_of_each_kind():
    found = [command.words for document in DOCUMENTS for command in commands(document)]
    assert {"make", "slipform", "pip", "python", "torchrun"} <= {words[0] for words in found}
    assert {words[1] for words in found if words[0] == "slipform" and len(words) > 1} >= {
        name.replace("_", "-") for name in cli.COMMANDS
    }


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("slipform mine a.jsonl --out b.jsonl --shards 1/2", "unrecognized"),
        ("slipform mine a.jsonl --out", "expected one argument"),
        ("slipform train --data a --batch-sise 4", "unrecognized"),
        ("slipform train --data a --loss negclop", "loss: got"),
        ("slipform minne a.jsonl", "invalid choice"),
        ("python -m benchmarks.large_batch --nonsense 3", "unrecognized"),
        ("python -m pytest benchmarks/test_loss_memory.py --size 4", "unrecognized"),
        ("python -m benchmarks.no_such --sizes 4", "no module"),
        ("python -m pytest tests/no_such_file.py", "no such file"),
        ("make tests", "no target"),
        ('pip install ".[training]"', "no extra"),
        ("torchrun --nproc-per-mode 8 -m slipform_training.cli train", "unrecognized"),
        ("torchrun --nproc-per-node 8 -m slipform_training.cli train --los clip", "unrecognized"),
        ("python examples/evaluate.py a b --annotation c --image d --x", "unrecognized"),
        ("frobnicate", "no test knows"),
    ],
)
def test_a_wrong_command_is_refused(command, reason, monkeypatch):
    assert reason in refused(Command(shlex.split(command), whole=True), monkeypatch)


def test_the_beginning_of_a_command_may_lack_arguments_but_has_no_unknown_options(monkeypatch):
    assert not refused(
        Command(["slipform", "mine", "--hard-images", "x"], whole=False), monkeypatch
    )
    assert refused(Command(["slipform", "mine", "--hard-image-of", "x"], whole=False), monkeypatch)


def refused(command: Command, monkeypatch) -> str:
    """Why the command would not start, or ""."""
    name, *words = command.words
    if name == "make":
        targets = re.findall(r"^([\w./%-]+):", MAKEFILE, re.MULTILINE)
        unknown = [word for word in words if "=" not in word and word not in targets]
        return f"no target {unknown[0]}" if unknown else ""
    if name == "slipform":
        return slipform_refuses(words, whole=command.whole)
    if name == "pip":
        return pip_refuses(words)
    if name == "torchrun":
        return torchrun_refuses(words, monkeypatch)
    if name == "python":
        return python_refuses(words, monkeypatch)
    if "/" in name:
        there = name.startswith(".venv/") or (ROOT / name).is_file()
        return "" if there else "no such file"
    return "a command that no test knows"


def slipform_refuses(words: list[str], *, whole: bool) -> str:
    _, parsers = cli._parser()
    if words and words[0] in parsers and not whole:
        known = [*parsers[words[0]]._option_string_actions, "--help"]
        unknown = [w for w in words if w.startswith("--") and w.partition("=")[0] not in known]
        return f"unrecognized {unknown[0]}" if unknown else ""
    text = io.StringIO()
    with contextlib.redirect_stderr(text), contextlib.redirect_stdout(text):
        try:
            cli.main(words)
        except SystemExit as end:
            if end.code:
                return text.getvalue().splitlines()[-1]
    return setting_refused(words) if words[:1] == ["train"] else ""


def setting_refused(words: list[str]) -> str:
    """Why `slipform train` would refuse values of its flags; those not given come from a file."""
    from slipform_training.train.config import TrainConfig, types_of

    parser, _ = cli._parser()
    flags = vars(parser.parse_args(words))
    given = {name: flags[name] for name in types_of() if name in flags}
    try:
        TrainConfig(**{"model": "m", "data": "d", "out": "o", **given})
    except ValueError as error:
        return str(error)
    return ""


def pip_refuses(words: list[str]) -> str:
    if words[0] != "install":
        return "no install"
    extras = re.search(
        r"\[project\.optional-dependencies\]\n(.*?)\n\[",
        (ROOT / "pyproject.toml").read_text(),
        re.S,
    )[1]
    known = re.findall(r"^(\w+) = \[", extras, re.MULTILINE)
    asked = [
        name for word in words for name in "".join(re.findall(r"\[([\w,]+)\]", word)).split(",")
    ]
    unknown = [name for name in asked if name and name not in known]
    return f"no extra {unknown[0]}" if unknown else ""


def torchrun_refuses(words: list[str], monkeypatch) -> str:
    from torch.distributed.run import get_args_parser

    text = io.StringIO()
    try:
        with contextlib.redirect_stderr(text):
            launched, unknown = get_args_parser().parse_known_args(words)
    except SystemExit:
        return text.getvalue().splitlines()[-1]
    script, arguments = launched.training_script, launched.training_script_args
    if unknown or script.startswith("-") or script.isdecimal():
        return f"unrecognized {unknown or script}"
    if launched.module:
        return python_refuses(["-m", script, *arguments], monkeypatch)
    return python_refuses([script, *arguments], monkeypatch) if "/" in script else ""


def pytest_refuses(arguments: list[str]) -> str:
    gone = [word for word in arguments if "/" in word and not (ROOT / word).exists()]
    if gone:
        return f"no such file {gone[0]}"
    known = (*OPTIONS, "--benchmark-quiet", "--help")
    unknown = [word for word in arguments if word.startswith("--") and word not in known]
    return f"unrecognized {unknown[0]}" if unknown else ""


def python_refuses(words: list[str], monkeypatch) -> str:
    """Run the script or module up to the point where its arguments are parsed."""
    module = words[0] == "-m"
    name, *arguments = words[1:] if module else words
    if name == "slipform_training.cli":
        return slipform_refuses(arguments, whole=True)
    if name == "pytest":
        return pytest_refuses(arguments)
    if name == "examples/distributed.py":
        return "unrecognized" if arguments else ""
    known = ROOT / (f"{name.replace('.', '/')}.py" if module else name)
    if not known.is_file():
        return f"no module {name}"
    parse = argparse.ArgumentParser.parse_args

    def parsed(self, args=None, namespace=None):
        parse(self, args, namespace)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    monkeypatch.delitem(sys.modules, name, raising=False)
    text = io.StringIO()
    try:
        with contextlib.redirect_stderr(text):
            runpy.run_module(name, run_name="__main__") if module else runpy.run_path(
                str(known), run_name="__main__"
            )
    except Parsed:
        return ""
    except SystemExit:
        return text.getvalue().splitlines()[-1]
    finally:
        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    return "it takes no arguments"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_options_in_running_text_exist(document):
    _, parsers = cli._parser()
    known = {option for parser in parsers.values() for option in parser._option_string_actions}
    for path in (ROOT / "benchmarks").glob("*.py"):
        known |= set(re.findall(r'add_argument\(\s*"(--[\w-]+)"', path.read_text()))
    known.add("--no-build-isolation")  # pip's
    found = re.findall(r"`(--[a-z][\w-]*)", prose(read(document)))
    assert not [option for option in found if option not in known]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_yaml_blocks_are_settings_of_slipform_train(document):
    from slipform_training.train import TrainConfig
    from slipform_training.train.settings_file import check_settings

    for block in blocks("yaml", read(document)):
        TrainConfig(**check_settings(yaml.safe_load(block), where=document))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_blocks_are_of_kinds_that_are_checked(document):
    assert languages(read(document)) <= {"sh", "python", "py", "yaml", "diff", "text"}
