"""Code in the documents runs as it stands there; what needs a GPU is compiled and its names found.

A block is marked by its language: `python` runs, by itself, in an empty folder; `py` needs a GPU.
"""

from __future__ import annotations

import ast
import builtins
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from support.documents import DOCUMENTS, ROOT, blocks, read

# Blocks of these belong together, and have tests of their own below.
TOGETHER = ("docs/index.md", "docs/scaling.md")
CASES = [
    pytest.param(block, id=f"{document}-{number}")
    for document in DOCUMENTS
    if document not in TOGETHER
    for number, block in enumerate(blocks("python", read(document)))
]
GPU_CASES = [
    pytest.param(block, id=f"{document}-{number}")
    for document in DOCUMENTS
    for number, block in enumerate(blocks("py", read(document)))
]


def run(*arguments: str, folder: Path) -> str:
    """What Python prints with the arguments, in the folder."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("block", CASES)
def test_a_block_runs(block, tmp_path):
    run("-c", block, folder=tmp_path)


@pytest.mark.slow
def test_the_quick_start_runs_from_the_first_block_to_the_last(tmp_path):
    text = read("docs/index.md")
    loss, data = blocks("python", text)
    install, way = blocks("sh", text)
    computed, expected = map(float, run("-c", loss, folder=tmp_path).split())
    assert computed == pytest.approx(expected, rel=1e-5)
    run("-c", data, folder=tmp_path)
    for line in [install.splitlines()[1], *way.replace("\\\n", " ").splitlines()]:
        name, *arguments = shlex.split(line)
        assert name == "slipform"
        out = run("-m", "slipform_training.cli", *arguments, folder=tmp_path)
    assert "| sugarcrepe | **all** |" in out
    for name in ("mined.jsonl", "cement/log.jsonl", "cement/model.pt", "cement.md"):
        assert (tmp_path / "quickstart" / name).stat().st_size > 0, name
        assert f"quickstart/{name}" in text, name


def test_the_code_of_the_scaling_page_runs():
    import torch

    losses, caching = blocks("python", read("docs/scaling.md"))
    exec(losses, {})
    image, text = torch.nn.Linear(6, 4), torch.nn.Linear(5, 4)
    features = torch.nn.functional.normalize
    space = {
        "model": lambda images, texts: {
            "image_features": features(image(images)),
            "text_features": features(text(texts)),
            "logit_scale": torch.tensor(3.0),
        },
        "optimizer": torch.optim.SGD(image.parameters(), lr=0.1),
    }
    exec(caching, space)
    before = image.weight.clone()
    batch = SimpleNamespace(images=torch.randn(8, 6), texts=torch.randn(8, 5))
    space["train"]([batch])
    assert not torch.equal(image.weight, before)


@pytest.mark.parametrize("block", GPU_CASES)
def test_names_of_a_block_that_needs_a_gpu_exist(block):
    pytest.importorskip("triton")
    assert not unknown_names(block)


def test_a_name_that_is_not_there_is_noticed():
    assert unknown_names("import os\nx = os.path\nprint(x.anything, os.sep)") == []
    assert unknown_names("import os\nos.pth.join(y)") == ["os.pth", "y"]
    assert unknown_names("from slipform_kernels import ClipLos") == ["slipform_kernels.ClipLos"]


def unknown_names(code: str) -> list[str]:
    """Names that the code neither binds nor imports, and attributes that modules do not have."""
    tree = ast.parse(code)
    space: dict[str, object] = {}
    unknown = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            try:
                exec(compile(ast.Module([node], []), "block", "exec"), space)
            except ImportError:
                unknown += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            space.setdefault(node.id, None)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in space and not hasattr(builtins, node.id):
            unknown.append(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = space.get(node.value.id)
            if isinstance(owner, ModuleType) and not hasattr(owner, node.attr):
                unknown.append(ast.unparse(node))
    return sorted(unknown)


def test_every_example_is_compiled_under_the_oldest_python_that_is_served():
    for path in (ROOT / "examples").glob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 10))
