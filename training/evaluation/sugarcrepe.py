"""Test pairs in SugarCrepe's format (Hsieh et al. 2023, arXiv 2306.14610).

A folder holds one json file per category, ``<category>.json``: a dictionary from an id to
``{"filename", "caption", "negative_caption"}``. Ids may have gaps.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

# The published files and their numbers of pairs, 7,511 in all.
SUGARCREPE_SIZES: dict[str, int] = {
    "add_att": 692,
    "add_obj": 2062,
    "replace_att": 788,
    "replace_obj": 1652,
    "replace_rel": 1406,
    "swap_att": 666,
    "swap_obj": 245,
}

CATEGORIES: tuple[str, ...] = tuple(SUGARCREPE_SIZES)

_FIELDS = ("filename", "caption", "negative_caption")


@dataclass(frozen=True)
class Pair:
    """An image and two captions, of which the first is true.

    Attributes:
        category: a name such as "swap_obj".
        id: the key in the category's file.
        filename: the image's name in the image folder.
        caption, negative_caption: the true and the false caption.
    """

    category: str
    id: str
    filename: str
    caption: str
    negative_caption: str


def load_pairs(directory: str | Path, *, categories: Sequence[str] | None = None) -> list[Pair]:
    """Reads a folder of test pairs.

    Args:
        directory: the folder with the json files.
        categories: names of the files without ``.json``; None reads the seven of SugarCrepe.

    Returns:
        All pairs, in the order of the categories and of the files.

    Raises:
        FileNotFoundError: a category's file is missing.
        ValueError: a file is no such dictionary; the message names file, id and field.
    """
    pairs = []
    for category in CATEGORIES if categories is None else categories:
        path = Path(directory) / f"{category}.json"
        if not path.is_file():
            raise FileNotFoundError(f"categories must each have a file, {path} is missing")
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} must be json, got {error}") from error
        if not isinstance(rows, dict):
            raise ValueError(
                f"{path} must hold a dictionary id -> pair, got a {type(rows).__name__}"
            )
        for key, row in rows.items():
            for field in _FIELDS:
                if not isinstance(row, dict) or not isinstance(row.get(field), str):
                    raise ValueError(f"{path}: id {key!r} must have the text {field!r}, got {row}")
            pairs.append(Pair(category, key, *(row[field] for field in _FIELDS)))
    return pairs


def save_pairs(pairs: Iterable[Pair], directory: str | Path) -> None:
    """Writes the pairs' json files into a folder, which is made if needed; images apart.

    Raises:
        ValueError: two pairs of a category have the same id.
    """
    files: dict[str, dict[str, dict[str, str]]] = {}
    for pair in pairs:
        rows = files.setdefault(pair.category, {})
        if pair.id in rows:
            raise ValueError(f"pairs must have unique ids, got {pair.id!r} twice: {pair.category}")
        rows[pair.id] = {field: getattr(pair, field) for field in _FIELDS}
    Path(directory).mkdir(parents=True, exist_ok=True)
    for category, rows in files.items():
        text = json.dumps(rows, indent=4, ensure_ascii=False)
        (Path(directory) / f"{category}.json").write_text(text + "\n", encoding="utf-8")


def verify_sizes(pairs: Iterable[Pair]) -> None:
    """Checks that the pairs are as many as published, category by category.

    Raises:
        ValueError: a category has another number of pairs, or is unknown.
    """
    found = dict(Counter(pair.category for pair in pairs))
    if found != SUGARCREPE_SIZES:
        wrong = {
            category: (found.get(category, 0), SUGARCREPE_SIZES.get(category, 0))
            for category in sorted(found.keys() | SUGARCREPE_SIZES.keys())
            if found.get(category) != SUGARCREPE_SIZES.get(category)
        }
        raise ValueError(f"pairs must be as many as published, got (found, published): {wrong}")
