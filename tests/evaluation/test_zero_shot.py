"""Zero-shot classification: against open_clip's own, ties, names, folders and tables."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("open_clip")

import open_clip

from slipform_training.evaluation.labelled import read_class_folders, read_label_table
from slipform_training.evaluation.zero_shot import (
    class_names,
    classify,
    evaluate_zero_shot,
    read_templates,
)
from slipform_training.train.images import load_image
from slipform_training.train.model import create_model
from support.train_files import draw_image, tiny_model


class Source:
    """A model straight through open_clip, one input at a time."""

    def __init__(self, parts):
        self.parts = parts

    @torch.no_grad()
    def images(self, items):
        pixels = torch.stack([self.parts.prepare(load_image(item.path)) for item in items])
        return self.parts.model.encode_image(pixels, normalize=True)

    @torch.no_grad()
    def texts(self, texts):
        return self.parts.model.encode_text(self.parts.tokenizer(list(texts)), normalize=True)


@pytest.fixture
def folder(tmp_path):
    for number in range(12):
        name = ("grey_wolf", "arctic_fox", "tench")[number % 3]
        draw_image(tmp_path / "pictures" / name / f"{number}.jpg", number)
    (tmp_path / "pictures" / "tench" / "notes.txt").write_text("not a picture")
    return tmp_path / "pictures"


def test_it_equals_open_clips_classifier(folder, tmp_path):
    parts = create_model(tiny_model(tmp_path))
    parts.model.eval()
    source = Source(parts)
    data = read_class_folders(folder)
    assert [path.name for path in data.ignored] == ["notes.txt"]
    names = class_names(data.classes())
    assert names == ["arctic fox", "grey wolf", "tench"]
    found = evaluate_zero_shot(data, source, names=names, templates=read_templates("openai"))
    weights = open_clip.build_zero_shot_classifier(
        parts.model, parts.tokenizer, names, open_clip.OPENAI_IMAGENET_TEMPLATES
    )
    paths = sorted(folder.rglob("*.jpg"))
    pixels = torch.stack([parts.prepare(load_image(path)) for path in paths])
    with torch.no_grad():
        logits = parts.model.encode_image(pixels, normalize=True) @ weights
    truth = torch.tensor([sorted(data.classes()).index(path.parent.name) for path in paths])
    correct = logits.argmax(1) == truth
    assert found.top(1) == correct.double().mean().item()
    per_class = [correct[truth == c].double().mean().item() for c in range(3)]
    assert found.mean_by_class() == pytest.approx(sum(per_class) / 3)
    assert list(found.by_class()) == ["arctic_fox", "grey_wolf", "tench"]
    assert found.top(5) == 1.0


def test_mean_per_class_weighs_classes_alike_and_ties_are_wrong():
    classes = torch.eye(3)
    images = torch.eye(3)[[0, 0, 0, 1, 2]]
    images[4] = torch.tensor([0.0, 2**-0.5, 2**-0.5])  # classes 1 and 2 alike
    found = classify(images, classes, torch.tensor([0, 0, 0, 0, 2]), ("a", "b", "c"))
    assert found.top(1) == pytest.approx(3 / 5)
    assert found.by_class() == {"a": 0.75, "c": 0.0}
    assert found.mean_by_class() == pytest.approx(0.375)
    assert found.ties == 2  # image 3: classes a and c at 0
    assert found.ranks.tolist() == [0, 0, 0, 2, 1]


def test_a_collapsed_model_scores_nothing():
    same = torch.nn.functional.normalize(torch.randn(1, 301), dim=1)
    found = classify(same.repeat(50, 1), same.repeat(7, 1), torch.arange(50) % 7, tuple("abcdefg"))
    assert found.top(5) == 0
    assert found.ties == 50


def test_names_come_from_json_or_lines(tmp_path):
    folders = ("n01440764", "n02119022")
    (tmp_path / "map.json").write_text(json.dumps({"n02119022": "fox", "n01440764": "tench"}))
    (tmp_path / "list.json").write_text(json.dumps(["tench", "fox"]))
    (tmp_path / "list.txt").write_text("tench\nfox\n")
    for name in ("map.json", "list.json", "list.txt"):
        assert class_names(folders, tmp_path / name) == ["tench", "fox"]
    (tmp_path / "list.txt").write_text("tench\n")
    with pytest.raises(ValueError, match="got 1 names, expected 2"):
        class_names(folders, tmp_path / "list.txt")
    (tmp_path / "map.json").write_text(json.dumps({"n01440764": "tench"}))
    with pytest.raises(ValueError, match="no names for n02119022"):
        class_names(folders, tmp_path / "map.json")


def test_templates(tmp_path):
    assert len(read_templates("openai")) == 80
    assert len(read_templates("simple")) == 7
    path = tmp_path / "mine.txt"
    path.write_text("a {} on a table\n\n{}\n")
    assert read_templates(str(path)) == ["a {} on a table", "{}"]
    path.write_text("no place\n")
    with pytest.raises(ValueError, match="expected lines with"):
        read_templates(str(path))
    with pytest.raises(ValueError, match="templates: got 'opneai'"):
        read_templates("opneai")


def test_a_table_of_several_labels(tmp_path):
    path = tmp_path / "voc.csv"
    path.write_text("image,labels\na.jpg,dog;person\nb.jpg,\nc.jpg,dog\n")
    data = read_label_table(
        path, root=tmp_path, image_column="image", label_column="labels", delimiter=";"
    )
    assert data.labels == (("dog", "person"), (), ("dog",))
    assert data.classes() == ("dog", "person")
    expected = torch.tensor([[True, True], [False, False], [True, False]])
    assert torch.equal(data.indicators(("dog", "person")), expected)
    assert data.take([2]).paths == (tmp_path / "c.jpg",)
    with pytest.raises(ValueError, match="line 3: no image or no label"):
        read_label_table(path, root=tmp_path, image_column="image", label_column="labels")
    with pytest.raises(ValueError, match="label_column: got 'label', expected a column of"):
        read_label_table(path, root=tmp_path, image_column="image")


def test_folders_must_hold_images(tmp_path):
    with pytest.raises(ValueError, match="a subfolder for each class"):
        read_class_folders(tmp_path / "absent")
    (tmp_path / "fox").mkdir()
    with pytest.raises(ValueError, match="fox: got no images"):
        read_class_folders(tmp_path)
