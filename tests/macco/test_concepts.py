"""Concepts of plain captions: known sentences, and what must hold of any."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

pytest.importorskip("spacy")

from slipform_training.macco.concepts import ConceptTagger

REAL = Path(__file__).parents[2].parent / "shared" / "data"

# Caption; objects, attributes, relations, phrases: by hand.
KNOWN = [
    (
        "A man riding a brown horse on the beach.",
        ["man", "horse", "beach"],
        ["brown"],
        ["riding", "on"],
        ["man riding horse", "brown horse"],
    ),
    ("The car is red.", ["car"], ["red"], [], ["red car"]),
    (
        "A woman in a dark blue shirt is holding a cup.",
        ["woman", "shirt", "cup"],
        ["dark blue"],
        ["in", "holding"],
        ["woman in shirt", "woman holding cup", "dark blue shirt"],
    ),
    (
        "a long green and white bus driving down the road",
        ["bus", "road"],
        ["long", "green", "white"],
        ["driving down"],
        ["bus driving down road", "long bus", "green bus", "white bus"],
    ),
    (
        "A group of horses standing on top of a lush hillside.",
        ["horses", "hillside"],
        ["lush"],
        ["standing on top of"],
        ["horses standing on top of hillside", "lush hillside"],
    ),
    (
        "A pole is holding up street signs at night.",
        ["pole", "street signs"],
        [],
        ["holding up"],
        ["pole holding up street signs"],
    ),
    (
        "A white cup on the wooden table next to a hot dog.",
        ["cup", "table", "hot dog"],
        ["white", "wooden"],
        ["on", "next to"],
        ["cup on table", "white cup", "wooden table"],
    ),
    ("A close up of a plate with food.", ["plate", "food"], [], ["with"], []),
    ("Mountains in the background.", ["Mountains"], [], [], []),
    ("", [], [], [], []),
    ("!!! 123", [], [], [], []),
]


@pytest.mark.parametrize("known", KNOWN, ids=[one[0] for one in KNOWN])
def test_known_captions(known):
    caption, objects, attributes, relations, phrases = known
    (found,) = ConceptTagger().tag([caption])
    assert found.objects == objects
    assert found.attributes == attributes
    assert found.relations == relations
    texts = [one.text for one in found.phrases]
    assert set(phrases) <= set(texts)
    assert len(texts) == len(set(texts))


def test_kinds_and_nouns_of_phrases():
    (found,) = ConceptTagger().tag(["A man riding a brown horse."])
    kinds = {one.text: (one.kind, list(one.nouns)) for one in found.phrases}
    assert kinds == {
        "man riding horse": ("relation", ["man", "horse"]),
        "brown horse": ("attribute", ["horse"]),
    }


def test_a_pronoun_makes_no_phrase():
    (found,) = ConceptTagger().tag(["A street with a bus on it."])
    assert found.relations == ["with", "on"]
    assert [one.text for one in found.phrases] == ["street with bus"]


def real_captions():
    with (REAL / "negclip" / "valid_neg_clip.tsv").open(newline="") as file:
        captions = [row["title"] for row in csv.DictReader(file, delimiter="\t")][::12]
    annotations = json.loads((REAL / "coco_by" / "captions.json").read_text())["annotations"]
    return captions + [one["caption"] for one in annotations]


@pytest.mark.skipif(not (REAL / "negclip").is_dir(), reason="no ../shared/data")
def test_words_stand_in_the_caption_as_often_as_they_are_listed():
    captions = real_captions()
    tagged = ConceptTagger().tag(captions)
    for caption, found in zip(captions, tagged, strict=True):
        words = [*found.attributes, *found.relations]
        for word in words:
            assert word in caption
            assert caption.count(word) >= words.count(word)
        nouns = set(found.objects)
        for one in found.phrases:
            assert set(one.nouns) <= nouns
            assert all(noun in one.text for noun in one.nouns)
    # Photos are described by what things do and where they are.
    assert sum(bool(one.objects) for one in tagged) > 0.99 * len(tagged)
    assert sum(bool(one.relations) for one in tagged) > 0.9 * len(tagged)


def test_a_batch_gives_what_single_captions_give():
    captions = [one[0] for one in KNOWN]
    tagger = ConceptTagger()
    assert tagger.tag(captions) == [tagger.tag([caption])[0] for caption in captions]


def test_a_missing_pipeline_is_named():
    with pytest.raises(RuntimeError, match="no_such_pipeline is missing"):
        ConceptTagger("no_such_pipeline").tag(["a dog"])
