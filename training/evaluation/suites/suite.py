"""What a compositional suite is: where its files are, what an item holds, how it is scored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from slipform_training.evaluation.encoder import ImageItem
from slipform_training.evaluation.scoring import Rule

Box = tuple[float, float, float, float]


class ImageRef(NamedTuple):
    """An image of a suite: the name of the folder it belongs in, its name there, a crop."""

    root: str
    name: str
    box: Box | None = None


@dataclass(frozen=True)
class SuiteItem:
    """Something to score.

    Attributes:
        id: unique in its subset.
        subset: category, file or tag that accuracies are reported by.
        images, texts: in the order that the rule wants; no images where texts alone are compared.
        groups: names of the groups that it belongs to, by kind of group.
    """

    id: str
    subset: str
    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageRoots:
    """Where images are.

    Attributes:
        folder: the folder for all, or None: an image is looked for in folder/root/name, then in
            folder/name.
        named: folders of single roots, which go first.
    """

    folder: Path | None = None
    named: Mapping[str, Path] = field(default_factory=dict)

    def candidates(self, image: ImageRef) -> list[ImageItem]:
        """The files that the image may be, best first."""
        if image.root in self.named:
            return [ImageItem(self.named[image.root] / image.name, image.box)]
        if self.folder is None:
            return []
        paths = (self.folder / image.root / image.name, self.folder / image.name)
        return [ImageItem(path, image.box) for path in paths]

    def new_folder(self, root: str) -> Path:
        """Where images of a root are put; ValueError where no folder was given."""
        if root in self.named:
            return self.named[root]
        if self.folder is None:
            raise ValueError(f"images: expected a folder for {root}, got none")
        return self.folder / root


@dataclass(frozen=True)
class Request:
    """What a reader reads. seed: of captions that are made on reading (ARO's order sets)."""

    annotations: Path
    roots: ImageRoots = field(default_factory=ImageRoots)
    seed: int = 0

    def find(self, *names: str) -> Path:
        """The first of the names that is a file below the annotations, which may be that file.

        Raises FileNotFoundError that lists them.
        """
        own = self.annotations.name
        if self.annotations.is_file() and any(fnmatch(own, Path(name).name) for name in names):
            return self.annotations
        for name in names:
            if (self.annotations / name).is_file():
                return self.annotations / name
        raise FileNotFoundError(
            f"annotations: {self.annotations} has none of {', '.join(dict.fromkeys(names))}"
        )


@dataclass(frozen=True)
class Reading:
    """A suite's items, in the order of the files; and how many were left out, by reason."""

    items: list[SuiteItem]
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """The description of a suite.

    Attributes:
        name: for the command line.
        citation: the paper.
        source: where the files come from, and in which form they are read.
        files: names of the annotation files, or of forms of one of them.
        image_roots: the image folders by the name they have here.
        rule: how an item is scored.
        headline: the metric that is published.
        published: items by subset, or under "" in all, as published; empty if not known.
        read: reads the files; FileNotFoundError, or ValueError naming file and row.
        groups: kinds of groups of items that must all be right, and their published number of
            members; scored as metrics of their own.
        macro_from: subsets with fewer items are left out of the macro mean, as published.
    """

    name: str
    citation: str
    source: str
    files: tuple[str, ...]
    image_roots: tuple[str, ...]
    rule: Rule
    headline: str
    published: Mapping[str, int]
    read: Callable[[Request], Reading]
    groups: Mapping[str, int] = field(default_factory=dict)
    macro_from: int = 1

    def size_note(self, reading: Reading) -> str:
        """How the items differ in number from what is published; "" if they do not."""
        found: Mapping[str, int] = Counter(item.subset for item in reading.items)
        if "" in self.published:
            found = {"": len(reading.items)}
        wrong = [
            f"{subset or 'all'}: {found.get(subset, 0)} of {expected}"
            for subset, expected in self.published.items()
            if found.get(subset, 0) != expected
        ]
        return ", ".join(wrong)


def read_rows(path: Path) -> Any:
    """A json file's content; ValueError naming it where it is no json."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be json, got {error}") from error


def list_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a json list, with their place for messages."""
    rows = read_rows(path)
    if not isinstance(rows, list):
        raise ValueError(f"{path} must hold a list, got a {type(rows).__name__}")
    for number, row in enumerate(rows):
        yield f"{path}: row {number}", row


def text_at(row: Any, key: str | int, where: str) -> str:
    """The text at a key of a row; ValueError naming the place where it is missing or no text."""
    try:
        value = row[key]
    except (KeyError, IndexError, TypeError):
        value = None
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where} must have the text {key!r}, got {str(row)[:200]}")
    return value


def number_at(row: Any, key: str, where: str) -> float:
    """The number at a key of a row; ValueError naming the place where it is none."""
    value = row.get(key) if isinstance(row, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{where} must have the number {key!r}, got {str(row)[:200]}")
    return float(value)
