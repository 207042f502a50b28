"""Rows of MACCO's data (arXiv 2606.13288), in the tsv format of its release.

Columns are filepath, title, object_list, relation_list, attribute_list, relation_phrase_list,
attribute_phrase_list, relation_attribute_phrase_bbox_list, neg_caption and neg_image. All but the
first two hold Python literals; the boxes are ``[]`` or ``[{phrase: [[x1, y1, x2, y2], ...]}]``. A
further column, concreteness, holds those of the words that neg_caption's captions replace.
"""

from __future__ import annotations

import ast
import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slipform_training.mining.files import write_atomically
from slipform_training.mining.rows import InputError
from slipform_training.mining.writers import tsv_line

KINDS = ("relation", "attribute")

_WORDS = {"objects": "object_list", "relations": "relation_list", "attributes": "attribute_list"}
_PHRASES = {"relation": "relation_phrase_list", "attribute": "attribute_phrase_list"}
_BOXES = "relation_attribute_phrase_bbox_list"
CONCEPT_COLUMNS = (*_WORDS.values(), *_PHRASES.values(), _BOXES)
COLUMNS = ("filepath", "title", *CONCEPT_COLUMNS, "neg_caption", "neg_image")
# The release has no such column; Cement needs it.
WRITTEN = (*COLUMNS, "concreteness")

# Characters of a cell: a literal is parsed whole, and takes some hundred times its size meanwhile.
LARGEST_CELL = 1 << 20


@dataclass(frozen=True)
class Phrase:
    """A relation or attribute with its nouns, such as "man riding horse".

    Attributes:
        text: the words, without articles.
        kind: one of KINDS.
        boxes: [x1, y1, x2, y2] each, in pixels of the image turned upright.
        nouns: the nouns in the text, as far as they are known; they are not written.
    """

    text: str
    kind: str
    boxes: Sequence[Sequence[float]] = ()
    nouns: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Concepts:
    """Words as they occur in a caption, each as often as it is meant, and phrases.

    Attributes:
        objects, attributes, relations: the words.
        phrases: relation phrases, then attribute phrases.
    """

    objects: Sequence[str] = ()
    attributes: Sequence[str] = ()
    relations: Sequence[str] = ()
    phrases: Sequence[Phrase] = ()

    def plain(self) -> dict[str, Any]:
        """The same as lists, dicts and texts."""
        return asdict(self)

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> Concepts:
        """What `plain` was made from."""
        return Concepts(**{**plain, "phrases": [Phrase(**one) for one in plain["phrases"]]})


@dataclass(frozen=True, kw_only=True)
class ConceptRow:
    """An image, its caption and their concepts.

    Attributes:
        image: path of the image, relative to a folder of images.
        caption: the text.
        concepts: of the caption.
        hard_captions: captions that are wrong for the image.
        hard_images: what the column neg_image holds.
        concreteness: of the replaced word, 1 to 5, for each hard caption; may be absent.
        where: file and line, for messages.
    """

    image: str
    caption: str
    concepts: Concepts = field(default_factory=Concepts)
    hard_captions: Sequence[str] = ()
    hard_images: Sequence[Any] = ()
    concreteness: Sequence[float] = ()
    where: str = ""


