"""The source distribution and the wheel: what they hold, what they say of themselves.

Built from a copy of what git tracks, among leftovers of builds and runs, without the extension.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import NamedTuple

import pytest

from support.builds import ROOT, pip_wheel

LEFTOVERS = (
    ".venv/pyvenv.cfg",
    "benchmarks/__pycache__/record.cpython-311.pyc",
    "build/native/build.ninja",
    "csrc/stray.o",
    "dist/slipform_kernels-0.0.1.tar.gz",
    "notes.txt",
    "runs/demo/report.md",
    "slipform_kernels/_build_info.json",
    "slipform_kernels/_native.so",
    "slipform_kernels.egg-info/SOURCES.txt",
    "training/__pycache__/cli.cpython-311.pyc",
)
# What setuptools writes beside the files of the checkout.
GENERATED = r"PKG-INFO|setup\.cfg|slipform_kernels\.egg-info/.*"
PACKAGES = {"slipform_kernels/": "slipform_kernels/", "training/": "slipform_training/"}
CONSUMER = """
from slipform_kernels import ClipLoss, two_way_cross_entropy
from slipform_training.train import TrainConfig

reveal_type(ClipLoss().backend)
reveal_type(TrainConfig.batch_size)
ClipLoss(rank="zero")
two_way_cross_entropy()
"""


class Built(NamedTuple):
    """The two archives, what git tracks, and the metadata of both."""

    sdist: Path
    wheel: Path
    tracked: set[str]

    def sources(self) -> dict[str, int]:
        """Name and size of every file in the source distribution."""
        with tarfile.open(self.sdist) as archive:
            members = [member for member in archive.getmembers() if member.isfile()]
        return {member.name.partition("/")[2]: member.size for member in members}

    def modules(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    def metadata(self) -> Message:
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
            return BytesParser().parsebytes(archive.read(name))


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Built:
    git = ["git", "-C", str(ROOT), "ls-files", "-z"]
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\0")
    tracked = {name for name in listed if name and (ROOT / name).is_file()}
    folder = tmp_path_factory.mktemp("distribution")
    tree = folder / "checkout"
    for name in LEFTOVERS:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("notes.txt\n")
    for name in tracked:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    code = "from setuptools.build_meta import build_sdist; print(build_sdist('.'))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    sdist = tree / run.stdout.split()[-1]
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    run = pip_wheel(unpacked, SLIPFORM_NATIVE="0")
    assert run.returncode == 0, run.stdout + run.stderr
    (wheel,) = (unpacked / "wheels").iterdir()
    return Built(sdist, wheel, tracked)


def test_the_source_distribution_is_what_git_tracks(built):
    """Neither a file that a build, a test or a page needs is missing, nor is there one of a run."""
    names = {name for name in built.sources() if not re.fullmatch(GENERATED, name)}
    assert names == built.tracked - {".gitignore"}


def test_the_source_distribution_is_small(built):
    assert built.sdist.stat().st_size < 3e6
    large = {name: size for name, size in built.sources().items() if size > 500_000}
    assert large == {}


def test_a_wheel_built_from_it_holds_both_packages_and_nothing_else(built):
    expected = {
        package + name.removeprefix(folder)
        for folder, package in PACKAGES.items()
        for name in built.tracked
        if name.startswith(folder)
    }
    found = {name for name in built.modules() if ".dist-info/" not in name}
    assert found == expected | {"slipform_kernels/_build_info.json"}


def test_the_metadata_is_that_of_the_project(built):
    project = (ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.*)"$', project, re.MULTILINE)[1]
    extras = project.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = re.findall(r"^(\w+) = \[", extras, re.MULTILINE)
    metadata = built.metadata()
    assert metadata["Version"] == version
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert set(metadata.get_all("Provides-Extra")) == set(extras)
    unconditional = [one for one in metadata.get_all("Requires-Dist") if "extra ==" not in one]
    assert unconditional == ["torch>=2.8"]
    names = built.modules()
    (licence,) = (name for name in names if name.endswith(".dist-info/licenses/LICENSE"))
    with zipfile.ZipFile(built.wheel) as archive:
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
        commands = archive.read(licence.replace("licenses/LICENSE", "entry_points.txt")).decode()
    assert commands.split() == ["[console_scripts]", "slipform", "=", "slipform_training.cli:main"]


def test_the_description_has_the_readmes_words_and_no_link_that_leads_nowhere(built):
    """A page of an index has no files beside it."""
    description = built.metadata().get_payload(decode=True).decode()
    targets = re.findall(r"\]\(([^)]+)\)", description)
    assert targets
    assert [target for target in targets if not target.startswith("https://")] == []
    assert "docs/scaling.md has the modes" in description

    def plain(text: str) -> str:
        return re.sub(r"\]\([^)]+\)|\[", "", text).strip()

    assert plain(description) == plain((ROOT / "README.md").read_text())


def test_an_index_would_take_both(built):
    pytest.importorskip("twine", reason="part of the extra dev")
    run = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(built.sdist), str(built.wheel)],
        env=os.environ | {"NO_COLOR": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("PASSED") == 2


def test_a_type_checker_sees_the_types_of_an_installed_wheel(built, tmp_path):
    """Torch stays out of the environment, which a check of it would need half a minute for."""
    pytest.importorskip("mypy", reason="part of the extra dev")
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    with zipfile.ZipFile(built.wheel) as archive:
        archive.extractall(site)
    (tmp_path / "consumer.py").write_text(CONSUMER)
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache")]
    command += ["--python-executable", str(environment / "bin" / "python"), "consumer.py"]
    clean = {k: v for k, v in os.environ.items() if k not in ("MYPYPATH", "PYTHONPATH")}
    run = subprocess.run(
        command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
    )
    assert 'Revealed type is "str | None"' in run.stdout, run.stdout + run.stderr
    assert 'Revealed type is "int"' in run.stdout
    assert 'Argument "rank" to "ClipLoss" has incompatible type "str"' in run.stdout
    assert "Too few arguments" in run.stdout or "Missing positional argument" in run.stdout
    assert "missing library stubs or py.typed marker" not in run.stdout
