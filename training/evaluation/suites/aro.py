"""ARO: relations and attributes in a crop of a Visual Genome image, and the order of words.

Layouts and scoring are those of the release, mertyg/vision-language-models-are-bows,
dataset_zoo/aro_datasets.py. It takes the first of equal scores, which in the order sets is the true
caption, so that a collapsed model has 100 there; here a tie is wrong.
"""

from __future__ import annotations

from collections.abc import Callable

from slipform_training.evaluation.scoring import CHOICE
from slipform_training.evaluation.suites.suite import (
    ImageRef,
    Reading,
    Request,
    Suite,
    SuiteItem,
    list_rows,
    number_at,
    text_at,
)
from slipform_training.evaluation.suites.word_order import shuffled_captions

_CITATION = "Yuksekgonul et al. 2023, ICLR, arXiv 2210.01936"
_RELEASE = "mertyg/vision-language-models-are-bows"


def _read_genome(file: str, subset_of: Callable[[dict, str], str]) -> Callable[[Request], Reading]:
    """A reader of rows {image_path, bbox_x, _y, _w, _h, true_caption, false_caption}."""

    def read(request: Request) -> Reading:
        items = []
        for number, (where, row) in enumerate(list_rows(request.find(file))):
            x, y, width, height = (number_at(row, f"bbox_{key}", where) for key in "xywh")
            image = ImageRef("vg", text_at(row, "image_path", where), (x, y, x + width, y + height))
            texts = (text_at(row, "true_caption", where), text_at(row, "false_caption", where))
            items.append(SuiteItem(str(number), subset_of(row, where), (image,), texts))
        return Reading(items)

    return read


def _attributes(row: dict, where: str) -> str:
    pair = row.get("attributes")
    return f"{text_at(pair, 0, where)}_{text_at(pair, 1, where)}"


def _read_order(name: str, root: str, *files: str) -> Callable[[Request], Reading]:
    """A reader of Karpathy's test split, rows {image, caption: [...]}, or of rows {image,
    caption_options: [true, false ...]}, whose captions are made already."""

    def read(request: Request) -> Reading:
        rows = list(list_rows(request.find(f"{name}.json", *files)))
        images, options, captions = [], [], []
        for where, row in rows:
            image = ImageRef(root, text_at(row, "image", where))
            if "caption_options" in row:
                found = row["caption_options"]
                options.append([text_at(found, i, where) for i in range(max(2, len(found)))])
                images.append(image)
                continue
            own = row.get("caption")
            if not isinstance(own, list):
                raise ValueError(f"{where} must have the list 'caption' or 'caption_options'")
            for place in range(len(own)):
                captions.append((f"{image.name} {place}", text_at(own, place, where)))
                images.append(image)
        if captions and options:
            raise ValueError(f"{name}: some rows have caption_options, others none")
        if captions:
            options = list(shuffled_captions(captions, seed=request.seed))
        return _without_equal(images, options)

    return read


def _without_equal(images: list[ImageRef], options: list[list[str]]) -> Reading:
    """Items without false captions that equal the true one, which nothing can tell from it."""
    items, equal, alone = [], 0, 0
    for number, (image, (true, *false)) in enumerate(zip(images, options, strict=True)):
        others = [caption for caption in false if caption != true]
        equal += len(false) - len(others)
        if others:
            items.append(SuiteItem(str(number), "all", (image,), (true, *others)))
        else:
            alone += 1
    reasons = {"shuffles equal to the caption": equal, "captions without another order": alone}
    return Reading(items, {reason: count for reason, count in reasons.items() if count})


VG_RELATION = Suite(
    name="vg_relation",
    citation=_CITATION,
    source=f"{_RELEASE}: visual_genome_relation.json, images of vgr_vga_images.zip",
    files=("visual_genome_relation.json",),
    image_roots=("vg",),
    rule=CHOICE,
    headline="accuracy",
    published={"": 23937},
    read=_read_genome(
        "visual_genome_relation.json", lambda row, where: text_at(row, "relation_name", where)
    ),
)

VG_ATTRIBUTION = Suite(
    name="vg_attribution",
    citation=_CITATION,
    source=f"{_RELEASE}: visual_genome_attribution.json, images of vgr_vga_images.zip",
    files=("visual_genome_attribution.json",),
    image_roots=("vg",),
    rule=CHOICE,
    headline="accuracy",
    published={"": 28748},
    read=_read_genome("visual_genome_attribution.json", _attributes),
    macro_from=25,
)

COCO_ORDER = Suite(
    name="coco_order",
    citation=_CITATION,
    source="coco_karpathy_test.json, images of COCO val2014",
    files=("coco_order.json", "coco_karpathy_test.json"),
    image_roots=("coco",),
    rule=CHOICE,
    headline="accuracy",
    published={},
    read=_read_order("coco_order", "coco", "coco_karpathy_test.json"),
)

FLICKR30K_ORDER = Suite(
    name="flickr30k_order",
    citation=_CITATION,
    source="flickr30k_test.json, images of Flickr30k",
    files=("flickr30k_order.json", "flickr30k_test.json"),
    image_roots=("flickr30k",),
    rule=CHOICE,
    headline="accuracy",
    published={},
    read=_read_order("flickr30k_order", "flickr30k", "flickr30k_test.json"),
)
