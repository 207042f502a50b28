"""SugarCrepe and SugarCrepe++: an image of COCO val2017, true captions and a hard negative."""

from __future__ import annotations

from slipform_training.evaluation.scoring import CHOICE, TEXT_ONLY, TWO_POSITIVES
from slipform_training.evaluation.sugarcrepe import CATEGORIES, SUGARCREPE_SIZES, load_pairs
from slipform_training.evaluation.suites.suite import (
    ImageRef,
    Reading,
    Request,
    Suite,
    SuiteItem,
    list_rows,
    text_at,
)

COCO = "coco_val2017"

_PLUS_PLUS = {
    "replace_att": 788,
    "replace_obj": 1652,
    "replace_rel": 1406,
    "swap_att": 666,
    "swap_obj": 245,
}


def _read_sugarcrepe(request: Request) -> Reading:
    items = [
        SuiteItem(
            pair.id,
            pair.category,
            (ImageRef(COCO, pair.filename),),
            (pair.caption, pair.negative_caption),
        )
        for pair in load_pairs(request.annotations)
    ]
    return Reading(items)


def _read_plus_plus(request: Request) -> Reading:
    """Lists of {id, filename, caption, caption2, negative_caption}, a file a subset."""
    items = []
    for subset in _PLUS_PLUS:
        for where, row in list_rows(request.find(f"{subset}.json")):
            captions = [
                text_at(row, key, where) for key in ("caption", "caption2", "negative_caption")
            ]
            image = ImageRef(COCO, text_at(row, "filename", where))
            items.append(SuiteItem(str(row.get("id")), subset, (image,), tuple(captions)))
    return Reading(items)


def _read_texts(request: Request) -> Reading:
    items = [
        SuiteItem(item.id, item.subset, (), item.texts) for item in _read_plus_plus(request).items
    ]
    return Reading(items)


SUGARCREPE = Suite(
    name="sugarcrepe",
    citation="Hsieh et al. 2023, arXiv 2306.14610",
    source="RAIVNLab/sugar-crepe, data/*.json",
    files=tuple(f"{category}.json" for category in CATEGORIES),
    image_roots=(COCO,),
    rule=CHOICE,
    headline="accuracy",
    published=SUGARCREPE_SIZES,
    read=_read_sugarcrepe,
)

# Scored as in the release's VLMs/test_NegCLIP.py: "image-to-text task" and "text-only task".
SUGARCREPE_PP = Suite(
    name="sugarcrepe_pp",
    citation="Dumpala et al. 2024, arXiv 2406.11171: image-text task (ITT)",
    source="Sri-Harsha/scpp, data/*.json",
    files=tuple(f"{subset}.json" for subset in _PLUS_PLUS),
    image_roots=(COCO,),
    rule=TWO_POSITIVES,
    headline="both",
    published=_PLUS_PLUS,
    read=_read_plus_plus,
)

SUGARCREPE_PP_TEXT = Suite(
    name="sugarcrepe_pp_text",
    citation="Dumpala et al. 2024, arXiv 2406.11171: text-only task (TOT)",
    source=SUGARCREPE_PP.source,
    files=SUGARCREPE_PP.files,
    image_roots=(),
    rule=TEXT_ONLY,
    headline="both",
    published=_PLUS_PLUS,
    read=_read_texts,
)
