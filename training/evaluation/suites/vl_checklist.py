"""VL-CheckList: objects, attributes and relations, one word of the caption replaced.

Layout and scoring are those of the release, om-ai-lab/VL-CheckList, vl_checklist/data_loader.py and
evaluate.py, task "itc": a json list of [image, {"POS": [...], "NEG": [...]}] a file, whose first
texts are compared.
"""

from __future__ import annotations

from slipform_training.evaluation.scoring import CHOICE
from slipform_training.evaluation.suites.suite import (
    ImageRef,
    Reading,
    Request,
    Suite,
    SuiteItem,
    list_rows,
    text_at,
)

_KINDS = ("Attribute", "Object", "Relation")


def _read(request: Request) -> Reading:
    """All json files below Attribute, Object and Relation; the path of a file is its subset."""
    folder = request.annotations
    top = folder / "data" if (folder / "data").is_dir() else folder
    files = sorted(path for kind in _KINDS for path in (top / kind).glob("**/*.json"))
    if not files:
        raise FileNotFoundError(f"annotations: {folder} has no json files below {_KINDS}")
    items = []
    for path in files:
        subset = path.relative_to(top).with_suffix("").as_posix()
        root = next((name for name in ("hake", "swig") if name in subset.lower()), "vg")
        for number, (where, row) in enumerate(list_rows(path)):
            image = ImageRef(root, text_at(row, 0, where))
            texts = row[1] if len(row) > 1 and isinstance(row[1], dict) else {}
            pair = tuple(text_at(texts.get(key), 0, where) for key in ("POS", "NEG"))
            items.append(SuiteItem(str(number), subset, (image,), pair))
    return Reading(items)


VL_CHECKLIST = Suite(
    name="vl_checklist",
    citation="Zhao et al. 2022, EMNLP demo, arXiv 2207.00221",
    source="om-ai-lab/VL-CheckList, data/",
    files=tuple(f"{kind}/**/*.json" for kind in _KINDS),
    image_roots=("vg", "hake", "swig"),
    rule=CHOICE,
    headline="accuracy",
    published={},
    read=_read,
)
