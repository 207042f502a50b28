"""Rewriters of ConcretePlant: a word replaced by another of the corpus, or two words swapped."""

from __future__ import annotations

from collections import Counter

import pytest

from slipform_training.concreteplant import (
    Candidate,
    ConcretePlant,
    MinerOptions,
    WordInventory,
    load_lexicon,
)
from slipform_training.concreteplant.rewrite import indefinite_article, replace_word, swap_words
from slipform_training.data import Stream


@pytest.fixture(scope="module")
def plant():
    return ConcretePlant()


def word(caption, text, role, tag, concreteness, **more):
    start = caption.index(text)
    return Candidate(
        text=text,
        lemma=more.pop("lemma", text.lower()),
        start=start,
        end=start + len(text),
        role=role,
        tag=tag,
        concreteness=concreteness,
        **more,
    )


class TestReplacement:
    corpus = (
        ("cat", "NN", 4.9),
        ("dog", "NN", 4.8),
        ("apple", "NN", 4.7),
        ("idea", "NN", 1.6),
        ("owls", "NNS", 4.9),
    )

    def inventory(self):
        caption = " ".join(text for text, _, _ in self.corpus)
        return WordInventory(
            [[word(caption, text, "O", tag, rating) for text, tag, rating in self.corpus]]
        )

    def replace(self, caption, text, tolerance=0.5, tag="NN", others=(), rating=4.8, seed=0):
        anchor = word(caption, text, "O", tag, rating)
        return replace_word(
            caption,
            anchor,
            candidates=[anchor, *(word(caption, t, "O", tag, 4.8, lemma=m) for t, m in others)],
            inventory=self.inventory(),
            tolerance=tolerance,
            stream=Stream(seed),
        )

    def test_takes_every_similar_word_of_the_corpus(self):
        found = Counter(self.replace("a bus", "bus", seed=i).hard_caption for i in range(300))
        assert set(found) == {"a cat", "a dog", "an apple"}
        assert all(abs(count - 100) < 4 * 9 for count in found.values())

    def test_the_tolerance_is_kept_to_the_last_decimal(self):
        def reached(tolerance):
            return {self.replace("a bus", "bus", tolerance, seed=i).replacement for i in range(100)}

        assert reached(0.1) == {"cat", "dog", "apple"}
        assert reached(0.09) == {"dog"}

    def test_never_takes_a_word_of_the_caption(self):
        for seed in range(50):
            hard = self.replace("a bus, a dog and cats", "bus", others=[("cats", "cat")], seed=seed)
            assert hard.hard_caption == "an apple, a dog and cats"

    def test_never_takes_another_form_of_a_word_of_the_caption(self):
        caption = "some cats"
        cats = word(caption, "cats", "O", "NNS", 4.9, lemma="cat")
        anchor = word("owls and a cat", "owls", "O", "NNS", 4.9)
        inventory = WordInventory([[cats]])
        for other, expected in (("cat", None), ("cot", "cats and a cot")):
            text = f"owls and a {other}"
            hard = replace_word(
                text,
                anchor,
                candidates=[anchor, word(text, other, "O", "NN", 4.9)],
                inventory=inventory,
                tolerance=0.5,
                stream=Stream(0),
            )
            assert (hard and hard.hard_caption) == expected

    def test_without_a_word_there_is_no_result(self):
        assert self.replace("owls and cats", "owls", tag="NNS") is None
        assert self.replace("a bus", "bus", rating=3.0) is None

    def test_reports_the_edit(self):
        hard = self.replace("A Bus", "Bus", tolerance=0.09)
        assert (hard.hard_caption, hard.replaced, hard.replacement) == ("A Dog", "Bus", "Dog")
        assert (hard.edit, hard.concreteness, hard.rewriter) == ("O", 4.8, "replace")

    def test_articles_agree(self):
        assert self.replace("an owl", "owl", 0.09).hard_caption == "a dog"
        assert self.replace("An  owl", "owl", 0.09).hard_caption == "A  dog"
        assert self.replace("an old owl", "owl", 0.09).hard_caption == "an old dog"
        assert self.replace("pan owl", "owl", 0.09).hard_caption == "pan dog"

    @pytest.mark.parametrize(
        ("noun", "article"),
        [
            ("owl", "an"),
            ("Car", "a"),
            ("hour", "an"),
            ("honest", "an"),
            ("house", "a"),
            ("unicorn", "a"),
            ("umbrella", "an"),
            ("uniform", "a"),
            ("one", "a"),
        ],
    )
    def test_articles(self, noun, article):
        assert indefinite_article(noun) == article

    def test_one_is_replaced_by_no_other_number(self):
        captions = ["one dog", "two dogs", "three dogs", "four dogs"]
        mined = ConcretePlant(MinerOptions(tolerance=2.0, k=9)).mine(captions * 30)
        numbers = {
            item.replaced: item.replacement
            for items in mined.hard
            for item in items
            if item.edit == "A"
        }
        assert "one" not in numbers
        assert "one" not in numbers.values()
        assert set(numbers) == {"two", "three", "four"}


class TestSwap:
    def swap(self, plant, caption, seed=0, tolerance=0.5, lowest=3.0):
        (candidates,) = plant.candidates([caption])
        return swap_words(
            caption,
            candidates=candidates,
            tolerance=tolerance,
            stream=Stream(seed),
            min_concreteness=lowest,
        )

    def test_objects_and_attributes(self, plant):
        caption = "a red car above a green owl"
        found = {self.swap(plant, caption, seed).hard_caption for seed in range(20)}
        assert found == {
            "a red owl above a green car",
            "a green car above a red owl",
            "a green owl above a red car",
        }

    def test_objects_swap_with_all_their_attributes(self, plant):
        caption = "two small red cars, above the owls"
        found = {self.swap(plant, caption, seed).hard_caption for seed in range(20)}
        assert found == {"two small red owls, above the cars", "owls, above the two small red cars"}

    def test_articles_agree(self, plant):
        assert self.swap(plant, "an owl above a car").hard_caption == "a car above an owl"

    def test_concreteness_is_the_mean_and_the_edit_is_the_words_role(self, plant):
        hard = self.swap(plant, "the red car is above the green car")
        lexicon = load_lexicon()
        assert (hard.replaced, hard.replacement, hard.edit) == ("red", "green", "A")
        mean = (lexicon.rate("red") + lexicon.rate("green")) / 2
        assert hard.concreteness == pytest.approx(mean)
        assert hard.rewriter == "swap"

    def test_a_noun_before_a_noun_goes_along(self, plant):
        caption = "a rock wall above a boat"
        found = {self.swap(plant, caption, seed).hard_caption for seed in range(20)}
        assert found == {"a rock boat above a wall", "a boat above a rock wall"}

    def test_attributes_of_one_object_stay(self, plant):
        assert self.swap(plant, "a small purple car", tolerance=4.0) is None

    def test_attributes_swap_with_their_like_only(self, plant):
        caption = "a small red car above a large green owl"
        found = {self.swap(plant, caption, s, tolerance=4.0).hard_caption for s in range(60)}
        assert found == {
            "a large red car above a small green owl",
            "a small green car above a large red owl",
            "a small red owl above a large green car",
            "a large green owl above a small red car",
        }

    def test_a_word_is_not_swapped_with_itself(self, plant):
        assert self.swap(plant, "a red dog above a red dog") is None

    def test_capitals_stay_in_place(self, plant):
        assert self.swap(plant, "Cars above owls").hard_caption == "Owls above cars"
