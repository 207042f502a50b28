"""Verbs and prepositions of a caption, and the nouns that they relate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from slipform_training.macco.tree import Tree
from slipform_training.macco.vocabulary import NO_RELATIONS, PREPOSITIONS, QUANTITIES

# "drives down a street": the parser takes "down" for a particle, and gives it an object.
_PREPOSITIONAL = ("prep", "prt", "agent", "dative", "pcomp")


class Relation(NamedTuple):
    """Numbers of a relation's tokens, in order, and of its two nouns, as far as there are any.

    needs_target: says nothing without its second noun.
    """

    tokens: tuple[int, ...]
    subject: int | None
    target: int | None
    needs_target: bool


class _Preposition(NamedTuple):
    tokens: tuple[int, ...]
    target: int | None
    is_pronoun: bool
    head: int


def relations_of(tree: Tree) -> list[Relation]:
    """The relations, in the order of the caption.

    A preposition right behind its verb is one relation with it, as "sitting on". What only counts
    ("a group of"), times ("at night") and places in the picture ("in the background") are none.
    """
    prepositions = list(_prepositions(tree))
    found, used = [], set()
    for i in range(len(tree.tokens)):
        if not tree.is_verb(i) or tree.tokens[i].lemma_.lower() in NO_RELATIONS:
            continue
        tokens = _verb(tree, i)
        subject, target = tree.subject(i), _object(tree, i)
        behind = next((one for one in prepositions if one.tokens[0] == tokens[-1] + 1), None)
        if target is None and behind is not None and behind.head in (i, *tokens):
            used.add(behind)
            tokens, target = (*tokens, *behind.tokens), behind.target
            found.append(Relation(tokens, subject, target, True))
        elif target is not None or not tree.children(i, "acomp"):  # not "looks clean"
            pronoun = bool(tree.children(i, "dobj")) and target is None
            found.append(Relation(tokens, subject, target, pronoun))
    for one in prepositions:
        if one not in used:
            found.append(Relation(one.tokens, _before(tree, one), one.target, True))
    return _disjoint(found)


def _disjoint(found: list[Relation]) -> list[Relation]:
    """In the order of the caption; of those that share a token, the first and longest."""
    kept: list[Relation] = []
    for one in sorted(found, key=lambda one: (one.tokens[0], -len(one.tokens))):
        if not kept or kept[-1].tokens[-1] < one.tokens[0]:
            kept.append(one)
    return kept


def _verb(tree: Tree, i: int) -> tuple[int, ...]:
    """The verb, and a particle right behind it."""
    tokens = tree.hyphenated(i)
    particle = [
        k for k in tree.children(i, "prt") if k == tokens[-1] + 1 and _target(tree, k) is None
    ]
    return (*tokens, *particle)


def _object(tree: Tree, i: int) -> int | None:
    for k in tree.children(i, "dobj", "attr", "oprd"):
        if tree.noun(k) is not None:
            return tree.noun(k)
    token = tree.tokens[i]
    # "a player playing tennis", taken for the name of a thing.
    return (
        tree.noun(token.head.i) if token.dep_ in ("compound", "amod") and token.head.i > i else None
    )


def _prepositions(tree: Tree) -> Iterator[_Preposition]:
    end = 0
    for i, token in enumerate(tree.tokens):
        if i < end:
            continue
        if token.dep_ == "prt" and _target(tree, i) is None:
            continue
        length = tree.starting(PREPOSITIONS, i)
        single = token.pos_ in ("ADP", "SCONJ") and token.dep_ in _PREPOSITIONAL
        if not length and not single:
            continue
        end = i + (length or 1)
        target = _target(tree, end - 1)
        tokens = tuple(range(i, end))
        if target is None or _is_idle(tree, tokens, target):
            continue
        noun = tree.noun(target)
        yield _Preposition(tokens, noun, noun is None, _head(tree, i))


def _target(tree: Tree, i: int) -> int | None:
    """The noun or pronoun behind a preposition."""
    inner = tree.children(i, "pobj")
    for k in tree.children(i, "prep"):
        inner += tree.children(k, "pobj")
    return inner[0] if inner else _noun_behind(tree, i)


def _noun_behind(tree: Tree, i: int) -> int | None:
    """The noun right behind a token, where the parser hung it elsewhere."""
    found = None
    for k in range(i + 1, len(tree.tokens)):
        if tree.tokens[k].pos_ not in ("DET", "ADJ", "NUM", "NOUN", "PROPN", "PRON"):
            break
        if tree.tokens[k].dep_ == "dobj":
            return None
        found = k if tree.is_noun(k) else found
    return found


def _is_idle(tree: Tree, tokens: tuple[int, ...], target: int) -> bool:
    first = tree.tokens[tokens[0]]
    if tree.is_nothing(target):
        return True
    if len(tokens) > 1:
        return False
    # "a group of", "a close up of"
    return first.lower_ in ("of", "up") and first.head.lower_ in QUANTITIES


def _head(tree: Tree, i: int) -> int:
    """The verb or noun that a preposition hangs on, through adverbs: "sitting next to"."""
    head = tree.tokens[i].head
    while head.pos_ in ("ADV", "ADP") and head.head.i != head.i:
        head = head.head
    return head.i


def _before(tree: Tree, one: _Preposition) -> int | None:
    """The noun in front of a preposition: what it hangs on, or what its verb speaks of."""
    head = one.head
    if tree.is_noun(head):
        return tree.noun(head)
    token = tree.tokens[head]
    if token.pos_ in ("VERB", "AUX", "ADJ") or tree.is_verb(head):
        inner = _object(tree, head)
        if inner is not None and head < inner < one.tokens[0]:
            return inner
        return tree.subject(head)
    return None
