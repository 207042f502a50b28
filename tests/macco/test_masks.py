"""The masks of a sample together: how often each kind comes, and what is counted."""

from __future__ import annotations

import pytest

pytest.importorskip("open_clip")

from open_clip.tokenizer import SimpleTokenizer
from open_clip.transform import image_transform

from slipform_training.data import Stream
from slipform_training.macco.crop import Crop, RecordedCrop
from slipform_training.macco.masks import COUNTED, ConceptMasks
from slipform_training.macco.patch_mask import Grid
from slipform_training.macco.rows import Concepts, Phrase
from slipform_training.macco.word_mask import WordFinder

GRID = Grid(224, 224, 32, 32)
PART = Crop(0, 0, 224, 224, 300, 224)
CAPTION = "a red car on a road"
LEFT = Phrase("red car", "attribute", [[0, 0, 32, 224]])
TOP = Phrase("car on road", "relation", [[0, 0, 224, 32]])
BESIDE = Phrase("red car", "attribute", [[230, 0, 260, 100]])


def masks(**changes):
    crop = RecordedCrop(image_transform(224, is_train=True))
    return ConceptMasks(crop, WordFinder(SimpleTokenizer()), GRID, **changes)


def concepts(*phrases, attributes=("red",), relations=("on",)):
    return Concepts(attributes=attributes, relations=relations, phrases=phrases)


def drawn(given, count=400, part=PART, **changes):
    maker = masks(**changes)
    return [maker.of(CAPTION, given, part, Stream(0, n))[0] for n in range(count)]


def where(mask):
    return tuple(mask.nonzero().flatten().tolist())


COLUMN, ROW = tuple(range(0, 49, 7)), tuple(range(7))


def test_one_phrase_at_a_time_and_sometimes_a_rectangle():
    found = [where(one["patch_mask"]) for one in drawn(concepts(LEFT, TOP), count=2000)]
    counts = [found.count(COLUMN), found.count(ROW)]
    rest = [one for one in found if one not in (COLUMN, ROW)]
    # Binomial: five standard deviations of 900, 900 and 200 of 2000.
    assert all(abs(count - 900) < 110 for count in counts)
    assert abs(len(rest) - 200) < 70
    assert all(0.6 < len(one) / 49 < 0.8 for one in rest)
    assert {where(one["word_mask"]) for one in drawn(concepts(LEFT, TOP))} == {(2, 4)}


def test_the_probability_is_the_settings():
    found = drawn(concepts(LEFT), random_probability=0.0)
    assert {where(one["patch_mask"]) for one in found} == {COLUMN}
    found = drawn(concepts(LEFT), random_probability=1.0)
    assert COLUMN not in {where(one["patch_mask"]) for one in found}


def test_random_masks_have_the_phrases_size_and_other_places():
    found = drawn(concepts(LEFT, TOP), random_masks=True, random_probability=0.0)
    for one in found:
        assert 6 <= int(one["patch_mask"].sum()) <= 8
        assert int(one["word_mask"].sum()) == 2
    assert len({where(one["patch_mask"]) for one in found}) > 10
    assert len({where(one["word_mask"]) for one in found}) > 10


def test_nothing_to_mask_is_counted():
    (one,) = drawn(concepts(attributes=(), relations=()), count=1, random_probability=0.0)
    assert not one["word_mask"].any()
    assert not one["patch_mask"].any()
    assert {name: int(one[name]) for name in COUNTED} == {
        "words_missing": 0,
        "words_cut": 0,
        "no_words": 1,
        "no_boxes": 1,
        "beside_crop": 0,
    }
    for random_masks in (False, True):
        (one,) = drawn(concepts(BESIDE), count=1, random_probability=0.0, random_masks=random_masks)
        assert not one["patch_mask"].any()
        assert (int(one["beside_crop"]), int(one["no_boxes"]), int(one["no_words"])) == (1, 0, 0)


def test_words_that_are_missing_are_told_with_their_caption():
    given = concepts(attributes=("blue", "red"))
    tensors, examples = masks().of(CAPTION, given, PART, Stream(0))
    assert int(tensors["words_missing"]) == 1
    assert examples == [("words_missing", f"'blue' in {CAPTION!r}")]


def test_a_box_outside_of_the_image_is_refused_whichever_phrase_is_drawn():
    given = concepts(LEFT, Phrase("car", "attribute", [[0, 0, 400, 20]]))
    for number in range(5):
        with pytest.raises(ValueError, match="100 pixels outside of the image of 300 x 224"):
            masks().of(CAPTION, given, PART, Stream(number))


def test_crop_and_grid_must_fit():
    crop = RecordedCrop(image_transform(336, is_train=True))
    with pytest.raises(ValueError, match=r"crop: got size \(336, 336\), expected \(224, 224\)"):
        ConceptMasks(crop, WordFinder(SimpleTokenizer()), GRID)
