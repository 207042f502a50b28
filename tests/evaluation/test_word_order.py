"""ARO's shuffles: what moves, what stays, and that a seed says it all."""

from __future__ import annotations

import json
from collections import Counter

import pytest

pytest.importorskip("spacy")
pytest.importorskip("nltk")
from slipform_training.evaluation.suites import SUITES, Request
from slipform_training.evaluation.suites.word_order import cleaned, shuffled_captions

CAPTION = "The small brown dog quickly chased seven angry cats across a wet garden"
NOUNS = {"dog", "cats", "garden"}
ADJECTIVES = {"small", "brown", "angry", "wet"}


def shuffles(seed, key="a", caption=CAPTION):
    return next(shuffled_captions([(key, caption)], seed=seed))


def test_each_shuffle_moves_its_own_words():
    true = CAPTION.lower().split()
    for seed in range(20):
        caption, nouns, others, within, runs = (text.split() for text in shuffles(seed))
        assert caption == true
        for changed in (nouns, others, within, runs):
            assert Counter(changed) == Counter(true)
        for before, after in zip(true, nouns, strict=True):
            kinds = [before in NOUNS, before in ADJECTIVES]
            assert [after in NOUNS, after in ADJECTIVES] == kinds
            assert any(kinds) or after == before
        for before, after in zip(true, others, strict=True):
            fixed = before in NOUNS | ADJECTIVES
            assert after == before if fixed else after not in NOUNS | ADJECTIVES
        threes = [true[i : i + 3] for i in range(0, len(true), 3)]
        for start, run in zip(range(0, len(true), 3), threes, strict=True):
            assert sorted(within[start : start + 3]) == sorted(run)
        kept = " ".join(runs)
        assert all(" ".join(run) in kept for run in threes)


def test_every_order_is_drawn():
    drawn = [{shuffles(seed)[kind] for seed in range(20)} for kind in range(5)]
    assert len(drawn[0]) == 1
    assert all(len(found) > 10 for found in drawn[1:])


def test_seed_and_id_decide():
    assert shuffles(3) == shuffles(3)
    assert shuffles(3) != shuffles(4)
    assert shuffles(3, "a") != shuffles(3, "b")
    both = list(shuffled_captions([("x", "A dog"), ("a", CAPTION)], seed=3))
    assert both[1] == shuffles(3)


def test_captions_are_cleaned_as_in_the_release():
    assert cleaned('A "big"  dog; (two:) cats!\n') == "a big dog two cats"
    assert cleaned(" ".join(["word"] * 40)).count("word") == 30


def test_karpathys_file_becomes_five_options(tmp_path):
    rows = [
        {"image": "val2014/a.jpg", "caption": [CAPTION, "A dog."]},
        {"image": "val2014/b.jpg", "caption": ["Two red birds on a green tree near a blue lake."]},
    ]
    (tmp_path / "coco_karpathy_test.json").write_text(json.dumps(rows))
    reading = SUITES["coco_order"].read(Request(tmp_path, seed=1))
    images = [item.images[0].name for item in reading.items]
    assert images[0] == "val2014/a.jpg"
    assert images[-1] == "val2014/b.jpg"
    for item in reading.items:
        assert item.texts[0] not in item.texts[1:]
    left_out = reading.left_out.get("shuffles equal to the caption", 0)
    alone = reading.left_out.get("captions without another order", 0)
    assert len(reading.items) == 3 - alone
    assert sum(len(item.texts) - 1 for item in reading.items) == 3 * 4 - left_out
    again = SUITES["coco_order"].read(Request(tmp_path, seed=1))
    assert again.items == reading.items
    assert SUITES["coco_order"].read(Request(tmp_path, seed=2)).items != reading.items
