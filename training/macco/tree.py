"""A caption's dependency parse, with the questions that the extraction asks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from slipform_training.macco.vocabulary import (
    ALWAYS_NOUNS,
    ALWAYS_VERBS,
    COLOURS,
    FIXED,
    NO_TARGETS,
    POSITIONS,
    QUANTITIES,
)

_NOUNS = ("NOUN", "PROPN")
_SUBJECTS = ("nsubj", "nsubjpass", "csubj")


class Tree:
    """The tokens of a spaCy Doc; everywhere, a token is named by its number."""

    def __init__(self, doc: Any) -> None:
        self.doc = doc
        self.tokens: list[Any] = list(doc)

    def text(self, numbers: Iterable[int]) -> str:
        """The tokens as they stand in the caption where they follow one another, else joined."""
        return " ".join(self.runs(numbers))

    def runs(self, numbers: Iterable[int]) -> list[str]:
        """The texts of runs of consecutive tokens."""
        runs: list[list[int]] = []
        for i in sorted(set(numbers)):
            if runs and runs[-1][-1] == i - 1:
                runs[-1].append(i)
            else:
                runs.append([i])
        return [self.doc[run[0] : run[-1] + 1].text for run in runs]

    def children(self, i: int, *relations: str) -> list[int]:
        """The token's children that stand in one of the relations to it, in order."""
        return [one.i for one in self.tokens[i].children if one.dep_ in relations]

    def is_colour(self, i: int) -> bool:
        """Whether the token is the name of a colour."""
        return 0 <= i < len(self.tokens) and self.tokens[i].lower_ in COLOURS

    def is_noun(self, i: int) -> bool:
        """Whether the token names a thing; the small pipeline takes some for verbs."""
        token = self.tokens[i]
        if token.lower_ in ALWAYS_NOUNS:
            return True
        if token.pos_ in _NOUNS:
            return not self.is_verb(i)
        # "a stove, window and sink", "a microwave oven": bare forms after a noun.
        return token.pos_ == "VERB" and not self.is_verb(i) and token.dep_ in ("conj", "acl")

    def is_verb(self, i: int) -> bool:
        """Whether the token is a verb that says what something does."""
        token = self.tokens[i]
        if token.lower_ in ALWAYS_NOUNS or self.is_participle(i):
            return False
        if token.lower_ in ALWAYS_VERBS:
            return True
        if token.pos_ in _NOUNS:
            if i and token.lower_.endswith("ing") and self.tokens[i - 1].pos_ == "AUX":
                return True
            # "A pitcher winds up": a noun cannot have a subject of its own.
            return bool(self.children(i, *_SUBJECTS)) and not self.children(
                i, "det", "cop", "amod", "compound", "poss", "case"
            )
        if token.pos_ != "VERB" or token.dep_ in ("amod", "compound"):
            return False
        bare = token.tag_ in ("VB", "VBP", "VBD") and not token.lower_.endswith(("ed", "ing"))
        after_noun = token.dep_ in ("acl", "conj") and token.head.pos_ in _NOUNS
        return not (bare and after_noun and not self.children(i, *_SUBJECTS, "aux"))

    def is_participle(self, i: int) -> bool:
        """Whether a verb's form stands before its noun like an adjective, as in "parked cars"."""
        token = self.tokens[i]
        if token.pos_ != "VERB" or not token.lower_.endswith(("ed", "en", "ing")):
            return False
        if token.dep_ == "amod":
            # Not "a cat looking reflection".
            return i == 0 or self.tokens[i - 1].pos_ not in _NOUNS or token.tag_ == "VBN"
        target = self.children(i, "dobj")
        behind = bool(target) and self.compound(target[0])[0] == i + 1
        opens = i == 0 or self.tokens[i - 1].pos_ in ("DET", "CCONJ", "ADP", "ADJ", "NUM")
        return behind and opens and token.tag_ != "VBG" and not self.children(i, *_SUBJECTS, "aux")

    def is_part(self, i: int) -> bool:
        """Whether the noun is a part of the noun behind it, as in "microwave oven"."""
        token = self.tokens[i]
        if self.is_fixed(i):
            return True
        if token.dep_ in ("compound", "nmod") and token.head.i > i:
            return not any(self.is_verb(k) for k in range(i, token.head.i + 1))
        # The parser takes "oven" for a verb here, and the words for two.
        following = self.tokens[i + 1] if i + 1 < len(self.tokens) else None
        return (
            following is not None
            and token.pos_ in _NOUNS
            and following.lower_ in ALWAYS_NOUNS
            and following.pos_ not in _NOUNS
        )

    def is_fixed(self, i: int) -> bool:
        """Whether the token begins a name that is taken as it is, as "hot dog"."""
        return tuple(token.lower_ for token in self.tokens[i : i + 2]) in FIXED

    def whole(self, i: int) -> int:
        """The last noun of the compound that the noun is in."""
        while self.is_part(i):
            token = self.tokens[i]
            i = (
                token.head.i
                if not self.is_fixed(i) and token.dep_ in ("compound", "nmod") and token.head.i > i
                else i + 1
            )
        return i

    def heads(self) -> list[int]:
        """The nouns that name things of their own: no parts of compounds, no "group" of."""
        return [
            i
            for i, token in enumerate(self.tokens)
            if self.is_noun(i)
            and not self.is_part(i)
            and not self.is_nothing(i)
            and any(sign.isalpha() for sign in token.text)
            and self.noun(i) == i
        ]

    def is_nothing(self, i: int) -> bool:
        """Whether the noun names no thing: a time, or a mere place in the picture."""
        word = self.tokens[i].lower_
        if word in NO_TARGETS:
            return True
        return word in POSITIONS and not self.children(i, "amod", "compound", "nmod")

    def noun(self, i: int) -> int | None:
        """The thing that a noun is about: of "a group of horses" the horses; None if no noun."""
        for _ in range(4):
            token = self.tokens[i]
            if token.lower_ not in QUANTITIES:
                break
            inner = [k for of in self.children(i, "prep") for k in self._of(of)]
            if not inner:
                break
            i = inner[0]
        return self.whole(i) if self.is_noun(i) else None

    def _of(self, i: int) -> list[int]:
        return self.children(i, "pobj") if self.tokens[i].lower_ == "of" else []

    def compound(self, i: int, *, without: Collection[int] = ()) -> tuple[int, ...]:
        """The noun with the nouns before it that belong to it, such as "street sign"."""
        first = i
        while first > 0:
            if not self.is_part(first - 1) or self.whole(first - 1) != i or first - 1 in without:
                break
            first -= 1
        return tuple(range(self.hyphenated(first)[0], i + 1))

    def hyphenated(self, i: int) -> tuple[int, ...]:
        """The token with what hyphens join to it, without spaces between."""
        first = last = i
        while first >= 2 and self._joined(first - 2, first - 1, first):
            first -= 2
        while last + 2 < len(self.tokens) and self._joined(last, last + 1, last + 2):
            last += 2
        return tuple(range(first, last + 1))

    def _joined(self, *numbers: int) -> bool:
        a, hyphen, _ = (self.tokens[i] for i in numbers)
        return hyphen.text == "-" and not a.whitespace_ and not hyphen.whitespace_

    def subject(self, i: int) -> int | None:
        """The noun that does what the verb says, if the caption has it."""
        for _ in range(len(self.tokens)):
            own = self.children(i, *_SUBJECTS)
            if own:
                return self._antecedent(own[0], i)
            there = self.children(i, "expl")
            if there:
                found = self.children(i, "attr", "dobj")
                return self.noun(found[0]) if found else None
            token = self.tokens[i]
            if token.dep_ in ("acl", "relcl") and token.head.i != i:
                wearing = token.head.head
                # "A man wearing glasses standing by a cow": it is not the glasses that stand.
                if token.head.dep_ == "dobj" and wearing.lemma_ == "wear":
                    i = wearing.i
                    continue
                return self.noun(token.head.i)
            if token.lower_ in ALWAYS_VERBS and token.pos_ in _NOUNS and i:
                return self.noun(i - 1)
            if token.dep_ not in ("conj", "advcl", "xcomp", "ccomp", "pcomp", "attr", "acomp"):
                return None
            if self.is_noun(token.head.i) and token.dep_ == "conj":
                return self.noun(token.head.i)
            i = token.head.i
        return None

    def _antecedent(self, subject: int, verb: int) -> int | None:
        """Of "a stove that is white" the stove."""
        if self.tokens[subject].lower_ in ("that", "which", "who"):
            return self.noun(self.tokens[verb].head.i)
        return self.noun(subject)

    def starting(self, runs: Sequence[tuple[str, ...]], i: int) -> int:
        """How many tokens the first of `runs` has that stands at the token; 0 if none does."""
        for run in runs:
            words = self.tokens[i : i + len(run)]
            if tuple(token.lower_ for token in words) == run:
                return len(run)
        return 0
