"""The documentation site: it builds without a warning, needs no network, and leaves no name out."""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import slipform_kernels
from slipform_training import cli
from support.documents import ROOT

PUBLIC = [name for name in slipform_kernels.__all__ if name != "__version__"]
API = [
    path
    for page in sorted((ROOT / "docs" / "api").glob("*.md"))
    for path in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
]


def hook():
    """docs/hooks/pages.py as a module."""
    spec = importlib.util.spec_from_file_location(
        "site_pages", ROOT / "docs" / "hooks" / "pages.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built with every warning an error; once for all test processes."""
    for name in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        try:
            importlib.import_module(name)
        except ImportError:
            pytest.skip(f"{name} is not installed: pip install 'slipform-kernels[docs]'")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "sitemap.xml").exists():
            run = subprocess.run(
                [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
            )
            if run.returncode:
                shutil.rmtree(folder, ignore_errors=True)
            assert run.returncode == 0, run.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_a_warning(site):
    names = {path.parent.relative_to(site).as_posix() for path in site.rglob("index.html")}
    assert {".", "method", "troubleshooting", "api/losses", "commands", "changelog"} <= names


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(site):
    loads = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=\"?([^\"\s>]+)")
    styles = re.compile(r"url\([\"']?(https?://[^)\"']+)|@import\s+[\"'](https?://[^\"']+)")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for path in pages:
        found = loads.findall(path.read_text())
        assert found
        assert not [target for target in found if re.match(r"(https?:)?//", target)], path
    for path in site.rglob("*.css"):
        assert not styles.findall(path.read_text()), path


@pytest.mark.slow
def test_the_reference_has_every_public_name_with_its_docstring(site):
    text = "".join(path.read_text() for path in (site / "api").rglob("index.html"))
    for name in PUBLIC:
        assert re.search(rf'id="?slipform_kernels\.(\w+\.)*{name}"?', text), name
    for path in API:
        assert f"{path}" in text, path
    # The forms of docstrings that make sections, not running text.
    assert "Raises:" in text
    assert not re.search(r"<p>(Args|Raises|Returns|Attributes):", text)


@pytest.mark.slow
def test_sections_of_the_readme_and_files_outside_of_docs_are_pages(site):
    method = (site / "method" / "index.html").read_text()
    assert "The positive stays out of the sums" in method
    target = re.search(r'href="?([^"\s>]*forward\.py/)', method)[1]
    shown = (site / "method" / target / "index.html").resolve()
    assert "@triton.jit" in re.sub(r"<[^>]+>", "", shown.read_text())
    home = (site / "index.html").read_text()
    assert re.search(r'href="?losses/#in-place-of-open_clips-loss', home)


@pytest.mark.slow
def test_every_command_prints_its_help_on_one_page(site):
    text = re.sub(r"<[^>]+>", "", (site / "commands" / "index.html").read_text())
    for name in cli.COMMANDS:
        assert f"usage: slipform {name.replace('_', '-')}" in text
    assert "--hard-caption-column" in text


def test_a_section_that_is_gone_from_the_readme_is_named():
    with pytest.raises(ValueError, match="'No such section'"):
        hook().section("No such section")


def test_a_section_ends_at_the_next_heading_and_not_at_a_comment_in_its_code(tmp_path, monkeypatch):
    pages = hook()
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    text = "# T\n\n## A\n\none\n\n```sh\n## B\n```\n\n### C\n\ntwo\n\n## B\n\nthree\n"
    (tmp_path / "README.md").write_text(text)
    assert pages.section("A") == "one\n\n```sh\n## B\n```\n\n### C\n\ntwo"
    assert pages.section("B") == "three"


def test_links_lead_from_the_page_to_where_the_file_is_on_the_site():
    rebased = hook().rebased
    readme = (
        "[a](docs/scaling.md#many-ranks) [b](LICENSE) [c](https://x.org/docs/) [d](#the-method)"
    )
    assert rebased(readme, "README.md", "install.md") == (
        "[a](scaling.md#many-ranks) [b](files/LICENSE.md) [c](https://x.org/docs/) [d](method.md)"
    )
    page = (
        "[a](../../README.md#install) [b](../macco.md) [c](#here)\n\n```\n[d](../../LICENSE)\n```\n"
    )
    assert rebased(page, "docs/api/losses.md", "api/losses.md") == (
        "[a](../install.md) [b](../macco.md) [c](#here)\n\n```\n[d](../../LICENSE)\n```\n"
    )


def test_a_page_of_a_file_shows_it_and_that_of_a_folder_its_names(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "b.json").write_text("{}")
    assert hook().fenced(tmp_path / "a.py") == "````python\nx = 1\n````"
    assert hook().fenced(tmp_path) == "````text\na.py\nb.json\n````"


def found(path: str) -> object:
    """The object of a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_the_reference_names_what_there_is_and_every_public_name():
    assert len(set(API)) == len(API)
    assert {f"slipform_kernels.{name}" for name in PUBLIC} <= set(API)
    for path in API:
        assert inspect.getdoc(found(path)), path


@pytest.mark.parametrize("path", [path for path in API if path.startswith("slipform_kernels.")])
def test_a_docstring_of_the_kernels_describes_every_parameter(path):
    owner = found(path)
    if hasattr(owner, "_fields"):  # a named tuple's are described one by one
        return
    documented = [(owner, inspect.getdoc(owner))]
    if inspect.isclass(owner) and "forward" in vars(owner):
        documented.append((owner.forward, inspect.getdoc(owner.forward)))
    for function, text in documented:
        for name in inspect.signature(function).parameters:
            if name not in ("self", "args", "kwargs"):
                assert re.search(rf"\b{name}\b", text), name
