"""What is particular to the README."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

import pytest

from support.documents import ROOT, blocks, read

README = read("README.md")


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
    (block,) = blocks("py", README)
    exec(block, {})


def test_the_readme_has_python_blocks_on_each_loss_that_it_names():
    code = "\n".join(blocks("python", README))
    assert len(blocks("python", README)) >= 3
    for name in ("ClipLoss", "NegClipLoss", "CementLoss", "two_way_cross_entropy"):
        assert name in code


def test_the_line_that_the_diff_takes_out_names_open_clips_loss():
    import open_clip.loss

    import slipform_kernels

    lines = blocks("diff", README)[0].splitlines()
    assert lines == [
        f"-from {open_clip.loss.ClipLoss.__module__} import ClipLoss",
        f"+from {slipform_kernels.__name__} import ClipLoss",
    ]


def test_the_change_to_open_clips_training_script_fits_it():
    spec = importlib.util.find_spec("open_clip_train")
    script = (Path(spec.origin).parent / "main.py").read_text()
    diff = blocks("diff", README)[1]
    added = re.findall(r"^\+(.*)", diff, re.MULTILINE)
    assert len(added) == 3
    for out, replacement in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", diff, re.MULTILINE):
        out, replacement = (re.sub("^[-+]", "", lines, flags=re.M) for lines in (out, replacement))
        assert script.count(out) == 1
        script = script.replace(out, replacement)
    assert all(line in script.splitlines() for line in added)
    assert "create_loss" not in script
    compile(script, "main.py", "exec")
    exec("\n".join(line for line in added if line.startswith("from")), {})


def test_environment_variables_of_the_readme_are_those_that_the_code_reads():
    sources = [ROOT / "setup.py", *(ROOT / "slipform_kernels").rglob("*.py")]
    sources += [*(ROOT / "csrc").glob("*.cpp"), *(ROOT / "csrc").glob("*.py")]
    documented = set(re.findall(r"\| `(SLIPFORM_[A-Z_]+)`", README))
    in_code = {
        name
        for path in sources
        for name in re.findall(r"""["'](SLIPFORM_[A-Z_]+)["']""", path.read_text())
    }
    assert documented == in_code
