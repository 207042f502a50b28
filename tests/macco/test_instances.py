"""Boxes from annotations: nouns to categories, and which instance a phrase means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipform_training.macco.categories import SYNONYMS, Categories
from slipform_training.macco.instances import NOT_ANNOTATED, InstanceBoxes
from slipform_training.macco.rows import Phrase
from slipform_training.mining.rows import InputError

REAL = Path(__file__).parents[2].parent / "shared" / "data"
NAMES = {1: "person", 3: "car", 6: "bus", 19: "horse", 27: "baseball bat", 67: "dining table"}


@pytest.mark.parametrize(
    ("noun", "category", "is_plural"),
    [
        ("person", 1, False),
        ("people", 1, True),
        ("Man", 1, False),
        ("women", 1, True),
        ("boys", 1, True),
        ("ladies", 1, True),
        ("baseball player", 1, False),
        ("crowd", 1, True),
        ("city buses", 6, True),
        ("bus", 6, False),
        ("cars", 3, True),
        ("horses", 19, True),
        ("ponies", 19, True),
        ("baseball bat", 27, False),
        ("table", 67, False),
        ("dining tables", 67, True),
    ],
)
def test_nouns_of_categories(noun, category, is_plural):
    assert Categories(NAMES).find(noun) == (category, is_plural)


@pytest.mark.parametrize("noun", ["table cloth", "bus stop", "glass", "", "manhole", "carpet"])
def test_other_nouns_are_of_none(noun):
    assert Categories(NAMES).find(noun) is None


def test_no_synonym_stands_twice():
    words = [word for listed in SYNONYMS.values() for word in listed.split()]
    assert len(words) == len(set(words))


def instances_file(path, annotations, *, width=100, height=100):
    value = {
        "info": {"year": 2017},
        "images": [{"id": 5, "file_name": "5.jpg", "width": width, "height": height}],
        "annotations": [
            {"id": i, "image_id": 5, "category_id": category, "bbox": box, "iscrowd": crowd}
            for i, (category, box, crowd) in enumerate(annotations)
        ],
        "categories": [{"id": number, "name": name} for number, name in NAMES.items()],
    }
    path.write_text(json.dumps(value))
    return path


def find(path, *nouns, kind="relation"):
    detector = InstanceBoxes.read([path])
    ((boxes,),) = detector.detect(["coco/5.jpg"], [[Phrase("any", kind, (), nouns)]])
    return [tuple(box[:4]) for box in boxes]


SMALL, LARGE, RIGHT = [0, 0, 10, 10], [20, 0, 30, 30], [80, 0, 10, 10]
CORNERS = {"SMALL": (0, 0, 10, 10), "LARGE": (20, 0, 50, 30), "RIGHT": (80, 0, 90, 10)}


def test_a_plural_means_all_and_a_crowd_is_several(tmp_path):
    path = instances_file(tmp_path / "i.json", [(3, SMALL, 0), (3, LARGE, 0), (3, RIGHT, 1)])
    assert find(path, "cars") == list(CORNERS.values())
    assert find(path, "car") == [CORNERS["LARGE"]]


def test_one_of_several_alike_is_in_doubt(tmp_path):
    path = instances_file(tmp_path / "i.json", [(3, SMALL, 0), (3, RIGHT, 0)])
    assert find(path, "car", kind="attribute") == []
    assert find(path, "horse") == []


def test_a_relation_means_the_pair_that_is_nearest(tmp_path):
    annotations = [(1, SMALL, 0), (1, RIGHT, 0), (19, [78, 5, 20, 20], 0), (19, [40, 90, 5, 5], 0)]
    path = instances_file(tmp_path / "i.json", annotations)
    assert find(path, "man", "horse") == [(80, 0, 90, 10), (78, 5, 98, 25)]
    assert find(path, "man", "road") == []
    path = instances_file(tmp_path / "i.json", [(1, SMALL, 0), (1, RIGHT, 0)])
    assert sorted(find(path, "man", "woman")) == [(0, 0, 10, 10), (80, 0, 90, 10)]


def test_what_rounding_put_over_the_edge_is_cut(tmp_path):
    path = instances_file(tmp_path / "i.json", [(3, [90.5, 80, 9.6, 20.2], 0)])
    assert find(path, "car") == [(90.5, 80, 100, 100)]


def test_an_image_without_annotations_is_told(tmp_path):
    path = instances_file(tmp_path / "i.json", [(3, SMALL, 0)])
    detector = InstanceBoxes.read([path])
    assert list(detector.detect(["6.jpg"], [[]])) == [NOT_ANNOTATED]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda value: value["annotations"][0].update(bbox=[1, 2, float("nan"), 4]),
            "expected x, y, w, h",
        ),
        (lambda value: value["annotations"][0].update(bbox=[1, 2, -3, 4]), "expected x, y, w, h"),
        (lambda value: value["annotations"][0].update(bbox=[1, 2, 3]), "expected x, y, w, h"),
        (lambda value: value["annotations"][0].pop("bbox"), "missing: 'bbox'"),
        (lambda value: value["annotations"][0].update(image_id=9), "no image 9"),
        (lambda value: value.pop("categories"), "no array 'categories'"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, change, message):
    path = instances_file(tmp_path / "i.json", [(3, SMALL, 0)])
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    with pytest.raises(InputError, match=message) as caught:
        InstanceBoxes.read([path])
    assert str(path) in str(caught.value)


@pytest.mark.skipif(not (REAL / "coco_by").is_dir(), reason="no ../shared/data")
def test_real_annotations():
    path = REAL / "coco_by" / "instances.json"
    detector = InstanceBoxes.read([path])
    value = json.loads(path.read_text())
    assert len(detector.instances) == len(value["images"])
    assert sum(map(len, detector.instances.values())) == len(value["annotations"])
    for image in value["images"]:
        for one in detector.instances[image["file_name"]]:
            assert 0 <= one.box.x1 <= one.box.x2 <= image["width"]
            assert 0 <= one.box.y1 <= one.box.y2 <= image["height"]


@pytest.mark.parametrize("box", [[9000, 9000, 50, 20], [90, 10, 12, 5], [0, 99, 4, 3]])
def test_a_box_outside_of_its_image_is_refused(tmp_path, box):
    path = tmp_path / "i.json"
    instances_file(path, [(1, [1, 1, 5, 5], 0), (3, box, 0)])
    with pytest.raises(
        InputError, match=r"i.json, annotation 1: bbox: got .* outside of the image"
    ):
        InstanceBoxes.read([path])


def test_annotations_of_unknown_images_and_categories_are_refused(tmp_path):
    path = tmp_path / "i.json"
    instances_file(path, [(9999, [1, 1, 5, 5], 0)])
    with pytest.raises(InputError, match="annotation 0: no image 5 or no category 9999"):
        InstanceBoxes.read([path])
