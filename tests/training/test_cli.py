"""The command: fast help, one-line errors, exit codes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from slipform_training import cli


def run_cli(*arguments: str, code: str = "") -> subprocess.CompletedProcess:
    script = f"{code}\nimport sys\nfrom slipform_training.cli import main\nsys.exit(main())"
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_names_the_commands_and_imports_nothing_heavy():
    watch = (
        "import atexit, sys\n"
        "names = ('torch', 'numpy', 'open_clip', 'matplotlib', 'spacy')\n"
        "atexit.register(lambda: print('heavy:', [n for n in names if n in sys.modules]))"
    )
    done = run_cli("--help", code=watch)
    assert done.returncode == 0
    assert "demo" in done.stdout
    assert "doctor" in done.stdout
    assert "heavy: []" in done.stdout
    done = run_cli("demo", "--help", code=watch)
    assert "--seeds" in done.stdout
    assert "heavy: []" in done.stdout


def test_version_is_the_packages(capsys):
    from slipform_kernels import __version__

    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.strip() == f"slipform {__version__}"


@pytest.mark.parametrize(
    "arguments", [[], ["trian"], ["demo", "--seeds", "two"], ["demo", "--nonsense"]]
)
def test_unknown_requests_end_with_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert "slipform" in capsys.readouterr().err


def assert_one_line(text: str) -> None:
    assert text.startswith("slipform: error: ")
    assert text.count("\n") == 1
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--seeds", "0"], "seeds: got 0, expected 1 to 100"),
        (["--steps", "0"], "branch_steps: got 0, expected at least 1"),
        (["--margin", "-0.1"], "margin: got -0.1, expected at least 0"),
    ],
)
def test_settings_out_of_range_are_one_line(arguments, expected, capsys, tmp_path):
    pytest.importorskip("open_clip")
    out = ["--out", str(tmp_path / "demo")]
    assert cli.main(["demo", *out, *arguments]) == 2
    error = capsys.readouterr().err
    assert_one_line(error)
    assert expected in error
    assert not (tmp_path / "demo").exists()


def test_a_folder_with_other_things_is_not_taken(capsys, tmp_path):
    pytest.importorskip("open_clip")
    (tmp_path / "report.md").write_text("mine")
    for fresh in ([], ["--fresh"]):
        assert cli.main(["demo", "--quick", "--out", str(tmp_path), *fresh]) == 2
        error = capsys.readouterr().err
        assert_one_line(error)
        assert "holds something other than a demo" in error
        assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
        assert (tmp_path / "report.md").read_text() == "mine"


def test_a_missing_extra_is_named(capsys, monkeypatch, tmp_path):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "spacy" else real(name, *a)
    )
    assert cli.main(["demo", "--out", str(tmp_path / "demo")]) == 2
    error = capsys.readouterr().err
    assert_one_line(error)
    assert "spacy" in error
    assert 'pip install "slipform-kernels[train]"' in error


def test_doctor_prints_the_report(capsys):
    doctor = pytest.importorskip("slipform_kernels.doctor")
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().out.strip() == doctor.report().strip()
