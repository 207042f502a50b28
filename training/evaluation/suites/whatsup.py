"""What'sUp: prepositions. Photos of two objects in four relations, and COCO's and GQA's images.

Layouts and scoring are those of the release, amitakamath/whatsup_vlms,
dataset_zoo/aro_datasets.py: the first caption is the true one; a pair (left and right; on and
under, or in front and behind) and a set of four count if all their photos are right.
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

# By subset: the file, and the folder of its photos.
_CONTROLLED = {
    "controlled_a": ("controlled_images_dataset.json", "controlled_images"),
    "controlled_b": ("controlled_clevr_dataset.json", "controlled_clevr"),
}
_QUESTIONS = {
    "coco_one": ("coco_qa_one_obj.json", "coco_val2017"),
    "coco_two": ("coco_qa_two_obj.json", "coco_val2017"),
    "vg_one": ("vg_qa_one_obj.json", "vg"),
    "vg_two": ("vg_qa_two_obj.json", "vg"),
}
_PAIRS = {"left": "sides", "right": "sides"}


def _read(request: Request) -> Reading:
    """The files that are there; one of them has to be."""
    items = []
    absent = 0
    for subset, (file, root) in {**_CONTROLLED, **_QUESTIONS}.items():
        if not (request.annotations / file).is_file():
            absent += 1
            continue
        for number, (where, row) in enumerate(list_rows(request.annotations / file)):
            if subset in _CONTROLLED:
                items.append(_photo(row, where, subset, root))
            else:
                items.append(_question(row, where, f"{number}", subset, root))
    if not items:
        raise FileNotFoundError(f"annotations: {request.annotations} has none of {WHATSUP.files}")
    return Reading(items, {"files that are absent": absent} if absent else {})


def _photo(row: dict, where: str, subset: str, root: str) -> SuiteItem:
    """A row {image_path, caption_options} of "<object>_<relation>[_of]_<object>.jpeg"."""
    name = text_at(row, "image_path", where).rpartition("/")[2]
    parts = name.rpartition(".")[0].split("_")
    options = row.get("caption_options")
    if len(parts) < 3 or not isinstance(options, list) or len(options) < 2:
        raise ValueError(
            f"{where} must have caption_options and an image <object>_<relation>_<object>, "
            f"got {row}"
        )
    first, relation, last = parts[0], parts[1], parts[-1]
    whole = f"{subset} {first} {last}"
    return SuiteItem(
        name,
        subset,
        (ImageRef(root, name),),
        tuple(text_at(options, place, where) for place in range(len(options))),
        {"pair": f"{whole} {_PAIRS.get(relation, 'other')}", "set": whole},
    )


def _question(row: list, where: str, key: str, subset: str, root: str) -> SuiteItem:
    """A row [image id, true caption, false caption]."""
    texts = (text_at(row, 1, where), text_at(row, 2, where))
    name = str(row[0])
    if root == "coco_val2017":
        name = name.zfill(12)
    return SuiteItem(key, subset, (ImageRef(root, f"{name}.jpg"),), texts)


WHATSUP = Suite(
    name="whatsup",
    citation="Kamath et al. 2023, EMNLP, arXiv 2310.19785",
    source="amitakamath/whatsup_vlms, data/",
    files=tuple(file for file, _ in (*_CONTROLLED.values(), *_QUESTIONS.values())),
    image_roots=("controlled_images", "controlled_clevr", "coco_val2017", "vg"),
    rule=CHOICE,
    headline="accuracy",
    published={},
    read=_read,
    groups={"pair": 2, "set": 4},
)
