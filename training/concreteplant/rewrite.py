"""Hard captions: one word of a caption replaced by another of the corpus, or two swapped.

Second stage of ConcretePlant (arXiv 2604.13313), where the paper asks a language model to rewrite
the anchor word. Here the corpus itself gives the word, as in NegCLIP (Yuksekgonul et al. 2022),
whose word swap is here too.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from slipform_training.concreteplant.anchors import Candidate
from slipform_training.data import Stream


@dataclass(frozen=True)
class HardCaption:
    """A caption made false by a small edit.

    Attributes:
        hard_caption: the text.
        replaced: the words that the edit took out; of a swap, the earlier of the two.
        replacement: the words in their place; of a swap, the later of the two.
        edit: what changed: "O" object, "A" attribute, "R" relation.
        concreteness: of the replaced word, 1 to 5; of a swap, the two words' mean.
        rewriter: what made it, such as "replace" or "swap".
    """

    hard_caption: str
    replaced: str
    replacement: str
    edit: str
    concreteness: float
    rewriter: str


class WordInventory:
    """The candidates of a corpus, by role and fine-grained tag, in order of concreteness.

    Equal tags keep number and verb form: a plural is replaced by a plural.

    Args:
        captions: the candidates of each caption.
    """

    def __init__(self, captions: Iterable[Sequence[Candidate]]) -> None:
        words: dict[tuple[str, str], dict[str, tuple[float, str]]] = {}
        for candidates in captions:
            for item in candidates:
                group = words.setdefault((item.role, item.tag), {})
                group.setdefault(item.text.lower(), (item.concreteness, item.lemma))
        self._groups = {
            key: sorted((rating, word, lemma) for word, (rating, lemma) in group.items())
            for key, group in words.items()
        }

    def similar(self, anchor: Candidate, *, tolerance: float) -> list[tuple[str, str]]:
        """Words of the anchor's role and tag within the tolerance of its concreteness.

        Returns:
            (word, lemma), lower case, from the least to the most concrete; the anchor's own word
            is among them if the corpus has it.
        """
        group = self._groups.get((anchor.role, anchor.tag), [])
        # Ratings have two decimals; the slack keeps a difference equal to the tolerance inside.
        reach = tolerance + 1e-6
        low = bisect_left(group, (anchor.concreteness - reach,))
        high = bisect_right(group, (anchor.concreteness + reach, "\U0010ffff", ""))
        return [(word, lemma) for _, word, lemma in group[low:high]]


def replace_word(
    caption: str,
    anchor: Candidate,
    *,
    candidates: Sequence[Candidate],
    inventory: WordInventory,
    tolerance: float,
    stream: Stream,
) -> HardCaption | None:
    """Replaces the anchor by a similar word of the corpus that the caption does not have.

    An article "a" or "an" before it is made to agree. Among the words that qualify each is
    equally likely.

    Args:
        caption: the text.
        anchor: one of its candidates.
        candidates: all its candidates; neither they nor their lemmas are taken.
        inventory: the corpus's words.
        tolerance: largest difference in concreteness.
        stream: chooses the word.

    Returns:
        The hard caption, or None if no word qualifies.
    """
    present = set(re.findall(r"[\w'-]+", caption.lower()))
    present |= {item.lemma for item in candidates} | {item.text.lower() for item in candidates}
    options = [
        word
        for word, lemma in inventory.similar(anchor, tolerance=tolerance)
        if word not in present
        and lemma not in present
        and not present.intersection(word.split())
        and (word in _SINGULAR) == (anchor.text.lower() in _SINGULAR)
    ]
    if not options:
        return None
    return replaced_by(caption, anchor, stream.choice(options), rewriter="replace")


def replaced_by(caption: str, anchor: Candidate, word: str, *, rewriter: str) -> HardCaption:
    """The caption with a word in the anchor's place; article and capital are made to agree."""
    return HardCaption(
        hard_caption=_put(caption, [(anchor, word)]),
        replaced=anchor.text,
        replacement=_cased(word, anchor.text),
        edit=anchor.role,
        concreteness=anchor.concreteness,
        rewriter=rewriter,
    )


