"""The scripts of examples/ run as their users run them, and print what they promise."""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))


def printed(name: str, *arguments: str, **environment: str) -> str:
    """What the script writes to stdout.

    A process that replaces another one starts with its peak of memory, so a small shell is between
    this process, which may be large, and the script's.
    """
    run = subprocess.run(
        ["sh", "-c", '"$0" "$@"; exit $?', sys.executable, str(FOLDER / name), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def number(pattern: str, text: str) -> float:
    """The one number that the pattern's group finds."""
    (found,) = re.findall(pattern, text)
    return float(found)


def test_in_place_of_open_clips_loss_every_step_gives_the_same_number():
    text = printed("clip_loss.py")
    rows = [line.split() for line in text.splitlines() if re.match(r" +\d ", line)]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5"]
    for _, theirs, ours in rows:
        assert float(ours) == pytest.approx(float(theirs), abs=2e-5)
    assert len({theirs for _, theirs, _ in rows}) == 5  # it trains


def test_cement_leaves_hard_captions_more_of_the_pull_and_opens_a_wider_gap():
    text = printed("cement.py", "--scenes", "64", "--steps", "20")
    before, after = re.search(r"'(.*)'  ->  '(.*)'", text).groups()
    assert before != after
    (negclip_gap, negclip_pull), (cement_gap, cement_pull) = (
        (number(rf"{name} .*gap (\S+)", text), number(rf"{name} .*pull (\d+)%", text))
        for name in ("NegClipLoss", "CementLoss")
    )
    assert cement_pull > negclip_pull
    assert cement_gap > negclip_gap


def test_a_large_batch_takes_less_memory_than_its_matrix_and_has_the_plain_gradients():
    text = printed("large_batch.py")
    assert number(r"differ by (\S+) of", text) < 1e-5
    matrix = number(r"in fp32: (\d+) MiB", text)
    assert matrix == 4 * 8192**2 / 2**20
    assert 1 < number(r"grew by (\d+) MiB", text) < matrix / 2


@pytest.mark.slow
def test_two_processes_have_the_loss_and_the_gradients_of_one():
    check_ranks(printed("distributed.py"), ranks=2)


@pytest.mark.slow
def test_the_same_script_runs_under_torchrun():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    check_ranks(
        printed(
            "distributed.py",
            RANK="0",
            WORLD_SIZE="1",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        ),
        ranks=1,
    )


def check_ranks(text: str, *, ranks: int) -> None:
    alone = number(r"one process: 64 samples, loss (\S+)", text)
    own = re.findall(rf"rank \d of {ranks}: (\d+) samples, loss (\S+)", text)
    assert len(own) == ranks
    assert sum(int(samples) for samples, _ in own) == 64
    assert all(float(loss) == pytest.approx(alone, abs=1e-4) for _, loss in own)
    assert number(r"of the gradients: (\S+)", text) < 1e-4


def test_two_models_are_compared_on_all_pairs():
    pytest.importorskip("pyarrow")
    text = printed("evaluate.py")
    tables = re.findall(
        r"\| sugarcrepe \| \*\*all\*\* \| accuracy \| (\S+) \|.*\| 140 \| 140 \|", text
    )
    assert len(tables) == 2
    (first, second, difference) = re.search(
        r"\| sugarcrepe \| accuracy \| micro \| (\S+) \| (\S+) \| (\S+) \|.*\| 140 \| 0 \|", text
    ).groups()
    assert [first, second] == tables
    assert float(difference) == pytest.approx(float(second) - float(first), abs=0.011)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_short_and_uses_public_names_alone(name):
    text = (FOLDER / name).read_text()
    assert len(text.splitlines()) <= 80
    tree = ast.parse(text)
    assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not any(part.startswith("_") for part in node.module.split("."))
            assert not any(alias.name.startswith("_") for alias in node.names)
        if isinstance(node, ast.Attribute):
            assert not re.match("_(?!_)", node.attr), ast.unparse(node)


def test_the_readme_names_every_script():
    named = re.findall(r"\]\(examples/(\w+\.py)\)", (ROOT / "README.md").read_text())
    assert sorted(named) == SCRIPTS
