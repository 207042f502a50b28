"""Suites of two images and two texts that differ in one way: Winoground and its relatives.

All are scored by Winoground's rule. Its image score is what COLA and MMVP-VLM publish as accuracy;
BiVLC's I2T is the text score here, and its T2I the image score.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Any

from slipform_training.evaluation.scoring import CROSSED
from slipform_training.evaluation.suites.hub import hub_image, hub_rows
from slipform_training.evaluation.suites.suite import (
    ImageRef,
    Reading,
    Request,
    Suite,
    SuiteItem,
    list_rows,
    text_at,
)

_WINOGROUND = ("examples.jsonl", "data/examples.jsonl", "data/test-*.parquet", "test-*.parquet")
_BIVLC = ("bivlc.jsonl", "data/test-*.parquet", "test-*.parquet")
_COLA = (
    "multi_objects.json",
    "COLA_multiobjects_matching_benchmark.json",
    "data/COLA_multiobjects_matching_benchmark.json",
)
_EQBEN = ("eqben_subset_10percent_final.json", "private_info_global.json")


def _read_winoground(request: Request) -> Reading:
    """Rows {id, image_0, image_1, caption_0, caption_1, collapsed_tag}; in examples.jsonl images
    are named without ".png"."""
    items = []
    for number, (where, row) in enumerate(hub_rows(request, *_WINOGROUND)):
        images = []
        for key in ("image_0", "image_1"):
            image = hub_image(row, key, where, request, "winoground", f"{number}_{key}.png")
            named = image.name if "." in image.name else f"{image.name}.png"
            images.append(image._replace(name=named))
        texts = (text_at(row, "caption_0", where), text_at(row, "caption_1", where))
        subset = str(row.get("collapsed_tag") or "all")
        items.append(SuiteItem(str(row.get("id", number)), subset, tuple(images), texts))
    return Reading(items)


def _read_bivlc(request: Request) -> Reading:
    """Rows {image, caption, negative_image, negative_caption, type, subtype}."""
    items = []
    for number, (where, row) in enumerate(hub_rows(request, *_BIVLC)):
        images = tuple(
            hub_image(row, key, where, request, "bivlc", f"{number}_{key}.png")
            for key in ("image", "negative_image")
        )
        texts = (text_at(row, "caption", where), text_at(row, "negative_caption", where))
        items.append(SuiteItem(str(number), text_at(row, "type", where).lower(), images, texts))
    return Reading(items)


def _read_cola(request: Request) -> Reading:
    """Rows [image 1, caption 1, image 2, caption 2]; images by address."""
    items = []
    for number, (where, row) in enumerate(list_rows(request.find(*_COLA))):
        names = [text_at(row, place, where).rpartition("/")[2] for place in (0, 2)]
        texts = (text_at(row, 1, where), text_at(row, 3, where))
        images = tuple(ImageRef("vg", name) for name in names)
        items.append(SuiteItem(str(number), "multi_objects", images, texts))
    return Reading(items)


def _read_colorswap(request: Request) -> Reading:
    """Rows {id, caption_1, caption_2, image_1, image_2}."""
    items = []
    files = ("test.json", "data/test.json", "data/test-*.parquet", "test-*.parquet")
    for number, (where, row) in enumerate(hub_rows(request, *files)):
        images = tuple(
            hub_image(row, key, where, request, "colorswap", f"{number}_{key}.png")
            for key in ("image_1", "image_2")
        )
        texts = (text_at(row, "caption_1", where), text_at(row, "caption_2", where))
        items.append(SuiteItem(str(row.get("id", number)), "test", images, texts))
    return Reading(items)


def _read_mmvp(request: Request) -> Reading:
    """Questions.csv: {Question ID, Type, Statement}, rows 2i and 2i + 1 being a pair.

    As in the release's evaluate_vlm.py, both images lie in the folder of the first row's type.
    """
    path = request.find("Questions.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if len(rows) % 2:
        raise ValueError(f"{path} must have pairs of rows, got {len(rows)}")
    items = []
    for place in range(0, len(rows), 2):
        pair = rows[place : place + 2]
        where = f"{path}: rows {place} and {place + 1}"
        pattern = text_at(pair[0], "Type", where)
        numbers = [text_at(row, "Question ID", where) for row in pair]
        images = tuple(ImageRef("MLLM_VLM Images", f"{pattern}/{one}.jpg") for one in numbers)
        texts = tuple(f"a photo of {text_at(row, 'Statement', where)}" for row in pair)
        items.append(SuiteItem("-".join(numbers), pattern, images, texts))
    return Reading(items)


def _read_eqben(request: Request) -> Reading:
    """Rows {image0, image1, caption0, caption1}; of a list of captions the first is taken.

    Rows whose images are numpy arrays (YouCook2) are left out and counted.
    """
    items, arrays = [], 0
    for number, (where, row) in enumerate(list_rows(request.find(*_EQBEN))):
        names = [text_at(row, key, where) for key in ("image0", "image1")]
        if any(name.endswith(".npy") for name in names):
            arrays += 1
            continue
        texts = tuple(_caption(row, key, where) for key in ("caption0", "caption1"))
        images = tuple(ImageRef("eqben", name) for name in names)
        items.append(SuiteItem(str(number), names[0].partition("/")[0], images, texts))
    return Reading(items, {"images as numpy arrays": arrays} if arrays else {})


def _caption(row: Mapping[str, Any], key: str, where: str) -> str:
    found = row.get(key)
    return (
        text_at(found, 0, f"{where}, {key}")
        if isinstance(found, list)
        else text_at(row, key, where)
    )


WINOGROUND = Suite(
    name="winoground",
    citation="Thrush et al. 2022, CVPR, arXiv 2204.03162",
    source="the hub's facebook/winoground: examples.jsonl and images, or parquet",
    files=_WINOGROUND,
    image_roots=("winoground",),
    rule=CROSSED,
    headline="group",
    published={"": 400},
    read=_read_winoground,
)

COLA = Suite(
    name="cola",
    citation="Ray et al. 2023, NeurIPS, arXiv 2305.03689: multi-objects",
    source="arijitray1993/COLA, data/COLA_multiobjects_matching_benchmark.json",
    files=_COLA,
    image_roots=("vg",),
    rule=CROSSED,
    headline="image",
    published={"": 210},
    read=_read_cola,
)

BIVLC = Suite(
    name="bivlc",
    citation="Miranda et al. 2024, NeurIPS, arXiv 2406.09952",
    source="the hub's imirandam/BiVLC as parquet, or json lines with names of images",
    files=_BIVLC,
    image_roots=("bivlc",),
    rule=CROSSED,
    headline="group",
    published={"": 2933},
    read=_read_bivlc,
)

COLORSWAP = Suite(
    name="colorswap",
    citation="Burapacheep et al. 2024, ACL Findings, arXiv 2402.04492",
    source="Top34051/colorswap: test.json and images, or the hub's parquet",
    files=("test.json", "data/test.json", "data/test-*.parquet", "test-*.parquet"),
    image_roots=("colorswap",),
    rule=CROSSED,
    headline="group",
    published={"": 300},
    read=_read_colorswap,
)

MMVP_VLM = Suite(
    name="mmvp_vlm",
    citation="Tong et al. 2024, CVPR, arXiv 2401.06209",
    source="the hub's MMVP/MMVP_VLM: Questions.csv and images",
    files=("Questions.csv",),
    image_roots=("MLLM_VLM Images",),
    rule=CROSSED,
    headline="image",
    published={"": 135},
    read=_read_mmvp,
)

EQBEN = Suite(
    name="eqben",
    citation="Wang et al. 2023, ICCV, arXiv 2303.14465",
    source="Wangt-CN/EqBen: the subset of a tenth, in Winoground's style",
    files=_EQBEN,
    image_roots=("eqben",),
    rule=CROSSED,
    headline="group",
    published={},
    read=_read_eqben,
)
