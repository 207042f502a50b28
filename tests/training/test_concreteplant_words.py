"""ConcretePlant's parts: lemmas, word forms, a user's ratings, grammatical places, meanings."""

from __future__ import annotations

import pytest

from slipform_training.concreteplant import ConcretePlant, load_lexicon
from slipform_training.concreteplant.inflect import inflect
from slipform_training.concreteplant.lemmas import mend_lemma
from slipform_training.concreteplant.lexicon import read_lexicon
from slipform_training.concreteplant.meanings import attribute_rivals, may_both_hold

HEADER = "Word\tBigram\tConc.M\tConc.SD\tUnknown\n"


class TestLemmas:
    @pytest.mark.parametrize(
        ("surface", "given", "mended"),
        [
            ("riding", "rid", "ride"),
            ("Staring", "star", "stare"),
            ("wading", "wad", "wade"),
            ("shines", "shin", "shine"),
            ("plated", "plat", "plate"),
            ("sitting", "sit", "sit"),
            ("hugging", "hug", "hug"),
            ("eating", "eat", "eat"),
            ("walks", "walk", "walk"),
            ("watches", "watch", "watch"),
            ("preforming", "preform", "preform"),
            ("grazed", "graz", "graze"),
        ],
    )
    def test_are_mended_where_spelling_and_dictionary_disagree(self, surface, given, mended):
        assert mend_lemma(surface, given, load_lexicon()) == mended

    def test_reach_the_candidates(self):
        (candidates,) = ConcretePlant().candidates(["A man riding a horse"])
        lemmas = {item.text: item.lemma for item in candidates}
        assert lemmas["riding"] == "ride"


@pytest.mark.parametrize(
    ("lemma", "tag", "form"),
    [
        ("dog", "NNS", "dogs"),
        ("fire hydrant", "NNS", "fire hydrants"),
        ("policeman", "NNS", "policemen"),
        ("sheep", "NNS", "sheep"),
        ("potato", "NNS", "potatoes"),
        ("berry", "NNS", "berries"),
        ("toy", "NNS", "toys"),
        ("bench", "NNS", "benches"),
        ("ride", "VBG", "riding"),
        ("run", "VBG", "running"),
        ("lie", "VBG", "lying"),
        ("see", "VBG", "seeing"),
        ("show", "VBG", "showing"),
        ("eat", "VBD", "ate"),
        ("eat", "VBN", "eaten"),
        ("carry", "VBD", "carried"),
        ("stop", "VBD", "stopped"),
        ("look up", "VBZ", "looks up"),
        ("red", "JJ", "red"),
        ("big", "JJR", None),
    ],
)
def test_inflection(lemma, tag, form):
    assert inflect(lemma, tag) == form


class TestRatingsFile:
    def test_is_read(self, tmp_path):
        path = tmp_path / "ratings.txt"
        path.write_text(HEADER + "dog\t0\t4.85\t0.5\t0\nhot dog\t1\t4.9\t0.4\t1\n")
        lexicon = read_lexicon(path)
        assert len(lexicon) == 2
        assert lexicon.rate("Dog") == 4.85
        assert lexicon.rate_bigram("hot", "dogs", "dog") == 4.9

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("Word,Bigram,Conc.M\ndog,0,4.8\n", "must have tab-separated columns Word, Bigram"),
            (HEADER + "dog\t0\thigh\t0\t0\n", "line 2: Conc.M must be a number, got 'high'"),
            (HEADER + "dog\t1\t4.8\t0\t0\n", "line 2: Bigram must be 1 for two words"),
            (HEADER + "dog\t0\t9\t0\t0\n", "from 1 to 5, got 9.0 for 'dog'"),
        ],
    )
    def test_is_checked(self, tmp_path, text, message):
        path = tmp_path / "ratings.txt"
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_lexicon(path)


@pytest.mark.parametrize(
    ("caption", "word", "slot"),
    [
        ("a man riding a horse", "horse", ("a", "v:ride", "")),
        ("a man riding a horse", "man", ("a", "^", "v:ride")),
        ("three old dogs on the beach", "dogs", ("number", "^", "on")),
        ("a plate of pasta", "plate", ("a", "^", "of")),
        ("a plate of pasta", "pasta", ("bare", "of", "")),
        ("pasta with some chicken and broccoli", "broccoli", ("list", "and", "")),
        ("a woman with her parked car", "car", ("the", "with", "")),
        ("People on a beach", "People", ("start", "^", "on")),
        ("a man sitting on a bench", "sitting", ("on", "man", "bench")),
        ("a grass covered field", "grass", ("a/modifier", "^", "v:cover")),
        ("a red car", "red", ("attributive", "", "car")),
    ],
)
def test_places(caption, word, slot):
    (candidates,) = ConcretePlant().candidates([caption])
    (found,) = [item.slot for item in candidates if item.text == word]
    assert found == slot


def test_meanings():
    for first, second in [
        ("man", "guy"),
        ("surfer", "man"),
        ("vehicle", "truck"),
        ("couch", "sofa"),
        ("tennis player", "woman"),
        ("on", "above"),
    ]:
        assert may_both_hold(first, second)
        assert may_both_hold(second, first)
    for first, second in [("man", "woman"), ("dog", "cat"), ("car", "truck"), ("in", "under")]:
        assert not may_both_hold(first, second)


def test_attributes_have_rivals_of_their_kind():
    assert "green" in attribute_rivals("red")
    assert "wooden" not in attribute_rivals("red")
    assert "grey" not in attribute_rivals("silver")
    assert "big" not in attribute_rivals("large")
    assert "four" in attribute_rivals("two")
    assert attribute_rivals("beautiful") == frozenset()
