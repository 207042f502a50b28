"""Captions of scenes: what is mentioned, and how it is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipform_training.data import Stream
from slipform_training.scenes.config import PHRASINGS, RELATIONS


@dataclass(frozen=True)
class Mention:
    """An object as a caption names it; None leaves the colour or the size out."""

    noun: str
    colour: str | None = None
    size: str | None = None

    @property
    def words(self) -> str:
        """The words without an article, such as "small red car"."""
        return " ".join(word for word in (self.size, self.colour, self.noun) if word)


def caption_text(mentions: Sequence[Mention], *, relation: str, phrasing: str) -> str:
    """A caption: the first object's relation to all the others.

    Args:
        mentions: two or more; the first is the subject.
        relation: a name of RELATIONS.
        phrasing: a name of PHRASINGS.

    Returns:
        A lower-case phrase without a full stop, such as "a red car above a dog and an owl".

    Raises:
        ValueError: fewer than two mentions, or an unknown name.
    """
    if len(mentions) < 2:
        raise ValueError(f"mentions must be two or more, got {len(mentions)}")
    if relation not in RELATIONS:
        raise ValueError(f"relation must be one of {tuple(RELATIONS)}, got {relation!r}")
    if phrasing not in PHRASINGS:
        raise ValueError(f"phrasing must be one of {tuple(PHRASINGS)}, got {phrasing!r}")
    definite = phrasing == "definite"
    subject, *others = [
        f"the {mention.words}" if definite else f"{_article(mention.words)} {mention.words}"
        for mention in mentions
    ]
    listed = others[0] if len(others) == 1 else f"{', '.join(others[:-1])} and {others[-1]}"
    return PHRASINGS[phrasing].format(subject=subject, relation=RELATIONS[relation], others=listed)


def shuffle_words(caption: str, *, seed: int, index: int) -> str:
    """The caption's words in a random order that depends on ``(seed, index)`` alone.

    A model trained on such captions can only learn which words there are, not how they are bound.
    """
    return " ".join(Stream(seed, "shuffle words", index).shuffled(caption.split()))


def _article(words: str) -> str:
    # Enough for the scenes' own words: none has a silent h or a vowel that sounds as a consonant.
    return "an" if words[0] in "aeiou" else "a"
