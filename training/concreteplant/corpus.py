"""The corpus rewriter: replaces a word by another of the corpus that was seen in a like place."""

from __future__ import annotations

from collections.abc import Sequence

from slipform_training.concreteplant.anchors import Candidate
from slipform_training.concreteplant.inventory import Inventory
from slipform_training.concreteplant.meanings import (
    PERSONS,
    PLACES,
    VAGUE,
    attribute_rivals,
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
        for words in self._choices(anchor):
            fitting = [word for word in words if self._fits(word, anchor, others, present)]
            if fitting:
                return stream.choice(fitting)
        return None

    def _choices(self, anchor: Candidate) -> list[list[str]]:
        """Words to draw from, the best places first."""
        if anchor.role == "A":
            rivals = attribute_rivals(anchor.text.lower())
            return [[w for w in self._inventory.in_order(anchor) if w in rivals]]
        if anchor.tag == "IN":
            # Only places: to change "of" or "with" makes no sentence.
            if anchor.text.lower() not in PLACES:
                return []
            return [[w for w in self._inventory.in_order(anchor) if w in PLACES]]
        if anchor.lemma in VAGUE:
            return []
        left = self._inventory.seen(anchor, "<") if anchor.slot.left else {}
        right = self._inventory.seen(anchor, ">") if anchor.slot.right else {}
        frame = anchor.slot.frame
        if "modifier" in frame or anchor.slot.right == "of":
            places = [right]
        elif "compound" in frame:
            places = [left]
        else:
            places = [right, left] if anchor.slot.right.startswith("v:") else [left]
            places.append(self._inventory.seen(anchor))
        similar = self._inventory.similar(anchor)
        choices = [sorted(place.keys() & similar) for place in places]
        # Any noun can stand where a noun stood; a verb brings its own grammar.
        return choices if anchor.role == "R" else choices + [sorted(place) for place in places]

    def _counts_alike(self, word: str, anchor: Candidate) -> bool:
        share = self._inventory.countable(anchor, word)
        if anchor.slot.frame == "a":
            return share >= 0.4
        if anchor.slot.frame in ("bare", "some"):
            return share <= 0.4
        if anchor.slot.frame == "list":
            return abs(share - self._inventory.countable(anchor, anchor.text.lower())) <= 0.4
        return True

    def _fits(self, word: str, anchor: Candidate, others: Sequence[str], present: set[str]) -> bool:
        lemma, rating, count, total = self._inventory.fact(anchor, word)
        if abs(rating - anchor.concreteness) > self._tolerance + 1e-6:
            return False
        if word in present or lemma in present or not present.isdisjoint(word.split()):
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
        if may_both_hold(anchor.lemma, lemma) or (
            anchor.role == "O" and any(may_both_hold(other, lemma) for other in others)
        ):
            return False
        if anchor.role == "O" and self._inventory.goes_with(lemma, others):
            return False
        return self._thesaurus is None or not self._thesaurus.related(
            anchor.lemma, lemma, anchor.role
        )
