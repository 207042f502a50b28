"""The documents: their code runs, the commands they name exist, what they point at is there."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from slipform_training import cli

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)
README = (ROOT / "README.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    """Contents of the fenced blocks of the language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(document: str) -> list[list[str]]:
    """Every command in the document's sh blocks and inline code, split into words."""
    text = (ROOT / document).read_text()
    joined = [block.replace("\\\n", " ") for block in blocks("sh", text)]
    lines = [line for block in joined for line in block.splitlines()]
    lines += re.findall(r"`((?:make|slipform|pip install) [^`]+)`", text)
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("index", range(len(blocks("python"))))
def test_a_python_block_of_the_readme_runs(index):
    run = subprocess.run(
        [sys.executable, "-c", blocks("python")[index]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_the_block_on_tuning_calls_what_there_is(monkeypatch):
    """It takes minutes on a GPU, and needs one: here its arguments alone are checked."""
    pytest.importorskip("triton")
    from slipform_kernels.backends.triton import tuning

    def checked(R, C, D, **options):
        inspect.signature(original).bind(R, C, D, **options)
        tuning.Sample(R, C, D, **{"bias": "none", "groups": False, "precision": "ieee", **options})
        return dict.fromkeys(("statistics", "gradient"))

    original = tuning.tune
    monkeypatch.setattr(tuning, "tune", checked)
    (block,) = blocks("py")
    exec(block, {})


def test_the_readme_has_python_blocks_on_each_loss_that_it_names():
    code = "\n".join(blocks("python"))
    assert len(blocks("python")) >= 3
    for name in ("ClipLoss", "NegClipLoss", "CementLoss", "two_way_cross_entropy"):
        assert name in code


def test_the_line_that_the_diff_takes_out_names_open_clips_loss():
    import open_clip.loss

    import slipform_kernels

    lines = blocks("diff")[0].splitlines()
    assert lines == [
        f"-from {open_clip.loss.ClipLoss.__module__} import ClipLoss",
        f"+from {slipform_kernels.__name__} import ClipLoss",
    ]


def test_the_change_to_open_clips_training_script_fits_it():
    spec = importlib.util.find_spec("open_clip_train")
    script = (Path(spec.origin).parent / "main.py").read_text().splitlines()
    lines = blocks("diff")[1].splitlines()
    assert all(line[1:] in script for line in lines if line.startswith("-"))
    imported = [line[1:] for line in lines if line.startswith("+from")]
    exec("\n".join(imported), {})
    assert len([line for line in lines if line.startswith("+")]) == 3


def test_the_settings_of_the_readme_are_settings():
    from slipform_training.train import TrainConfig
    from slipform_training.train.settings_file import check_settings

    (block,) = blocks("yaml")
    TrainConfig(**check_settings(yaml.safe_load(block), where="README.md"))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_in_the_documents_exist(document):
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([\w./%-]+):", makefile, re.MULTILINE)
    for words in commands(document):
        words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
        if words[0] == "make":
            assert all(word in targets for word in words[1:]), words
        elif words[0] == "slipform":
            assert parses(words[1:]), words
        elif words[0] == "pip":
            assert words[1] == "install", words
        elif "/" in words[0]:
            assert words[0].startswith(".venv/") or (ROOT / words[0]).is_file(), words
        else:
            pytest.fail(f"a command that no test knows: {shlex.join(words)}")


def parses(arguments: list[str]) -> bool:
    """Whether `slipform ARGUMENTS` is accepted, up to running it."""
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as exit_:
        cli.main([*arguments, "--help"])
    return exit_.value.code == 0


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_the_documents_point_at_exist(document):
    text = (ROOT / document).read_text()
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", text):
        assert ((ROOT / document).parent / target).exists(), target


def test_the_code_of_the_scaling_page_runs():
    import torch

    losses, caching = blocks("python", (ROOT / "docs" / "scaling.md").read_text())
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


def test_environment_variables_of_the_readme_are_those_that_the_code_reads():
    sources = [ROOT / "setup.py", *(ROOT / "slipform_kernels").rglob("*.py")]
    sources += [*(ROOT / "csrc").glob("*.cpp"), *(ROOT / "csrc").glob("*.py")]
    read = set(re.findall(r"\| `(SLIPFORM_[A-Z_]+)`", README))
    in_code = {
        name
        for path in sources
        for name in re.findall(r"""["'](SLIPFORM_[A-Z_]+)["']""", path.read_text())
    }
    assert read == in_code


def test_the_citation_is_of_this_version():
    import slipform_kernels

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert str(citation["version"]) == slipform_kernels.__version__
    assert [entry["url"].rpartition("/")[2] for entry in citation["references"]] == [
        "2604.13313",
        "2606.13288",
    ]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{slipform_kernels.__version__}]" in changelog
