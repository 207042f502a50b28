"""Two trees to compare: the present one and an earlier commit, each built on its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

RELEASE_TAGS = "v[0-9]*"


class GuardError(Exception):
    """The comparison cannot be made; the message says why."""


@dataclass(frozen=True)
class Tree:
    """A build: its name for the reader, and the folder that holds the packages."""

    name: str
    path: Path


def earlier_commit(root: Path, ref: str | None, *, say: Callable[[str], None]) -> str:
    """The commit to compare with.

    `ref`, or the last release before the present tree: its tag v1.2.3. Where there is none yet, the
    last commit that is not the present tree itself: HEAD if files have changed, else its parent.

    Raises GuardError for a ref that names no commit.
    """
    if ref is not None:
        found = _git(root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        if not found:
            raise GuardError(f"against: got {ref!r}, expected a commit, branch or tag")
        return found
    base = "HEAD" if _git(root, "status", "--porcelain") else "HEAD^"
    tag = _git(root, "describe", "--tags", "--abbrev=0", "--match", RELEASE_TAGS, base)
    if tag:
        say(f"comparing with the last release, {tag}")
        return earlier_commit(root, tag, say=say)
    say(f"there is no release tag ({RELEASE_TAGS}) yet: comparing with {base}; see --against")
    return earlier_commit(root, base, say=say)


@contextlib.contextmanager
def built_trees(
    root: Path, commit: str, *, say: Callable[[str], None], environment: Mapping[str, str] = {}
) -> Iterator[tuple[Tree, Tree]]:
    """The present tree and the commit, both installed from copies; everything is removed after.

    Both are built in the same way, by pip into a folder of its own, from clean sources: what lies
    about in the checkout, such as an older extension, is not measured. environment: further
    variables of the builds.

    Raises GuardError, with the end of pip's message, if one cannot be built.
    """
    short = _git(root, "rev-parse", "--short", commit)
    try:
        with tempfile.TemporaryDirectory(prefix="slipform-guard-") as name:
            folder = Path(name)
            earlier, present = folder / "earlier", folder / "present"
            _git(root, "worktree", "add", "--quiet", "--detach", str(earlier), commit, check=True)
            _copy_sources(root, present)
            trees = []
            for label, source in (("present", present), (short, earlier)):
                say(f"building {label}")
                trees.append(Tree(label, folder / f"built-{source.name}"))
                _install(source, trees[-1].path, environment)
            yield trees[0], trees[1]
    finally:
        _git(root, "worktree", "prune")  # the worktree went with its folder


def _copy_sources(root: Path, target: Path) -> None:
    """The files of the working tree that git does not ignore."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", check=True)
    for name in filter(None, listed.split("\0")):
        source = root / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def _install(source: Path, target: Path, environment: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation"]
    command += ["--disable-pip-version-check", "--no-compile", "--quiet"]
    run = subprocess.run(
        [*command, "--target", str(target), str(source)],
        capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    if run.returncode:
        raise GuardError(f"{source.name}: the build failed:\n{run.stderr.strip()[-2000:]}")


def _git(root: Path, *arguments: str, check: bool = False) -> str:
    """What git prints; "" where it fails, or GuardError with `check`."""
    run = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if run.returncode and check:
        raise GuardError(f"git {arguments[0]}: {run.stderr.strip()}")
    return run.stdout.strip() if run.returncode == 0 else ""
