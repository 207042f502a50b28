"""Objects, attributes and relations of plain captions, from spaCy's dependency parse.

The paper (arXiv 2606.13288) takes them from a scene-graph parser; these rules give the same kinds
of words and phrases, each found where it stands in the caption.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from slipform_training.concreteplant.anchors import PIPELINE, load_pipeline
from slipform_training.macco.relations import Relation, relations_of
from slipform_training.macco.rows import Concepts, Phrase
from slipform_training.macco.tree import Tree
from slipform_training.macco.vocabulary import COLOURS, MATERIALS, NO_ATTRIBUTES, PICTURES, SHADES

_BATCH = 256


class Attribute(NamedTuple):
    """Numbers of an attribute's tokens, in order, and of the noun that has it."""

    tokens: tuple[int, ...]
    noun: int


@dataclass(frozen=True)
class ConceptTagger:
    """Finds the concepts of captions.

    Attributes:
        model: a spaCy pipeline with a tagger and a parser.
    """

    model: str = PIPELINE

    def tag(self, captions: Sequence[str]) -> list[Concepts]:
        """The concepts of each caption; errors as of load_pipeline."""
        return list(find_concepts(captions, nlp=load_pipeline(self.model, parser=True)))


def find_concepts(captions: Iterable[str], *, nlp: Any) -> Iterator[Concepts]:
    """The concepts of each caption; captions are parsed in batches.

    Args:
        captions: texts.
        nlp: a spaCy pipeline with a tagger and a parser.
    """
    for doc in nlp.pipe(captions, batch_size=_BATCH):
        yield _concepts(Tree(doc))


def _concepts(tree: Tree) -> Concepts:
    attributes = _attributes(tree)
    taken = {i for one in attributes for i in one.tokens}
    # Attributes last: where both claim a word, as "parked" in "parked cars", it is an attribute.
    relations = [one for one in relations_of(tree) if not taken & set(one.tokens)]
    spoken_for = taken | {i for one in relations for i in one.tokens}
    nouns = [i for i in tree.heads() if i not in spoken_for]
    names = {i: tree.text(tree.compound(i, without=taken)) for i in nouns}
    phrases = [_relation_phrase(one, tree, names) for one in relations]
    phrases += [
        Phrase(f"{tree.text(one.tokens)} {names[one.noun]}", "attribute", (), (names[one.noun],))
        for one in attributes
        if one.noun in names
    ]
    return Concepts(
        objects=list(names.values()),
        attributes=[tree.text(one.tokens) for one in attributes],
        relations=[part for one in relations for part in tree.runs(one.tokens)],
        phrases=list({(one.text, one.kind): one for one in phrases if one is not None}.values()),
    )


def _relation_phrase(one: Relation, tree: Tree, names: dict[int, str]) -> Phrase | None:
    """None where neither noun is known, or a relation has lost its object: "man wearing it"."""
    subject = None if one.subject is None else names.get(one.subject)
    target = None if one.target is None else names.get(one.target)
    if subject is None or (target is None and one.needs_target):
        return None
    parts = [subject, tree.text(one.tokens), *([] if target is None else [target])]
    return Phrase(
        " ".join(parts), "relation", (), (subject,) if target is None else (subject, target)
    )


def _attributes(tree: Tree) -> list[Attribute]:
    """Adjectives, participles, colours and materials before a noun, and those of predicates."""
    found = []
    for i, token in enumerate(tree.tokens):
        noun = _owner(tree, i)
        word = token.lower_
        if noun is None or word in NO_ATTRIBUTES or not _has_letters(word):
            continue
        is_noun = token.pos_ in ("NOUN", "PROPN")
        if is_noun and not (word in COLOURS or word in MATERIALS):
            continue
        found.append(Attribute(_shade(tree, i), noun))
    return found


def _owner(tree: Tree, i: int) -> int | None:
    """The noun that the token is an attribute of, if it is one."""
    token = tree.tokens[i]
    if token.pos_ not in ("ADJ", "VERB", "NOUN", "PROPN", "ADV"):
        return None
    # Of "a light blue shirt", "light" belongs to "blue", and comes with it.
    if tree.is_fixed(i) or (token.lower_ in SHADES and tree.is_colour(i + 1)):
        return None
    if tree.is_participle(i):
        return tree.noun(token.head.i if token.dep_ == "amod" else tree.children(i, "dobj")[0])
    if token.dep_ in ("amod", "compound", "nmod") and token.head.i > i:
        head = token.head
        while head.dep_ == "amod" and head.head.i > head.i:
            head = head.head
        if token.pos_ in ("ADV", "VERB") or head.lower_ in PICTURES:
            return None
        return tree.noun(tree.whole(head.i))
    if token.dep_ == "conj" and token.pos_ in ("ADJ", "NOUN") and token.head.i < i:
        first = token.head
        if token.pos_ == "NOUN" and token.lower_ not in COLOURS:
            return None
        return (
            None if first.pos_ == "NOUN" and first.lower_ not in COLOURS else _owner(tree, first.i)
        )
    if token.dep_ in ("acomp", "oprd") and token.pos_ == "ADJ":
        return tree.subject(token.head.i)
    return None


def _shade(tree: Tree, i: int) -> tuple[int, ...]:
    """The token, with the word before it in "dark blue" and "snow covered", and the rest of
    "black-and-white"."""
    tokens = tree.hyphenated(i)
    before = tokens[0] - 1
    if before in tree.children(i, "npadvmod", "compound") and tree.tokens[i].pos_ == "VERB":
        return (before, *tokens)
    if tree.is_colour(i) and before >= 0 and tree.tokens[before].lower_ in SHADES:
        return (before, *tokens)
    return tokens


def _has_letters(word: str) -> bool:
    return any(sign.isalpha() for sign in word)
