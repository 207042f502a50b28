"""ARO's four shuffles of a caption's words (Yuksekgonul et al. 2023, section 2; seeded here).

The release draws without a seed, so its captions cannot be had again. It splits words for the two
trigram shuffles with nltk's word_tokenize; here nltk's word tokenizer runs without the sentence
splitter, whose data is a download: a full stop inside a caption stays on its word.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_NOUNS = ("NN", "NNS", "NNP", "NNPS")
_ADJECTIVES = ("JJ", "JJR", "JJS")

# The release keeps so many words of a caption.
_LONGEST = 30


def shuffled_captions(captions: Iterable[tuple[str, str]], *, seed: int) -> Iterator[list[str]]:
    """The cleaned caption and its four shuffles, for each (id, caption).

    In order: nouns and adjectives among their like; everything but nouns and adjectives; the words
    within each run of three; the runs of three. What is drawn depends on seed and id alone.

    Raises RuntimeError where spaCy or its pipeline is missing.
    """
    from nltk.tokenize import NLTKWordTokenizer

    from slipform_training.concreteplant.anchors import load_pipeline

    tokenizer = NLTKWordTokenizer()
    for document, key in load_pipeline().pipe(
        ((caption, key) for key, caption in captions), as_tuples=True, disable=["lemmatizer"]
    ):
        digest = hashlib.blake2b(f"{seed} {key}".encode(), digest_size=8).digest()
        draw = random.Random(int.from_bytes(digest, "big"))
        runs = _runs_of_three(tokenizer.tokenize(document.text))
        yield [
            cleaned(text)
            for text in (
                document.text,
                _permuted(document, (_NOUNS, _ADJECTIVES), draw),
                _permuted(document, None, draw),
                " ".join(word for run in runs for word in draw.sample(run, len(run))),
                " ".join(word for run in draw.sample(runs, len(runs)) for word in run),
            )
        ]


def cleaned(caption: str, longest: int = _LONGEST) -> str:
    """The caption as the release gives it to models: lower case, without some marks, cut."""
    caption = re.sub(r"([.!\"()*#:;~])", " ", caption.lower())
    caption = re.sub(r"\s{2,}", " ", caption).rstrip("\n").strip(" ")
    return " ".join(caption.split(" ")[:longest])


def _permuted(document: Any, kinds: Sequence[Sequence[str]] | None, draw: random.Random) -> str:
    """The words with those of each kind permuted; None: the words of neither kind."""
    words = [token.text for token in document]
    named = [tag for kind in kinds or (_NOUNS, _ADJECTIVES) for tag in kind]
    if kinds is None:
        groups = [[i for i, token in enumerate(document) if token.tag_ not in named]]
    else:
        groups = [[i for i, token in enumerate(document) if token.tag_ in kind] for kind in kinds]
    for places in groups:
        taken = [words[i] for i in places]
        for i, word in zip(places, draw.sample(taken, len(taken)), strict=True):
            words[i] = word
    return " ".join(words)


def _runs_of_three(words: Sequence[str]) -> list[list[str]]:
    return [list(words[start : start + 3]) for start in range(0, len(words), 3)]
