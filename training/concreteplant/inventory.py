"""The words of a corpus, and where each was seen: what the corpus rewriter chooses from."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from slipform_training.concreteplant.anchors import Candidate
from slipform_training.concreteplant.meanings import PERSONS

VERSION = 1
_KEYS = frozenset({"captions", "words", "slots", "together"})

# How many words count as similar to one, and to how many places of a word others are compared.
_SIMILAR = 40
_PLACES = 60

# A pair of nouns seen together this often, and this many times as often as by chance, belongs
# together: where one is in a picture, the other may be as well.
_TOGETHER_COUNT = 2
_TOGETHER_RATIO = 2.0


class InventoryCounter:
    """Counts candidates; bounded by the words and places that there are, not by the captions."""

    def __init__(self) -> None:
        self.captions = 0
        self._words: Counter[tuple[str, str, str]] = Counter()
        self._facts: dict[tuple[str, str, str], tuple[str, float]] = {}
        self._forms: Counter[str] = Counter()
        self._slots: Counter[tuple[str, str, str, str]] = Counter()
        self._nouns: Counter[str] = Counter()
        self._pairs: Counter[tuple[str, str]] = Counter()

    def add(self, candidates: Sequence[Candidate]) -> None:
        """Counts one caption."""
        self.captions += 1
        nouns = set()
        for item in candidates:
            word = item.text.lower()
            key = (item.role, item.tag, word)
            self._words[key] += 1
            self._forms[word] += 1
            self._facts.setdefault(key, (item.lemma, item.concreteness))
            group = f"{item.role} {item.tag}"
            self._slots[(group, item.slot.frame, "", word)] += 1
            if item.slot.left:
                self._slots[(group, item.slot.frame, "<" + item.slot.left, word)] += 1
            if item.slot.right:
                self._slots[(group, item.slot.frame, ">" + item.slot.right, word)] += 1
            if item.role == "O":
                nouns.add(item.lemma)
        self._nouns.update(nouns)
        self._pairs.update((a, b) for a in nouns for b in nouns if a < b)

    def inventory(self) -> Inventory:
        """What was counted so far."""
        words = {
            "\t".join(key): [*self._facts[key], count, self._forms[key[2]]]
            for key, count in sorted(self._words.items())
        }
        slots: dict[str, dict[str, int]] = {}
        for (group, frame, side, word), count in sorted(self._slots.items()):
            slots.setdefault(f"{group}\t{frame}\t{side}", {})[word] = count
        together: dict[str, list[str]] = {}
        for (a, b), count in sorted(self._pairs.items()):
            chance = self._nouns[a] * self._nouns[b] / self.captions
            if count >= _TOGETHER_COUNT and count > _TOGETHER_RATIO * chance:
                together.setdefault(a, []).append(b)
                together.setdefault(b, []).append(a)
        return Inventory(
            {
                "version": VERSION,
                "captions": self.captions,
                "words": words,
                "slots": slots,
                "together": together,
            }
        )


class Inventory:
    """The words of a corpus by role, tag and place.

    Args:
        data: as InventoryCounter makes it, and json keeps it.

    Raises:
        ValueError: not an inventory, or one of another version.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        if data.get("version") != VERSION or not set(data) >= _KEYS:
            raise ValueError(
                f"inventory must be of version {VERSION} with {sorted(_KEYS)}, "
                f"got version {data.get('version')!r} with {sorted(data)}"
            )
        self.data = data
        # In a large corpus, a word seen once is more often a slip than a rarity.
        self.rare = min(2, data["captions"] // 1000)
        self._words: dict[str, list[Any]] = data["words"]
        self._slots: dict[str, dict[str, int]] = data["slots"]
        self._together = {word: frozenset(others) for word, others in data["together"].items()}
        self._seen = {place: sorted(words) for place, words in self._slots.items()}
        self._countable: dict[tuple[str, str, str], float] = {}
        self._similar: dict[tuple[str, str], frozenset[str]] = {}
        self._places, self._of_word = self._weigh()

    @classmethod
    def of(cls, captions: Iterable[Sequence[Candidate]]) -> Inventory:
        """The inventory of captions, given by their candidates."""
        counter = InventoryCounter()
        for candidates in captions:
            counter.add(candidates)
        return counter.inventory()

    def seen(self, anchor: Candidate, side: str = "") -> list[str]:
        """Words seen in the anchor's frame, sorted.

        Args:
            anchor: the word whose place it is.
            side: "<" for words that also had the same on the left, ">" on the right.
        """
        context = self.context(anchor, side)
        if side and not context:
            return []
        frame = f"{anchor.role} {anchor.tag}\t{anchor.slot.frame}"
        return self._seen.get(f"{frame}\t{side}{context}", [])

    @staticmethod
    def context(anchor: Candidate, side: str) -> str:
        """What the anchor has on the left ("<") or the right (">"); "" for side ""."""
        return {"": "", "<": anchor.slot.left, ">": anchor.slot.right}[side]

    def similar(self, anchor: Candidate) -> frozenset[str]:
        """The words that keep the company most like the anchor's, of its role and tag.

        By the cosine of their places' positive pointwise mutual information.
        """
        group, word = f"{anchor.role} {anchor.tag}", anchor.text.lower()
        key = (group, word)
        if key not in self._similar:
            own = self._of_word.get(group, {}).get(word, {})
            strongest = sorted(own.items(), key=lambda item: (-item[1], item[0]))[:_PLACES]
            scores: dict[str, float] = {}
            for place, weight in strongest:
                for other, its in self._places[group][place].items():
                    scores[other] = scores.get(other, 0.0) + weight * its
            scores.pop(word, None)
            best = heapq.nsmallest(_SIMILAR, scores.items(), key=lambda item: (-item[1], item[0]))
            self._similar[key] = frozenset(other for other, _ in best)
        return self._similar[key]

    def _weigh(
        self,
    ) -> tuple[dict[str, dict[str, dict[str, float]]], dict[str, dict[str, dict[str, float]]]]:
        """Unit vectors over places, by group: place to word and word to place."""
        counts: dict[str, dict[str, Counter[str]]] = {}
        for key, words in self._slots.items():
            group, _, side = key.split("\t")
            if side and side != "<^":
                counts.setdefault(group, {}).setdefault(side, Counter()).update(words)
        places: dict[str, dict[str, dict[str, float]]] = {}
        of_word: dict[str, dict[str, dict[str, float]]] = {}
        for group, by_place in counts.items():
            totals: Counter[str] = Counter()
            for words in by_place.values():
                totals.update(words)
            everything = sum(totals.values())
            vectors: dict[str, dict[str, float]] = {}
            for place, words in by_place.items():
                share = sum(words.values()) / everything
                for word, count in words.items():
                    weight = math.log(count / (totals[word] * share))
                    if weight > 0:
                        vectors.setdefault(word, {})[place] = weight
            for word, vector in vectors.items():
                # Words seen once or twice would otherwise look like everything they stood beside.
                norm = math.sqrt(sum(w * w for w in vector.values())) * (1 + 2 / totals[word])
                of_word.setdefault(group, {})[word] = {p: w / norm for p, w in vector.items()}
                for place, weight in vector.items():
                    places.setdefault(group, {}).setdefault(place, {})[word] = weight / norm
        return places, of_word

    def countable(self, anchor: Candidate, word: str) -> float:
        """The share of "a" among a singular noun's places that tell countable from uncountable."""
        key = (anchor.role, anchor.tag, word)
        share = self._countable.get(key)
        if share is None:
            with_a, bare, some = (
                self._slots.get(f"{anchor.role} {anchor.tag}\t{frame}\t", {}).get(word, 0)
                for frame in ("a", "bare", "some")
            )
            total = with_a + bare + some
            self._countable[key] = share = with_a / total if total else 0.5
        return share

    def fact(self, anchor: Candidate, word: str) -> tuple[str, float, int, int]:
        """A word's lemma, concreteness, count with the anchor's tag, and count with any."""
        lemma, rating, count, total = self._words[f"{anchor.role}\t{anchor.tag}\t{word}"]
        return lemma, rating, count, total

    def goes_with(self, lemma: str, others: Iterable[str]) -> bool:
        """Whether a noun is seen together with one of the others more often than by chance."""
        together = self._together.get(lemma)
        return together is not None and not together.isdisjoint(
            other for other in others if other not in PERSONS
        )
