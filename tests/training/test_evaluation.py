"""The evaluator counts what SugarCrepe counts, and hides nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from slipform_training.evaluation import (
    CATEGORIES,
    SUGARCREPE_SIZES,
    Pair,
    evaluate_pairs,
    load_pairs,
    open_image_folder,
    save_pairs,
    verify_sizes,
)

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "sugarcrepe"

# On a circle, cosines are known: an image at 0 degrees is nearer to a text at 10 than to one at 20.
ANGLES = {"near": 10.0, "far": 20.0, "other side": 350.0, "opposite": 180.0}


def on_circle(degrees, length=1.0):
    angle = math.radians(degrees)
    return torch.tensor([length * math.cos(angle), length * math.sin(angle)])


def encode_texts(texts):
    return torch.stack([on_circle(ANGLES[text], length=3.0) for text in texts])


def encode_images(images):
    return torch.stack([on_circle(image, length=0.5) for image in images])


def load_image(filename):
    if filename.startswith("lost"):
        raise FileNotFoundError(filename)
    return 0.0


def pair(category, number, caption, negative, filename="a.png"):
    return Pair(category, str(number), filename, caption, negative)


PAIRS = [
    pair("swap_obj", 0, "near", "far"),
    pair("swap_obj", 1, "far", "near"),
    pair("swap_obj", 2, "near", "near"),
    pair("swap_obj", 3, "near", "opposite"),
    pair("add_att", 0, "near", "far"),
    pair("add_att", 1, "near", "far", "lost 2.png"),
    pair("add_att", 2, "far", "opposite", "lost 1.png"),
    pair("add_att", 3, "far", "opposite", "lost 2.png"),
]


def test_counts_wins_ties_and_missing_images():
    result = evaluate_pairs(PAIRS, encode_images, encode_texts, load_image=load_image)
    swap, add = result.categories["swap_obj"], result.categories["add_att"]
    assert (swap.pairs, swap.scored, swap.correct, swap.ties) == (4, 4, 2, 1)
    assert (add.pairs, add.scored, add.correct, add.ties) == (4, 1, 1, 0)
    assert swap.accuracy == 0.5
    assert add.accuracy == 1.0
    assert result.micro == pytest.approx(3 / 5)
    assert result.macro == pytest.approx(0.75)
    assert result.ties == 1
    assert result.missing == ("lost 1.png", "lost 2.png")


def test_reports_cosines_of_every_scored_pair():
    result = evaluate_pairs(PAIRS, encode_images, encode_texts, load_image=load_image)
    assert [(score.category, score.id) for score in result.scores] == [
        *[("swap_obj", str(i)) for i in range(4)],
        ("add_att", "0"),
    ]
    first = result.scores[0]
    assert first.positive == pytest.approx(math.cos(math.radians(10)), abs=1e-6)
    assert first.negative == pytest.approx(math.cos(math.radians(20)), abs=1e-6)
    assert [score.correct for score in result.scores] == [True, False, False, True, True]


def test_table_and_dictionary_say_the_same():
    result = evaluate_pairs(PAIRS, encode_images, encode_texts, load_image=load_image)
    table = result.table()
    assert "swap_obj          50.00       4     1        0" in table
    assert "missing images: 2\n  lost 1.png\n  lost 2.png" in table
    data = json.loads(json.dumps(result.to_dict()))
    assert data["categories"]["add_att"]["accuracy"] == 1.0
    assert data["macro"] == pytest.approx(0.75)
    assert data["missing"] == ["lost 1.png", "lost 2.png"]


def test_a_category_without_images_has_no_accuracy():
    lost = [pair("swap_obj", 0, "near", "far", "lost.png"), pair("add_att", 0, "near", "far")]
    result = evaluate_pairs(lost, encode_images, encode_texts, load_image=load_image)
    assert math.isnan(result.categories["swap_obj"].accuracy)
    assert math.isnan(result.macro)
    assert result.micro == 1.0
    assert result.to_dict()["categories"]["swap_obj"]["accuracy"] is None


def test_encodes_each_image_and_text_once_in_batches():
    seen = {"images": [], "texts": []}

    def count_images(images):
        seen["images"].append(len(images))
        return encode_images(images)

    def count_texts(texts):
        seen["texts"].append(list(texts))
        return encode_texts(texts)

    files = [*"abcba", "lost", "d"]
    many = [pair("swap_obj", i, "near", "far", name) for i, name in enumerate(files)]
    many.append(pair("swap_obj", 9, "other side", "opposite", "e"))
    evaluate_pairs(many, count_images, count_texts, load_image=load_image, batch_size=3)
    assert seen["images"] == [3, 2]
    assert seen["texts"] == [["near", "far", "other side"], ["opposite"]]


def test_the_batch_size_changes_nothing():
    results = [
        evaluate_pairs(
            PAIRS, encode_images, encode_texts, load_image=load_image, batch_size=size
        ).to_dict()
        for size in (1, 2, 256)
    ]
    assert results[0] == results[1] == results[2]


def test_features_must_be_finite_and_of_one_shape():
    def run(images=encode_images, texts=encode_texts, **options):
        return evaluate_pairs(PAIRS, images, texts, load_image=load_image, **options)

    with pytest.raises(ValueError, match=r"encode_images must return features \[1, D\], got \(2,"):
        run(images=lambda images: on_circle(0.0))
    with pytest.raises(ValueError, match="encode_texts must return finite features"):
        run(texts=lambda texts: torch.full((len(texts), 2), float("nan")))
    with pytest.raises(ValueError, match="encode_images must return finite features"):
        run(images=lambda images: torch.zeros(len(images), 2))
    with pytest.raises(ValueError, match="features of one size, got 2 and 3"):
        run(texts=lambda texts: torch.ones(len(texts), 3))
    with pytest.raises(ValueError, match="batch_size must be 1 or more, got 0"):
        run(batch_size=0)


def test_opens_images_as_rgb(tmp_path):
    Image.fromarray(np.full((2, 3), 7, dtype=np.uint8)).save(tmp_path / "grey.png")
    load = open_image_folder(tmp_path)
    image = load("grey.png")
    assert image.mode == "RGB"
    assert image.getpixel((0, 0)) == (7, 7, 7)
    with pytest.raises(FileNotFoundError):
        load("other.png")


def test_pairs_survive_the_files(tmp_path):
    save_pairs(PAIRS, tmp_path / "new")
    assert load_pairs(tmp_path / "new", categories=["swap_obj", "add_att"]) == PAIRS
    with pytest.raises(ValueError, match="unique ids, got '0' twice"):
        save_pairs([PAIRS[0], PAIRS[0]], tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be json"),
        ("[]", "must hold a dictionary id -> pair, got a list"),
        ('{"4": {"filename": "a.jpg", "caption": "a"}}', "id '4' must have .* 'negative_caption'"),
        ('{"4": {"filename": 3, "caption": "a", "negative_caption": "b"}}', "'filename'"),
        ('{"4": "a.jpg"}', "id '4'"),
    ],
)
def test_broken_files_are_named(tmp_path, text, message):
    (tmp_path / "swap_obj.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"swap_obj.json.*{message}"):
        load_pairs(tmp_path, categories=["swap_obj"])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"add_att\.json is missing"):
        load_pairs(tmp_path)


def test_sizes_are_those_published():
    assert sum(SUGARCREPE_SIZES.values()) == 7511
    full = [
        pair(category, i, "near", "far")
        for category, size in SUGARCREPE_SIZES.items()
        for i in range(size)
    ]
    verify_sizes(full)
    with pytest.raises(ValueError, match=r"'swap_obj': \(244, 245\)"):
        verify_sizes(full[:-1])
    with pytest.raises(ValueError, match=r"'swap_rel': \(1, 0\)"):
        verify_sizes([*full, pair("swap_rel", 0, "near", "far")])


@pytest.mark.skipif(not REAL.is_dir(), reason="SugarCrepe's files are not here")
def test_the_real_files():
    pairs = load_pairs(REAL)
    verify_sizes(pairs)
    assert [*dict.fromkeys(pair.category for pair in pairs)] == list(CATEGORIES)
    for category in CATEGORIES:
        rows = json.loads((REAL / f"{category}.json").read_text(encoding="utf-8"))
        own = [pair for pair in pairs if pair.category == category]
        assert [pair.id for pair in own] == list(rows)
        assert own[-1].negative_caption == rows[own[-1].id]["negative_caption"]
    files = {pair.filename for pair in pairs}

    def encode(items):
        return torch.ones(len(items), 4)

    def load(filename):
        if filename == pairs[0].filename:
            raise FileNotFoundError(filename)
        return filename

    result = evaluate_pairs(pairs, encode, encode, load_image=load)
    lost = sum(pair.filename == pairs[0].filename for pair in pairs)
    assert result.missing == (pairs[0].filename,)
    assert len(result.scores) == 7511 - lost
    assert result.ties == 7511 - lost
    assert result.micro == 0.0
    assert len(files) > 1000