def swap_words(
    caption: str,
    *,
    candidates: Sequence[Candidate],
    tolerance: float,
    stream: Stream,
    min_concreteness: float = 1.0,
) -> HardCaption | None:
    """Swaps two objects, two attributes of different objects, or two objects with their attributes.

    The two have the same tag and similar concreteness, so that they are likely of one kind.
    Attributes must stand equally far before their nouns. An object's attributes are the rated
    adjectives, numbers and nouns directly before it; a swap with them changes only the relation.
    Articles are made to agree. The caption is made false only if it tells the two apart: "a cat
    and a dog" stays true.

    Args:
        caption: the text.
        candidates: its candidates, in the order of the text.
        tolerance: largest difference in concreteness.
        stream: chooses among the three kinds that are possible, then which two.
        min_concreteness: words below it are not swapped on their own.

    Returns:
        The hard caption, or None if no two qualify.
    """
    options: dict[str, list[tuple[Candidate, Candidate]]] = {}
    rated = [item for item in candidates if item.concreteness >= min_concreteness]
    for first, second in combinations(rated, 2):
        if not _swappable(first, second, tolerance):
            continue
        options.setdefault(first.role, []).append((first, second))
        if first.role == "O":
            phrases = (
                _with_attributes(caption, first, candidates),
                _with_attributes(caption, second, candidates),
            )
            if phrases != (first, second) and phrases[0].end <= phrases[1].start:
                options.setdefault("phrase", []).append(phrases)
    if not options:
        return None
    first, second = stream.choice(options[stream.choice(sorted(options))])
    return HardCaption(
        hard_caption=_put(caption, [(first, second.text), (second, first.text)]),
        replaced=first.text,
        replacement=second.text,
        edit=first.role,
        concreteness=(first.concreteness + second.concreteness) / 2,
        rewriter="swap",
    )


def indefinite_article(word: str) -> str:
    """ "a" or "an" for the word that follows: by its first letter, but for common exceptions."""
    lower = word.lower()
    if lower.startswith(_SILENT_H):
        return "an"
    if lower.startswith(_CONSONANT_SOUND):
        return "a"
    return "an" if lower[:1] in "aeiou" else "a"


# Numbers that take a singular noun: no other number can stand in their place.
_SINGULAR = frozenset({"one", "1", "single", "another"})
_SILENT_H = ("hour", "honest", "honor", "honour", "heir")
_CONSONANT_SOUND = ("uni", "use", "usu", "ute", "eu", "one", "once", "u-")


def _swappable(first: Candidate, second: Candidate, tolerance: float) -> bool:
    if first.role == "R" or (first.role, first.tag) != (second.role, second.tag):
        return False
    if first.text.lower() == second.text.lower():
        return False
    if abs(first.concreteness - second.concreteness) > tolerance + 1e-6:
        return False
    if first.role == "A":
        of_two_nouns = first.nouns_before < second.nouns_before
        return of_two_nouns and first.to_noun == second.to_noun >= 0
    # A noun directly before another, as in "coffee table", is no object of its own.
    return first.to_noun != 0 and second.to_noun != 0


def _with_attributes(caption: str, noun: Candidate, candidates: Sequence[Candidate]) -> Candidate:
    start = noun.start
    for item in reversed(candidates):
        if item.role in "AO" and item.end < start and caption[item.end : start].isspace():
            start = item.start
    return noun._replace(start=start, text=caption[start : noun.end])


def _cased(word: str, pattern: str) -> str:
    return word[:1].upper() + word[1:] if pattern[:1].isupper() else word


def _put(caption: str, edits: Sequence[tuple[Candidate, str]]) -> str:
    out = caption
    # From the end, so that earlier positions stay right.
    for place, word in sorted(edits, key=lambda edit: -edit[0].start):
        before, after = out[: place.start], out[place.end :]
        article = re.search(r"\b(an?)(\s+)$", before, flags=re.IGNORECASE)
        if article:
            right = _cased(indefinite_article(word), article[1])
            before = before[: article.start()] + right + article[2]
        lowered = word if place.text[:1].isupper() else word[:1].lower() + word[1:]
        out = before + _cased(lowered, place.text) + after
    return out
