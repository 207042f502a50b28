"""Lemmas that the small pipeline gets wrong, mended with the help of a dictionary."""

from __future__ import annotations

import re
from collections.abc import Container

# One syllable that ends in one vowel and one consonant doubles it before an ending: "sit",
# "sitting". So the "riding" of such a lemma, "rid", comes from "ride".
_DOUBLES = re.compile(r"[^aeiou]*[aeiouy][^aeiouwxy]")
_ENDINGS = ("ing", "ed", "es", "s")


def mend_lemma(surface: str, lemma: str, dictionary: Container[str]) -> str:
    """The lemma, or a better one where the rules of spelling and the dictionary contradict it.

    Args:
        surface: the word as in the text.
        lemma: the pipeline's.
        dictionary: the lemmas that there are, lower case.

    Returns:
        A lemma, lower case; the given one where nothing better is known.
    """
    surface, lemma = surface.lower(), lemma.lower()
    if not lemma.endswith("e") and lemma + "e" in dictionary and _lacks_e(surface, lemma):
        return lemma + "e"
    if lemma in dictionary:
        return lemma
    return next((word for word in _stems(surface, lemma) if word in dictionary), lemma)


def _lacks_e(surface: str, lemma: str) -> bool:
    if surface in (lemma + "ing", lemma + "ed"):
        return _DOUBLES.fullmatch(lemma) is not None
    return surface == lemma + "es" and not lemma.endswith(("s", "x", "z", "ch", "sh", "o"))


def _stems(surface: str, lemma: str) -> list[str]:
    stems = [lemma.removesuffix("e"), lemma + "e"]
    for ending in _ENDINGS:
        if surface.endswith(ending):
            stem = surface.removesuffix(ending)
            stems += [stem, stem + "e"]
            if len(stem) > 2 and stem[-1] == stem[-2]:
                stems.append(stem[:-1])
    return [*stems, surface]
