"""Which tokens are masked, told by decoding them: every expectation is written by hand."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("open_clip")

from open_clip.tokenizer import SimpleTokenizer

from slipform_training.data import ReducedTokenizer, Stream
from slipform_training.macco.rows import Concepts, Phrase
from slipform_training.macco.word_mask import WordFinder

TOKENIZER = SimpleTokenizer()


def concepts(attributes=(), relations=(), phrases=()):
    return Concepts(
        attributes=attributes,
        relations=relations,
        phrases=[Phrase(text, kind) for text, kind in phrases],
    )


def shown(caption, found, tokenizer=TOKENIZER):
    """The caption's words, those that are masked in brackets, from the mask and the token ids."""
    (tokens,) = tokenizer([caption])
    mask = found.mask
    assert mask.dtype == torch.bool
    assert mask.shape == tokens.shape
    end = int(tokens.argmax())
    assert not mask[0]
    assert not mask[end:].any()
    out, was = "", False
    for place in range(1, end):
        piece = TOKENIZER.decode([int(tokens[place])])
        now = bool(mask[place])
        out += ("[" if now and not was else "") + ("]" if was and not now else "") + piece
        was = now
    return (out + "]" * was).replace(" ]", "] ").strip()


def masked(caption, *given, **named):
    return shown(caption, WordFinder(TOKENIZER).mask(caption, concepts(*given, **named)))


def test_one_word():
    assert masked("a red car", ["red"]) == "a [red] car"


def test_a_phrase_says_which_occurrence_is_meant():
    caption = "a red bus behind a red car"
    assert masked(caption, ["red"]) == "a [red] bus behind a red car"
    assert (
        masked(caption, ["red"], phrases=[("red car", "attribute")])
        == "a red bus behind a [red] car"
    )
    # The phrase of a relation says nothing of an attribute.
    assert (
        masked(caption, ["red"], phrases=[("red car", "relation")])
        == "a [red] bus behind a red car"
    )


def test_a_phrase_may_leave_words_of_the_caption_out():
    caption = "a cup on a plate on the old table"
    phrases = [("plate on table", "relation")]
    assert masked(caption, [], ["on"], phrases=phrases) == "a cup on a plate [on] the old table"


def test_repeated_words_take_one_occurrence_each():
    caption = "a red bus on a red road on a hill"
    assert masked(caption, ["red"], ["on"]) == "a [red] bus [on] a red road on a hill"
    assert masked(caption, ["red", "red"], ["on", "on"]) == (
        "a [red] bus [on] a [red] road [on] a hill"
    )
    # The one without a phrase takes what the one with a phrase has left, whatever comes first.
    assert masked("red top, red hat", ["red", "red"], phrases=[("red top", "attribute")]) == (
        "[red] top , [red] hat"
    )


def test_a_word_listed_once_too_often_is_no_error():
    finder = WordFinder(TOKENIZER)
    found = finder.mask("a red car", concepts(["red", "red"]))
    assert (found.missing, found.cut) == ([], [])


def test_a_longer_word_goes_before_its_parts_elsewhere():
    caption = "a man sitting on a chair on a beach"
    assert masked(caption, [], ["sitting on", "on"]) == "a man [sitting on] a chair [on] a beach"


def test_a_word_of_several_tokens_is_masked_whole():
    caption = "a skateboarder frontflipping over turquoisish rails"
    assert len(TOKENIZER.encode("turquoisish")) > 1
    assert len(TOKENIZER.encode("frontflipping")) > 1
    assert masked(caption, ["turquoisish"], ["frontflipping over"]) == (
        "a skateboarder [frontflipping over turquoisish] rails"
    )


def test_words_are_found_at_word_boundaries_alone():
    caption = "a tired reddish man is bored by 100 red cars in 10 in-line rinks"
    assert masked(caption, ["red", "10"], ["in"]) == (
        "a tired reddish man is bored by 1 0 0 [red] cars [in 1 0] in - line rinks"
    )
    finder = WordFinder(TOKENIZER)
    assert finder.mask("a bored man", concepts(["red"])).missing == ["red"]
    assert finder.mask("100 cars", concepts(["10", "0", "00"])).missing == ["10", "0", "00"]


