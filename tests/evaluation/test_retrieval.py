"""Retrieval against a brute-force definition, ties, readers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("PIL")

from slipform_training.evaluation import retrieval
from slipform_training.evaluation.encoder import ImageItem
from slipform_training.evaluation.retrieval import evaluate_retrieval, retrieve
from slipform_training.evaluation.retrieval_data import (
    read_captions,
    read_karpathy,
    read_retrieval,
)
from slipform_training.mining.readers import Columns

REAL = Path(__file__).parents[2].parent / "shared" / "data"


def unit(rows, seed, dim=8):
    features = np.random.default_rng(seed).standard_normal((rows, dim))
    return torch.tensor(features / np.linalg.norm(features, axis=1, keepdims=True)).float()


def brute_force(images, texts, owner):
    """Ranks from 0 and queries with a tie, straight from the definition, one pair at a time."""
    table = (images.double() @ texts.double().T).float().numpy()
    by_image, by_text, ties = [], [], [0, 0]
    for i, row in enumerate(table):
        best = max(row[j] for j in range(len(owner)) if owner[j] == i)
        others = [row[j] for j in range(len(owner)) if owner[j] != i]
        by_image.append(sum(value >= best for value in others))
        ties[0] += any(value == best for value in others)
    for j, column in enumerate(table.T):
        others = [column[i] for i in range(len(images)) if i != owner[j]]
        by_text.append(sum(value >= column[owner[j]] for value in others))
        ties[1] += any(value == column[owner[j]] for value in others)
    return by_image, by_text, ties


@pytest.mark.parametrize("block", [3, 7, 1024])
@pytest.mark.parametrize("repeats", [1, 5])
def test_it_equals_brute_force_with_several_captions_an_image(block, repeats, monkeypatch):
    monkeypatch.setattr(retrieval, "_BLOCK", block)
    images = unit(23, 0)
    owner = np.random.default_rng(1).permutation(np.repeat(np.arange(23), repeats))
    owner = np.concatenate([owner, [4, 4, 9]])  # not all have as many
    texts = unit(len(owner), 2) + 0.7 * images[owner]
    texts = texts / texts.norm(dim=1, keepdim=True)
    texts[3] = texts[0]
    images[5] = images[8]
    found = retrieve(images, texts, owner.tolist())
    by_image, by_text, ties = brute_force(images, texts, owner)
    assert found.image_to_text.ranks.tolist() == by_image
    assert found.text_to_image.ranks.tolist() == by_text
    assert [found.image_to_text.ties, found.text_to_image.ties] == ties
    assert ties[1] >= 2  # the captions of images 5 and 8
    for k in (1, 5, 10):
        expected = np.mean([rank < k for rank in by_text])
        assert found.text_to_image.recall(k) == pytest.approx(expected, abs=1e-12)
    assert found.image_to_text.median_rank == np.median(by_image) + 1


def test_an_image_is_answered_by_any_of_its_captions():
    images = torch.eye(3)
    texts = torch.stack([images[1], images[0], images[1], images[2]])  # the first is wrong
    found = retrieve(images, texts, [0, 0, 1, 2])
    assert found.image_to_text.ranks.tolist() == [0, 1, 0]  # image 1: the wrong one ties
    assert found.image_to_text.ties == 1
    assert found.text_to_image.ranks.tolist() == [2, 0, 0, 0]


def test_a_collapsed_model_scores_nothing():
    same = unit(1, 3, dim=513)
    found = retrieve(same.repeat(37, 1), same.repeat(111, 1), torch.arange(111) % 37)
    for one in (found.image_to_text, found.text_to_image):
        assert one.recall(10) == 0
        assert one.ties == len(one.ranks)
    assert "0.00" in found.table()


@pytest.mark.parametrize(
    ("owner", "message"),
    [
        ([0, 1], "image_of: got [2], expected [3]"),
        ([0, 1, 1], "image_of: got 2 images, expected each of 3"),
        ([0, 1, 7], "image_of: got 3 images, expected each of 3"),
    ],
)
def test_captions_must_belong_to_images(owner, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        retrieve(unit(3, 0), unit(3, 1), owner)


def karpathy(path, entries):
    images = [
        {
            **({"filepath": folder} if folder else {}),
            "filename": name,
            "split": split,
            "sentences": [{"raw": text, "tokens": []} for text in texts],
        }
        for folder, name, split, texts in entries
    ]
    path.write_text(json.dumps({"dataset": "coco", "images": images}))
    return path


def test_karpathys_json_is_read_by_split(tmp_path):
    path = karpathy(
        tmp_path / "dataset_coco.json",
        [
            ("val2014", "a.jpg", "test", ["A cat.", "One cat"]),
            ("train2014", "b.jpg", "restval", ["A dog."]),
            ("", "c.jpg", "test", ["A bird."]),
        ],
    )
    data = read_karpathy(path)
    assert data.images == ("val2014/a.jpg", "c.jpg")
    assert data.captions == ("A cat.", "One cat", "A bird.")
    assert data.image_of == (0, 0, 1)
    rest = data.where(lambda name: name == "c.jpg")
    assert (rest.images, rest.captions, rest.image_of) == (("c.jpg",), ("A bird.",), (0,))
    with pytest.raises(ValueError, match=r"split: got 'val', expected one of .*restval, test"):
        read_karpathy(path, split="val")
    assert read_retrieval(path) == data
    for text in ("{}", '{"images": [{"split": "test"}]}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"Karpathy's json|no 'filename'"):
            read_retrieval(path)
    path.write_text("no json")
    with pytest.raises(ValueError, match="cannot be read as json"):
        read_retrieval(path)


@pytest.mark.skipif(not (REAL / "coco_by").is_dir(), reason="no ../shared/data")
def test_cocos_captions_are_read_by_image():
    data = read_retrieval(REAL / "coco_by" / "captions.json")
    found = json.loads((REAL / "coco_by" / "captions.json").read_text())
    assert len(data.images) == len(found["images"]) == 26
    assert len(data.captions) == len(found["annotations"])
    names = {image["id"]: image["file_name"] for image in found["images"]}
    for annotation, caption, image in zip(
        found["annotations"], data.captions, data.image_of, strict=True
    ):
        assert caption == annotation["caption"]
        assert data.images[image] == names[annotation["image_id"]]


def test_a_table_groups_the_captions_of_an_image(tmp_path):
    path = tmp_path / "captions.tsv"
    path.write_text("picture\ttext\nx.png\tone\ny.png\ttwo\nx.png\tthree\n")
    data = read_captions(path, Columns(image="picture", caption="text"))
    assert data.images == ("x.png", "y.png")
    assert data.image_of == (0, 1, 0)
    path.write_text("picture\ttext\n\tone\n")
    with pytest.raises(ValueError, match="has no image"):
        read_captions(path, Columns(image="picture", caption="text"))


def test_the_source_gets_paths_and_captions_in_order(tmp_path):
    class Source:
        def images(self, items):
            self.items = items
            return torch.eye(2)

        def texts(self, texts):
            self.asked = texts
            return torch.eye(2)[[0, 1, 0]]

    path = tmp_path / "captions.csv"
    path.write_text("filepath,title\nx.png,one\ny.png,two\nx.png,three\n")
    source = Source()
    found = evaluate_retrieval(read_captions(path), source, root=tmp_path)
    assert source.items == [ImageItem(tmp_path / "x.png"), ImageItem(tmp_path / "y.png")]
    assert list(source.asked) == ["one", "two", "three"]
    assert found.to_dict()["image_to_text"] == {
        "queries": 2, "R@1": 1.0, "R@5": 1.0, "R@10": 1.0, "median_rank": 1.0, "ties": 0
    }  # fmt: skip
