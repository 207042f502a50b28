"""Test pairs of scenes: the caption is true, the negative is false, and only the picture tells."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from slipform_training.evaluation import CATEGORIES, load_pairs
from slipform_training.scenes import (
    PHRASINGS,
    SceneConfig,
    Scenes,
    build_pairs,
    pair_images,
    write_pairs,
)
from support.scene_truth import holds, parse, plain_words

PER_CATEGORY = 150


@pytest.fixture(scope="module")
def scenes():
    return Scenes()


@pytest.fixture(scope="module")
def pairs(scenes):
    return build_pairs(scenes, per_category=PER_CATEGORY)


def of(pairs, category):
    return [pair for pair in pairs if pair.category == category]


def held_out(scenes, caption):
    """(noun pairs, colours) of the caption that are held out."""
    objects, _ = parse(caption)
    nouns = [item["noun"] for item in objects]
    return (
        sum(frozenset(two) in scenes.heldout.pairs for two in combinations(nouns, 2)),
        sum((item["colour"], item["noun"]) in scenes.heldout.colours for item in objects),
    )


@pytest.mark.parametrize(
    "config",
    [
        SceneConfig(),
        SceneConfig(relations=("left", "above")),
        SceneConfig(object_counts=(3, 4), phrasings=tuple(PHRASINGS), size_share=0.6),
        SceneConfig(heldout_colours=0.0, bare_share=0.4, single_share=0.4),
    ],
    ids=["default", "two relations", "three and four objects", "few colours named"],
)
@pytest.mark.parametrize("split", ["heldout", "train"])
def test_captions_hold_and_negatives_do_not(config, split):
    scenes = Scenes(config)
    pairs = build_pairs(scenes, per_category=40, split=split, seed=3)
    assert Counter(pair.category for pair in pairs) == dict.fromkeys(CATEGORIES, 40)
    for pair in pairs:
        assert pair.scene.split == split
        assert holds(pair.caption, pair.scene), pair
        assert not holds(pair.negative_caption, pair.scene), pair


def test_pairs_are_reproducible_and_differ_by_seed(scenes, pairs):
    assert build_pairs(Scenes(), per_category=PER_CATEGORY) == pairs
    other = build_pairs(scenes, per_category=PER_CATEGORY, seed=1)
    assert {pair.caption for pair in pairs} != {pair.caption for pair in other}
    for category in CATEGORIES:
        own = of(pairs, category)
        assert len({(pair.caption, pair.negative_caption) for pair in own}) == len(own)


@pytest.mark.parametrize("category", ["swap_obj", "swap_att"])
def test_swaps_keep_the_words(pairs, category):
    for pair in of(pairs, category):
        caption, negative = plain_words(pair.caption), plain_words(pair.negative_caption)
        assert caption != negative
        assert sorted(caption) == sorted(negative)


@pytest.mark.parametrize(("category", "field"), [("swap_obj", "noun"), ("swap_att", "other")])
def test_a_swap_exchanges_what_its_name_says(pairs, category, field):
    for pair in of(pairs, category):
        (first, relation), (second, other) = parse(pair.caption), parse(pair.negative_caption)
        assert relation == other
        if field == "noun":
            assert second == [first[1], first[0]]
        else:
            assert [x["noun"] for x in first] == [x["noun"] for x in second]


@pytest.mark.parametrize("category", ["replace_obj", "replace_att"])
def test_replacements_change_one_word(pairs, category):
    for pair in of(pairs, category):
        caption, negative = plain_words(pair.caption), plain_words(pair.negative_caption)
        assert len(caption) == len(negative)
        assert sum(a != b for a, b in zip(caption, negative, strict=True)) == 1


def test_a_replaced_relation_is_all_that_changes(pairs):
    for pair in of(pairs, "replace_rel"):
        (first, relation), (second, other) = parse(pair.caption), parse(pair.negative_caption)
        assert first == second
        assert relation != other


@pytest.mark.parametrize("category", ["add_obj", "add_att"])
def test_additions_only_add(pairs, category):
    for pair in of(pairs, category):
        caption, negative = Counter(plain_words(pair.caption)), Counter()
        negative.update(plain_words(pair.negative_caption))
        assert not caption - negative
        added = sum((negative - caption).values())
        assert added == 1 if category == "add_att" else 3 <= added <= 5


def test_both_captions_are_equally_unseen(scenes, pairs):
    for pair in pairs:
        caption = held_out(scenes, pair.caption)
        assert caption == held_out(scenes, pair.negative_caption), pair
        assert caption[0] == 1
        if pair.category in ("swap_att", "replace_att"):
            assert caption[1] >= 1


@pytest.mark.parametrize("category", ["replace_obj", "replace_att", "replace_rel"])
def test_no_word_gives_a_replacement_away(scenes, category):
    pairs = build_pairs(scenes, per_category=600, categories=[category])
    true, false = Counter(), Counter()
    for pair in pairs:
        true.update(plain_words(pair.caption))
        false.update(plain_words(pair.negative_caption))
    for word in set(true) | set(false):
        # Were captions and negatives drawn alike, four deviations would be exceeded about once
        # in 16,000 words.
        assert abs(true[word] - false[word]) <= 4 * (true[word] + false[word]) ** 0.5, word
    lengths = [len(plain_words(p.caption)) - len(plain_words(p.negative_caption)) for p in pairs]
    assert abs(np.mean(lengths)) <= 4 * np.std(lengths) / len(lengths) ** 0.5


def test_no_order_gives_a_swap_away(scenes):
    pairs = build_pairs(scenes, per_category=400, categories=["swap_obj"])
    first_is_lower = [
        (lambda nouns: nouns[0] < nouns[1])([item["noun"] for item in parse(pair.caption)[0]])
        for pair in pairs
    ]
    assert abs(np.mean(first_is_lower) - 0.5) < 4 * 0.5 / 400**0.5


def test_written_pairs_come_back(scenes, pairs, tmp_path):
    few = [pair for pair in pairs if int(pair.id) < 3]
    write_pairs(few, scenes, tmp_path)
    rows = json.loads((tmp_path / "swap_obj.json").read_text(encoding="utf-8"))
    assert list(rows) == ["0", "1", "2"]
    assert set(rows["0"]) == {"filename", "caption", "negative_caption"}
    read = load_pairs(tmp_path)
    load = pair_images(few, scenes)
    assert len(read) == len(few)
    for pair, own in zip(read, few, strict=True):
        for name in ("category", "id", "filename", "caption", "negative_caption"):
            assert getattr(pair, name) == getattr(own, name)
        with Image.open(tmp_path / "images" / pair.filename) as image:
            np.testing.assert_array_equal(np.asarray(image), scenes.render(own.scene))
        np.testing.assert_array_equal(load(pair.filename), scenes.render(own.scene))
    with pytest.raises(FileNotFoundError, match=r"no pair has the image 'x\.png'"):
        load("x.png")


def test_impossible_pairs_are_refused(scenes):
    with pytest.raises(ValueError, match=r"categories must be of .* got 'swap_rel'"):
        build_pairs(scenes, categories=["swap_rel"])
    with pytest.raises(RuntimeError, match="gives 0 pairs of replace_rel in 2000 tries"):
        build_pairs(
            Scenes(SceneConfig(relations=("left",))), per_category=1, categories=["replace_rel"]
        )