def test_capitals_punctuation_and_entities():
    assert masked("A RED car, Parked.", ["red"], ["parked"]) == "a [red] car , [parked] ."
    assert masked("a red, car", ["Red,"]) == "a [red ,] car"
    assert masked("it's the dog's black-and-white  bowl", ["black-and-white"]) == (
        "it 's the dog 's [black - and - white] bowl"
    )
    assert masked("big &amp; small\tcats\n", ["big &amp; small"]) == "[big & small] cats"
    assert masked("un chien tr\u00e8s  \u00e2g\u00e9", ["tr\u00e8s \u00e2g\u00e9"]) == (
        "un chien [tr\u00e8s \u00e2g\u00e9]"
    )


def test_articles_are_no_words():
    assert masked("the red car", ["red"], ["the", "A"]) == "the [red] car"


def test_words_that_the_caption_does_not_hold_are_told():
    found = WordFinder(TOKENIZER).mask("a red car", concepts(["blue", "red"], ["", "car red"]))
    assert found.missing == ["blue", "", "car red"]
    assert shown("a red car", found) == "a [red] car"


def test_words_beyond_the_context_length_are_told():
    caption = "a red car " + "and a dog " * 40 + "on a green road"
    found = WordFinder(TOKENIZER).mask(caption, concepts(["red", "green"], ["on"]))
    assert (sorted(found.cut), found.missing) == (["green", "on"], [])
    assert int(found.mask.sum()) == 1
    assert found.mask[2]


@pytest.mark.parametrize("word_at", range(70, 80))
def test_the_last_word_is_masked_if_and_only_if_its_token_is_there(word_at):
    caption = "dog " * (word_at - 1) + "red"
    found = WordFinder(TOKENIZER).mask(caption, concepts(["red"]))
    (tokens,) = TOKENIZER([caption])
    (red,) = TOKENIZER.encode("red")
    assert found.mask.tolist() == [token == red for token in tokens.tolist()]
    assert found.cut == ([] if (tokens == red).any() else ["red"])


def test_a_word_that_the_end_divides_is_cut():
    tokenizer = SimpleTokenizer(context_length=6)
    first, *rest = tokenizer.encode("turquoisish")
    caption = "a dog is turquoisish"
    assert rest
    assert int(tokenizer([caption])[0, 4]) == first
    found = WordFinder(tokenizer).mask(caption, concepts(["turquoisish"]))
    assert found.cut == ["turquoisish"]
    assert not found.mask.any()


def test_a_reduced_tokenizer_has_the_same_places():
    tokenizer = ReducedTokenizer(["a red car next to turquoisish things"], context_length=16)
    caption = "a turquoisish car next to red things"
    given = concepts(["turquoisish", "red"], ["next to"])
    found = WordFinder(tokenizer).mask(caption, given)
    stock = WordFinder(SimpleTokenizer(context_length=16)).mask(caption, given)
    assert found.mask.tolist() == stock.mask.tolist()
    assert int(tokenizer([caption])[0].argmax()) < 16
    assert int(found.mask.sum()) == len(TOKENIZER.encode("turquoisish")) + 3


def test_random_masks_have_the_size_and_lie_in_the_caption():
    finder = WordFinder(TOKENIZER)
    caption = "a red car on a road"
    seen = set()
    for number in range(200):
        mask = finder.random_mask(caption, 2, Stream(0, number))
        places = mask.nonzero().flatten().tolist()
        assert len(places) == 2
        seen.update(places)
    assert seen == {1, 2, 3, 4, 5, 6}
    long = "dog " * 100
    assert finder.random_mask(long, 99, Stream(0)).nonzero().flatten().tolist() == [*range(1, 76)]


class OtherTokenizer:
    context_length = 77


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (OtherTokenizer(), "tokenizer: got OtherTokenizer, expected open_clip's SimpleTokenizer"),
        (SimpleTokenizer(reduction_mask="random"), "tokenizer: got one that drops tokens"),
    ],
)
def test_other_tokenizers_are_refused(tokenizer, message):
    with pytest.raises(ValueError, match=message):
        WordFinder(tokenizer)
