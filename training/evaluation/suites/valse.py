"""VALSE: eleven files of a caption and a foil each, over images of five data sets.

Read and filtered as in the release (Heidelberg-NLP/VALSE): a foil counts if at least two of three
annotators chose the caption, ``mturk.caption >= 2``.
"""

from __future__ import annotations

from slipform_training.evaluation.scoring import CHOICE
from slipform_training.evaluation.suites.suite import (
    ImageRef,
    Reading,
    Request,
    Suite,
    SuiteItem,
    read_rows,
    text_at,
)

# Valid items of the released files; 7,702 in all.
_SIZES = {
    "existence": 505,
    "plurals": 851,
    "counting-hard": 868,
    "counting-small-quant": 900,
    "counting-adversarial": 691,
    "relations": 535,
    "action-replacement": 648,
    "actant-swap": 949,
    "coreference-standard": 708,
    "coreference-hard": 104,
    "foil-it": 943,
}

_VALID_FROM = 2

# By the beginning of the image's name; COCO 2017's are digits alone, SWiG's a verb and digits.
_ROOTS = {
    "v7w_": "visual7w",
    "VisualDialog_val2018_": "visdial_val2018",
    "COCO_train2014_": "coco_train2014",
    "COCO_val2014_": "coco_val2014",
}


def _image(name: str) -> ImageRef:
    for beginning, root in _ROOTS.items():
        if name.startswith(beginning):
            return ImageRef(root, name)
    return ImageRef("coco_val2017" if name.partition(".")[0].isdecimal() else "swig", name)


def _read(request: Request) -> Reading:
    items, invalid = [], 0
    for subset in _SIZES:
        path = request.find(f"{subset}.json", f"data/{subset}.json")
        rows = read_rows(path)
        if not isinstance(rows, dict):
            raise ValueError(f"{path} must hold a dictionary id -> pair, got {type(rows).__name__}")
        for key, row in rows.items():
            where = f"{path}: id {key!r}"
            texts = (text_at(row, "caption", where), text_at(row, "foil", where))
            try:
                votes = int(row["mturk"]["caption"])
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{where} must have the number mturk.caption") from error
            if votes < _VALID_FROM:
                invalid += 1
                continue
            image = _image(text_at(row, "image_file", where))
            items.append(SuiteItem(key, subset, (image,), texts))
    return Reading(items, {f"mturk.caption below {_VALID_FROM}": invalid} if invalid else {})


VALSE = Suite(
    name="valse",
    citation="Parcalabescu et al. 2022, ACL, arXiv 2112.07566: pairwise ranking accuracy",
    source="Heidelberg-NLP/VALSE, data/*.json",
    files=tuple(f"{subset}.json" for subset in _SIZES),
    image_roots=(*_ROOTS.values(), "coco_val2017", "swig"),
    rule=CHOICE,
    headline="accuracy",
    published=_SIZES,
    read=_read,
)
