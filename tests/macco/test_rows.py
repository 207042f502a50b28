"""MACCO's tsv: the release's format in and out, and errors that name the place."""

from __future__ import annotations

import csv

import pytest

from slipform_training.macco.rows import (
    COLUMNS,
    LARGEST_CELL,
    ConceptRow,
    Concepts,
    Phrase,
    concepts_of,
    read_concept_rows,
    write_concept_rows,
)
from slipform_training.mining.rows import InputError

# A row as the release has it, typed by hand.
RELEASED = {
    "filepath": "coco/train2014/1.jpg",
    "title": 'A man\'s "red" car\tis on\nthe road.',
    "object_list": "['man', 'car', 'road']",
    "relation_list": "['on']",
    "attribute_list": "['red']",
    "relation_phrase_list": "['car on road']",
    "attribute_phrase_list": "['red car']",
    "relation_attribute_phrase_bbox_list": "[{'red car': [[1, 2.5, 30, 40], [5, 6, 7, 8]], "
    "'car on road': [[0, 0, 10, 20]]}]",
    "neg_caption": "['A red man is on the car.']",
    "neg_image": "[12, 7]",
}


def write(path, *rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, RELEASED, delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_the_releases_row_is_read(tmp_path):
    (row,) = read_concept_rows(write(tmp_path / "d.tsv", RELEASED))
    assert (row.image, row.caption) == (RELEASED["filepath"], RELEASED["title"])
    assert row.concepts == Concepts(
        objects=["man", "car", "road"],
        relations=["on"],
        attributes=["red"],
        phrases=[
            Phrase("car on road", "relation", [[0, 0, 10, 20]]),
            Phrase("red car", "attribute", [[1, 2.5, 30, 40], [5, 6, 7, 8]]),
        ],
    )
    assert row.hard_captions == ["A red man is on the car."]
    assert row.hard_images == [12, 7]
    assert row.where == f"{tmp_path / 'd.tsv'}, line 3"  # the caption has a line break


def test_what_is_written_reads_as_the_release_does(tmp_path):
    (row,) = read_concept_rows(write(tmp_path / "d.tsv", RELEASED))
    plain = ConceptRow(image="2.jpg", caption="nothing here")
    write_concept_rows(tmp_path / "out.tsv", [row, plain])
    with (tmp_path / "out.tsv").open(newline="") as file:
        one, two = csv.DictReader(file, delimiter="\t")
    assert list(one) == [*RELEASED, "concreteness"]
    assert list(COLUMNS) == list(RELEASED)
    assert one["title"] == RELEASED["title"]

    def value(text):
        return eval(text, {"__builtins__": {}})  # another evaluator than the reader's

    for name in list(COLUMNS)[2:]:
        assert value(one[name]) == value(RELEASED[name])
        assert value(two[name]) == []
    assert next(read_concept_rows(tmp_path / "out.tsv")).concepts == row.concepts


def test_a_phrase_with_boxes_in_no_list_is_kept():
    found = concepts_of({"relation_attribute_phrase_bbox_list": "[{'cup on table': [[1,2,3,4]]}]"})
    assert found.phrases == [Phrase("cup on table", "relation", [[1, 2, 3, 4]])]


def test_concepts_survive_being_plain():
    (row,) = [Concepts(objects=["a"], phrases=[Phrase("red a", "attribute", [[1, 2, 3, 4]])])]
    assert Concepts.of_plain(row.plain()) == row


BOXES = "relation_attribute_phrase_bbox_list"


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        (BOXES, "[{'red car': [[10, 0, 5, 9]]}]", "'red car': box: got .*expected x1 <= x2"),
        (BOXES, "[{'red car': [[0, 9, 5, 0]]}]", "expected x1 <= x2 and y1 <= y2"),
        (BOXES, "[{'red car': [[0, 0, 1e999, 9]]}]", "expected finite numbers"),
        (BOXES, "[{'red car': [[0, 0, nan, 9]]}]", f"{BOXES}: got .*expected a Python list"),
        (BOXES, "[{'red car': [[0, 0, 9]]}]", r"expected \[x1, y1, x2, y2\]"),
        (BOXES, "[{'red car': [0, 0, 9, 9]}]", r"expected \[x1, y1, x2, y2\]"),
        (BOXES, "[{'red car': [['0', 0, 9, 9]]}]", "expected four numbers"),
        (BOXES, "[{'red car': 5}]", "expected a list of boxes"),
        (BOXES, "['red car']", "expected phrases with their boxes"),
        ("relation_list", "['on', 3]", "relation_list: got .*expected a list of texts"),
        ("relation_list", "on", "relation_list: got 'on', expected a Python list"),
        ("relation_list", "{'on': 1}", "relation_list: got dict, expected a list"),
        ("relation_list", "[" * 5000, "relation_list: got .*expected a Python list"),
        ("object_list", f"['{'x' * LARGEST_CELL}']", f"expected at most {LARGEST_CELL}"),
    ],
)
def test_a_broken_cell_is_an_error_that_names_the_row(tmp_path, column, cell, message):
    rows = [RELEASED, {**RELEASED, "title": "one line", column: cell}]
    with pytest.raises(InputError, match=message) as caught:
        list(read_concept_rows(write(tmp_path / "d.tsv", *rows)))
    assert str(caught.value).startswith(f"{tmp_path / 'd.tsv'}, line 4: ")


def test_a_cell_is_never_code(tmp_path):
    evil = f"__import__('pathlib').Path('{tmp_path / 'proof'}').touch()"
    with pytest.raises(InputError, match="expected a Python list"):
        list(read_concept_rows(write(tmp_path / "d.tsv", {**RELEASED, "object_list": evil})))
    assert not (tmp_path / "proof").exists()


def test_missing_columns_and_cells_are_named(tmp_path):
    path = tmp_path / "d.tsv"
    path.write_text("title\tfilepath\na dog\t1.jpg\n")
    with pytest.raises(InputError, match=r"d\.tsv lacks the columns object_list, relation_list"):
        list(read_concept_rows(path))
    path.write_text("\t".join(COLUMNS) + "\n1.jpg\ta dog\n")
    with pytest.raises(InputError, match="line 2: not as many cells as columns"):
        list(read_concept_rows(path))