def read_concept_rows(path: Path) -> Iterator[ConceptRow]:
    """The rows of a tsv file, in order, one in memory at a time.

    Raises:
        OSError: the file cannot be read.
        InputError: a column is missing, or a row is not as expected; the message names the file
            and the line on which the row ends.
    """
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t")
        missing = [name for name in COLUMNS[:-2] if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{path} lacks the columns {', '.join(missing)}")
        for cells in reader:
            where = f"{path}, line {reader.line_num}"
            if None in cells or None in cells.values():
                raise InputError(f"{where}: not as many cells as columns")
            try:
                yield ConceptRow(
                    image=cells["filepath"],
                    caption=cells["title"],
                    concepts=concepts_of(cells),
                    hard_captions=_texts(cells, "neg_caption"),
                    hard_images=_literal(cells, "neg_image"),
                    concreteness=_literal(cells, "concreteness"),
                    where=where,
                )
            except ValueError as error:
                raise InputError(f"{where}: {error}") from error


def write_concept_rows(path: Path, rows: Iterable[ConceptRow]) -> None:
    """Writes rows as a tsv file, whole or not at all; boxes are rounded to a tenth of a pixel."""
    lines = [tsv_line(WRITTEN), *(concept_line(row) for row in rows)]
    write_atomically(path, b"".join(lines).decode())


def concept_line(row: ConceptRow) -> bytes:
    """A row's line of the tsv file."""
    concepts = row.concepts
    boxed: dict[str, list[list[float]]] = {}
    for one in concepts.phrases:
        if one.boxes:
            boxed[one.text] = [[round(float(value), 1) for value in box] for box in one.boxes]
    return tsv_line(
        [
            row.image,
            row.caption,
            *(repr(list(getattr(concepts, name))) for name in _WORDS),
            *(
                repr([one.text for one in concepts.phrases if one.kind == kind])
                for kind in _PHRASES
            ),
            repr([boxed] if boxed else []),
            repr(list(row.hard_captions)),
            repr(list(row.hard_images)),
            repr(list(row.concreteness)),
        ]
    )


def concepts_of(cells: Mapping[str, str]) -> Concepts:
    """The concepts in a row's cells.

    A phrase that has boxes and is in neither list counts as a relation phrase.

    Args:
        cells: column -> text; an absent or empty one is an empty list.

    Raises:
        ValueError: a cell is no such list, or a box no box; the message names the column.
    """
    boxes = _boxes(cells)
    phrases = [
        Phrase(text, kind, boxes.get(text, ()))
        for kind, column in _PHRASES.items()
        for text in _texts(cells, column)
    ]
    named = {one.text for one in phrases}
    phrases += [Phrase(text, KINDS[0], found) for text, found in boxes.items() if text not in named]
    words = {name: _texts(cells, column) for name, column in _WORDS.items()}
    return Concepts(phrases=phrases, **words)


def list_in(text: str, column: str) -> list[Any]:
    """The Python list that a cell's text spells; an empty text is an empty list.

    Raises:
        ValueError: anything else, or beyond LARGEST_CELL characters; the message has the column.
    """
    text = text.strip()
    if not text:
        return []
    if len(text) > LARGEST_CELL:
        raise ValueError(f"{column}: got {len(text)} characters, expected at most {LARGEST_CELL}")
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"{column}: got {text[:80]!r}, expected a Python list") from error
    if not isinstance(found, list):
        raise ValueError(f"{column}: got {type(found).__name__}, expected a list")
    return found


def check_box(box: Any) -> None:
    """Raises ValueError unless `box` is [x1, y1, x2, y2], finite, x1 <= x2 and y1 <= y2."""
    if not isinstance(box, list | tuple) or len(box) != 4:
        raise ValueError(f"box: got {box!r}, expected [x1, y1, x2, y2]")
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in box):
        raise ValueError(f"box: got {box!r}, expected four numbers")
    if not all(math.isfinite(value) for value in box):
        raise ValueError(f"box: got {box!r}, expected finite numbers")
    x1, y1, x2, y2 = box
    if x2 < x1 or y2 < y1:
        raise ValueError(f"box: got {box!r}, expected x1 <= x2 and y1 <= y2")


def _boxes(cells: Mapping[str, str]) -> dict[str, list[list[float]]]:
    found: dict[str, list[list[float]]] = {}
    for one in _literal(cells, _BOXES):
        if not isinstance(one, dict) or not all(isinstance(text, str) for text in one):
            raise ValueError(f"{_BOXES}: got {one!r}, expected phrases with their boxes")
        for text, boxes in one.items():
            if not isinstance(boxes, list):
                raise ValueError(f"{_BOXES}: got {boxes!r} for {text!r}, expected a list of boxes")
            for box in boxes:
                try:
                    check_box(box)
                except ValueError as error:
                    raise ValueError(f"{_BOXES}, {text!r}: {error}") from None
            found.setdefault(text, []).extend(boxes)
    return found


def _texts(cells: Mapping[str, str], column: str) -> list[str]:
    found = _literal(cells, column)
    if not all(isinstance(one, str) for one in found):
        raise ValueError(f"{column}: got {found!r}, expected a list of texts")
    return found


def _literal(cells: Mapping[str, str], column: str) -> list[Any]:
    return list_in(cells.get(column, ""), column)
