"""The corpus rewriter: replaces a word by another of the corpus that was seen in a like place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from slipform_training.concreteplant.anchors import Candidate
from slipform_training.concreteplant.inventory import Inventory
from slipform_training.concreteplant.meanings import (
    MATERIALS,
    PERSONS,
    PLACES,
    VAGUE,
    attribute_rivals,
    clashes_with_pronoun,
    may_both_hold,
)
from slipform_training.concreteplant.rewrite import replaced_by
from slipform_training.concreteplant.rewriters import (
    Job,
    Outcome,
    Refusal,
    Thesaurus,
    present_words,
)
from slipform_training.data import Stream

# Lists of fitting words that are kept, each up to some thousand words.
_KEPT = 20_000
_SINGULAR = frozenset({"one", "1", "single", "another"})


class CorpusRewriter:
    """Replaces an anchor by a word of its role and tag, similarly concrete, seen in such a place.

    Args:
        inventory: the corpus's words.
        tolerance: largest difference in concreteness.
        thesaurus: WordNet, whose synonyms and hypernyms are not taken; None: the package's own
            small table alone.
    """

    name = "corpus"

    def __init__(
        self, inventory: Inventory, *, tolerance: float = 0.5, thesaurus: Thesaurus | None = None
    ) -> None:
        self._inventory = inventory
        self._tolerance = tolerance
        self._thesaurus = thesaurus
        self._kept: dict[tuple[object, ...], list[str]] = {}

    def rewrite(self, jobs: Sequence[Job]) -> list[Outcome]:
        """One outcome a job; a job's anchors are tried in turn."""
        return [self._rewrite(job) for job in jobs]

    def _rewrite(self, job: Job) -> Outcome:
        stream = job.stream(self.name)
        present = present_words(job)
        for anchor in job.anchors:
            others = [c.lemma for c in job.candidates if c.role == "O" and c is not anchor]
            word = self._draw(anchor, others, present, stream)
            if word is not None:
                return replaced_by(job.caption, anchor, word, rewriter=self.name)
        return Refusal("no word of the corpus fits")

    def _draw(
        self, anchor: Candidate, others: Sequence[str], present: set[str], stream: Stream
    ) -> str | None:
        for place, words in self._choices(anchor):
            left = list(self._fitting(anchor, place, words))
            while left:
                # Each that fits is equally likely, and few need be looked at.
                at = stream.below(len(left))
                word, left[at] = left[at], left[-1]
                left.pop()
                if self._is_false(word, anchor, others, present):
                    return word
        return None

    def _fitting(self, anchor: Candidate, place: str, words: Iterable[str]) -> list[str]:
        """The words that could stand for the anchor in any caption; kept, as words recur."""
        key = (anchor.text.lower(), anchor.lemma, anchor.role, anchor.tag, anchor.slot.frame, place)
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            found = [word for word in words if self._fits(word, anchor)]
            self._kept[key] = found
        return found

    def _choices(self, anchor: Candidate) -> Iterator[tuple[str, Iterable[str]]]:
        """Names of places and the words to draw from there, the best first."""
        words = self._inventory
        slot = anchor.slot
        if anchor.role == "A":
            rivals = attribute_rivals(anchor.text.lower())
            yield "rivals", (word for word in words.seen(anchor) if word in rivals)
        elif anchor.tag == "IN":
            # Only places: to change "of" or "with" makes no sentence.
            if anchor.text.lower() in PLACES:
                yield "places", (word for word in words.seen(anchor) if word in PLACES)
        elif anchor.lemma not in VAGUE and "attributive" not in slot.frame:
            # (A participle before a noun is true beside others: "parked cars" may be "painted".)
            if "modifier" in slot.frame or slot.right == "of":
                sides = [">"]
            elif "compound" in slot.frame:
                sides = ["<"]
            else:
                sides = [">", "<", ""] if slot.right.startswith("v:") else ["<", ""]
            similar = words.similar(anchor)
            places = [(side + words.context(anchor, side), side) for side in sides]
            for place, side in places:
                seen = words.seen(anchor, side)
                yield "similar" + place, (word for word in seen if word in similar)
            # Any noun can stand where a noun stood; a verb brings its own grammar.
            if anchor.role != "R":
                yield from ((place, words.seen(anchor, side)) for place, side in places)

    def _counts_alike(self, word: str, anchor: Candidate) -> bool:
        share = self._inventory.countable(anchor, word)
        if anchor.slot.frame == "a":
            return share >= 0.5
        if anchor.slot.frame in ("bare", "some"):
            return share <= 0.4
        if anchor.slot.frame == "list":
            return abs(share - self._inventory.countable(anchor, anchor.text.lower())) <= 0.4
        return True

    def _fits(self, word: str, anchor: Candidate) -> bool:
        lemma, rating, count, total = self._inventory.fact(anchor, word)
        if abs(rating - anchor.concreteness) > self._tolerance + 1e-6:
            return False
        # A word that mostly has another tag was likely mistagged here.
        if 2 * count < total or count <= self._inventory.rare or lemma in VAGUE:
            return False
        if anchor.tag == "NN" and not self._counts_alike(word, anchor):
            return False
        if (word in _SINGULAR) != (anchor.text.lower() in _SINGULAR):
            return False
        if anchor.role == "O" and (anchor.lemma in PERSONS) != (lemma in PERSONS):
            return False
        if "modifier" in anchor.slot.frame and (anchor.lemma in MATERIALS) != (lemma in MATERIALS):
            return False
        if may_both_hold(anchor.lemma, lemma):
            return False
        return self._thesaurus is None or not self._thesaurus.related(
            anchor.lemma, lemma, anchor.role
        )

    def _is_false(
        self, word: str, anchor: Candidate, others: Sequence[str], present: set[str]
    ) -> bool:
        lemma = self._inventory.fact(anchor, word)[0]
        if word in present or lemma in present or not present.isdisjoint(word.split()):
            return False
        if anchor.role != "O":
            return True
        if any(may_both_hold(other, lemma) for other in others):
            return False
        if clashes_with_pronoun(lemma, present):
            return False
        return not self._inventory.goes_with(lemma, others)
