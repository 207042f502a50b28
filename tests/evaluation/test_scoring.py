"""The scoring rules against formulas written out, and what a tie is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from slipform_training.evaluation.scoring import (
    CHOICE,
    CROSSED,
    TEXT_ONLY,
    TWO_POSITIVES,
    Count,
    count,
    group_margins,
    macro,
    margins,
    micro,
)


def unit(*shape):
    return torch.nn.functional.normalize(torch.randn(*shape), dim=-1)


def cosine(left, right):
    return sum(float(a) * float(b) for a, b in zip(left, right, strict=True))


def rows(count, width):
    return [[int(i) for i in torch.randint(0, 9, (width,))] for _ in range(count)]


def test_a_choice_is_won_against_every_other_text():
    images, texts = unit(9, 5), unit(9, 5)
    image_of = rows(40, 1)
    text_of = [rows(1, 2 + i % 4)[0] for i in range(40)]
    found = margins(CHOICE, images, texts, image_of, text_of)["accuracy"]
    for item in range(40):
        image = images[image_of[item][0]]
        own = [cosine(image, texts[place]) for place in text_of[item]]
        assert found[item] == pytest.approx(own[0] - max(own[1:]), abs=1e-12)


def test_both_positives_beat_the_negative():
    images, texts = unit(9, 5), unit(9, 5)
    image_of, text_of = rows(40, 1), rows(40, 3)
    found = margins(TWO_POSITIVES, images, texts, image_of, text_of)
    for item in range(40):
        image = images[image_of[item][0]]
        first, second, false = (cosine(image, texts[place]) for place in text_of[item])
        assert found["both"][item] == pytest.approx(min(first, second) - false, abs=1e-12)
        assert found["first"][item] == pytest.approx(first - false, abs=1e-12)
        assert found["second"][item] == pytest.approx(second - false, abs=1e-12)


def test_the_text_only_task_compares_texts():
    texts = unit(9, 5)
    text_of = rows(40, 3)
    found = margins(TEXT_ONLY, texts, texts, text_of, text_of)["both"]
    for item in range(40):
        first, second, false = (texts[place] for place in text_of[item])
        best_false = max(cosine(first, false), cosine(second, false))
        assert found[item] == pytest.approx(cosine(first, second) - best_false, abs=1e-12)


def test_winogrounds_three_scores():
    images, texts = unit(9, 5), unit(9, 5)
    image_of, text_of = rows(200, 2), rows(200, 2)
    found = margins(CROSSED, images, texts, image_of, text_of)
    seen = set()
    for item in range(200):
        (i0, i1), (c0, c1) = image_of[item], text_of[item]
        c0_i0, c0_i1 = cosine(texts[c0], images[i0]), cosine(texts[c0], images[i1])
        c1_i0, c1_i1 = cosine(texts[c1], images[i0]), cosine(texts[c1], images[i1])
        if i0 == i1 or c0 == c1:
            assert found["group"][item] <= 0
            continue
        text = c0_i0 > c1_i0 and c1_i1 > c0_i1
        image = c0_i0 > c0_i1 and c1_i1 > c1_i0
        assert (found["text"][item] > 0) == text
        assert (found["image"][item] > 0) == image
        assert (found["group"][item] > 0) == (text and image)
        seen.add((text, image))
    assert len(seen) == 4


def test_large_sets_are_scored_in_parts():
    images, texts = unit(9, 5), unit(9, 5)
    image_of, text_of = rows(5000, 1), rows(5000, 2)
    whole = margins(CHOICE, images, texts, image_of, text_of)["accuracy"]
    parts = [
        margins(CHOICE, images, texts, [image], [text])["accuracy"][0]
        for image, text in zip(image_of[:50], text_of[:50], strict=True)
    ]
    assert whole[:50].tolist() == parts
    assert not np.isnan(whole).any()


def test_equal_features_tie_exactly_whatever_their_place():
    feature = unit(1, 512)
    texts = feature.repeat(300, 1)
    image_of, text_of = rows(300, 1), [[i, 299 - i, 7] for i in range(300)]
    found = margins(CHOICE, unit(9, 512), texts, image_of, text_of)["accuracy"]
    assert (found == 0).all()
    assert count(found, items=300, near=1e-6) == Count(300, 300, 0, 300, 300)


def test_counts_and_means():
    margin = np.array([0.5, 0.0, -0.2, 5e-7, -5e-7])
    one = count(margin, items=7, near=1e-6)
    assert one == Count(items=7, scored=5, correct=2, ties=1, near_ties=3)
    assert one.accuracy == 2 / 5
    other = Count(items=30, scored=10, correct=9, ties=0, near_ties=0)
    assert micro({"a": one, "b": other}) == Count(37, 15, 11, 1, 3)
    assert macro({"a": one, "b": other}) == pytest.approx((0.4 + 0.9) / 2)
    assert macro({"a": one, "b": other}, at_least=25) == pytest.approx(0.9)
    empty = count(np.array([]), items=3, near=1e-6)
    assert math.isnan(empty.accuracy)
    assert math.isnan(macro({"a": one, "b": empty}))


def test_a_group_is_as_good_as_its_worst_member():
    margin = np.array([0.5, 0.2, 0.0, -0.1])
    assert group_margins(margin, [[0, 1], [1, 2], [0, 1, 2, 3]]).tolist() == [0.2, 0.0, -0.1]
    assert group_margins(margin, []).shape == (0,)
