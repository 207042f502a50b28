"""WordNet: which words are related, and the rewriter that takes co-hyponyms and antonyms."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipform_training.concreteplant import ConcretePlant, load_lexicon
from slipform_training.concreteplant.rewriters import Job, Refusal
from slipform_training.concreteplant.wordnet import WordNet, WordNetRewriter, lexnames

FOLDERS = [os.environ.get("SLIPFORM_WORDNET"), "/usr/share/wordnet"]
FOLDER = next((Path(f) for f in FOLDERS if f and (Path(f) / "data.noun").is_file()), None)
needs_wordnet = pytest.mark.skipif(
    FOLDER is None, reason="no WordNet: neither SLIPFORM_WORDNET nor Debian's wordnet-base"
)


@pytest.fixture(scope="module")
def wordnet():
    return WordNet(FOLDER)


@needs_wordnet
class TestRelations:
    @pytest.mark.parametrize(
        ("first", "second", "role"),
        [
            ("couch", "sofa", "O"),
            ("dog", "animal", "O"),
            ("animal", "dog", "O"),
            ("car", "automobile", "O"),
            ("walk", "move", "R"),
            ("large", "big", "A"),
        ],
    )
    def test_synonyms_and_hypernyms_are_related(self, wordnet, first, second, role):
        assert wordnet.related(first, second, role)

    @pytest.mark.parametrize(
        ("first", "second", "role"),
        [
            ("dog", "cat", "O"),
            ("car", "truck", "O"),
            ("large", "small", "A"),
            ("xyzzy", "dog", "O"),
        ],
    )
    def test_others_are_not(self, wordnet, first, second, role):
        assert not wordnet.related(first, second, role)

    def test_rivals(self, wordnet):
        assert "truck" in wordnet.rivals("car", "O")
        assert "small" in wordnet.rivals("large", "A")
        assert "car" not in wordnet.rivals("car", "O")


@needs_wordnet
def test_the_rewriter_inflects_and_agrees(wordnet):
    caption = "two cars near an old bench"
    (candidates,) = ConcretePlant().candidates([caption])
    rewriter = WordNetRewriter(wordnet, load_lexicon().rate)
    cars = [item for item in candidates if item.text == "cars"]
    found = rewriter.rewrite([Job(caption, cars, candidates, seed, "x") for seed in range(30)])
    words = {out.replacement for out in found}
    assert words
    assert all(word.endswith("s") for word in words)
    assert all(out.hard_caption == f"two {out.replacement} near an old bench" for out in found)
    assert "cars" not in words
    old = [item for item in candidates if item.text == "old"]
    (out,) = WordNetRewriter(wordnet, load_lexicon().rate, tolerance=2.0).rewrite(
        [Job(caption, old, candidates, 0, "x")]
    )
    assert out.hard_caption in ("two cars near a new bench", "two cars near a young bench")
    assert isinstance(rewriter.rewrite([Job(caption, [], candidates, 0, "x")])[0], Refusal)


def test_a_folder_without_the_database_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"wordnet: .* has no data.noun, data.verb"):
        WordNet(tmp_path)


def test_lexnames_is_as_in_the_manual():
    lines = lexnames().splitlines()
    assert len(lines) == 45
    assert lines[0] == "00\tadj.all\t3"
    assert lines[3] == "03\tnoun.Tops\t1"
    assert lines[29] == "29\tverb.body\t2"
    assert lines[44] == "44\tadj.ppl\t3"
