"""MkDocs hook: the pages that are made of other files, and links that leave the folder docs.

No text lies twice: sections of the README, the changelog, the scripts of examples/ and the help of
the commands become pages of the site when it is built. A link to a file outside of docs, which is
what readers on GitHub need, becomes one to the page made of it, or to a page that shows the file.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1\n", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:)([^)\s#]*)(#[^)\s]*)?(?=\))")

# Page -> title and headings of the README.
README_PAGES = {
    "install.md": ("Install", ("Install",)),
    "demo.md": ("The demo", ("Two commands",)),
    "losses.md": (
        "Losses",
        ("In place of open_clip's loss", "Hard negatives, with and without a margin"),
    ),
    "backends.md": ("Backends", ("Backends",)),
    "training.md": ("Training", ("Training",)),
    "method.md": ("The method", ("The method",)),
    "examples.md": ("Examples", ("Examples",)),
    "citing.md": ("Citing", ("Credits", "Licence")),
}
FILE_PAGES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
# The README's sections whose subject has a page of docs, and the README itself.
ELSEWHERE = {
    "": "index.md",
    "mining-hard-captions": "mining.md",
    "macco": "macco.md",
    "evaluation-and-analysis": "evaluation.md",
    "what-is-measured": "benchmarks.md",
    "if-something-goes-wrong": "troubleshooting.md",
}
LANGUAGES = {".py": "python", ".json": "json", ".cff": "yaml", ".sh": "sh"}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie in no file of docs, and those of linked files."""
    from mkdocs.structure.files import File

    made = {**readme_pages(), **file_pages(), "commands.md": commands_page()}
    written = {file.src_uri: file.content_string for file in files if file.is_documentation_page()}
    shown = {
        path: shown_page(path)
        for uri, text in written.items()
        for path in shown_files(text, f"docs/{uri}")
    }
    for uri, (text, source) in made.items():
        shown |= {path: shown_page(path) for path in shown_files(text, source)}
        made[uri] = rebased(text, source, uri), source
    for uri, text in [(uri, text) for uri, (text, _) in made.items()]:
        files.append(File.generated(config, uri, content=text))
    for path, text in shown.items():
        files.append(File.generated(config, shown_uri(path), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rebase the links of the pages that lie in docs; the others are rebased when made."""
    if page.file.generated_by:
        return markdown
    return rebased(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def readme_pages() -> dict[str, tuple[str, str]]:
    """Page -> text and source, of the README's sections."""
    pages = {}
    for uri, (title, headings) in README_PAGES.items():
        parts = [section(heading) for heading in headings]
        if len(parts) > 1:
            parts = [f"## {h}\n\n{part}" for h, part in zip(headings, parts, strict=True)]
        pages[uri] = "\n\n".join([f"# {title}", *parts]), "README.md"
    for uri, paths in (
        ("examples.md", sorted(ROOT.glob("examples/*.py"))),
        ("citing.md", [ROOT / "CITATION.cff"]),
    ):
        text, source = pages[uri]
        pages[uri] = text + "".join(f"\n\n## {p.name}\n\n{fenced(p)}" for p in paths), source
    return pages


def file_pages() -> dict[str, tuple[str, str]]:
    """Page -> text and source, of whole files."""
    return {uri: ((ROOT / name).read_text(), name) for uri, name in FILE_PAGES.items()}


def section(heading: str) -> str:
    """The README's text below a heading of the second level, up to the next one."""
    text = (ROOT / "README.md").read_text()
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^##? |\Z)",
        hidden_code(text),
        re.MULTILINE | re.DOTALL,
    )
    if found is None:
        raise ValueError(f"README.md: got no heading {heading!r}, expected one for the site's page")
    return text[found.start(1) : found.end(1)].strip()


def hidden_code(text: str) -> str:
    """The text with blanks of the same length in place of fenced blocks."""
    return FENCE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def commands_page() -> tuple[str, str]:
    """What every command of slipform prints for --help."""
    from slipform_training import cli

    parts = [
        "# The command line\n\n`slipform` comes with the extra `train`; "
        "each part below is what the command prints for `--help`."
    ]
    for command in ((), *((name.replace("_", "-"),) for name in cli.COMMANDS)):
        text = io.StringIO()
        with (
            mock.patch.dict(os.environ, COLUMNS="90"),
            contextlib.redirect_stdout(text),
            contextlib.suppress(SystemExit),
        ):
            cli.main([*command, "--help"])
        parts.append(f"## {' '.join(('slipform', *command))}\n\n```text\n{text.getvalue()}```")
    return "\n\n".join(parts), "docs/commands.md"


def shown_files(text: str, source: str) -> Iterator[str]:
    """Files of the repository that the text links to and that are no page of the site."""
    for match in LINK.finditer(hidden_code(text)):
        path = target_path(match[1], source)
        if path and page_of(path, match[2]) is None and not path.startswith("docs/"):
            yield path


def shown_page(path: str) -> str:
    """A page that shows a file, and stays out of the search."""
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n{fenced(ROOT / path)}\n"


def shown_uri(path: str) -> str:
    return f"files/{path}.md"


def fenced(path: Path) -> str:
    """The file's text as a block; of a folder, the names in it."""
    names = "\n".join(sorted(entry.name for entry in path.iterdir())) if path.is_dir() else ""
    text = names or path.read_text().rstrip()
    return f"````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````"


def target_path(target: str, source: str) -> str:
    """The path in the repository that a relative link means; "" for an anchor of its own page."""
    if not target:
        return ""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def page_of(path: str, anchor: str | None) -> str | None:
    """The page made of a file, or of the README's section with the anchor."""
    for uri, name in FILE_PAGES.items():
        if path == name:
            return uri
    if path != "README.md":
        return None
    name = (anchor or "").removeprefix("#")
    for uri, (_, headings) in README_PAGES.items():
        if name in map(slug, headings):
            return uri
    return ELSEWHERE.get(name)


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def rebased(text: str, source: str, uri: str) -> str:
    """The text with links that hold on the page `uri` in place of those that hold in `source`."""

    def moved(match: re.Match[str]) -> str:
        path, anchor = target_path(match[1], source), match[2] or ""
        if source == "README.md" and not path:
            path = source
        if not path:
            return match[0]
        page = page_of(path, anchor)
        if page is not None:
            # A section that is all of its page gives it the title, and has no anchor of its own.
            several = len(README_PAGES.get(page, ("", ()))[1]) > 1
            anchor = anchor if several or path != "README.md" else ""
        elif path.startswith("docs/"):
            page = path.removeprefix("docs/")
        else:
            page = shown_uri(path)
        return posixpath.relpath(page, posixpath.dirname(uri) or ".") + anchor

    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(moved, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(moved, text[end:])])
