"""The options of scenes, and what their captions are made of."""

from __future__ import annotations

from dataclasses import dataclass

from slipform_training.scenes.nouns import COLOURS, NOUNS, Colour, Noun

# The subject's place, as seen from the other objects.
RELATIONS: dict[str, str] = {
    "left": "to the left of",
    "right": "to the right of",
    "above": "above",
    "below": "below",
}

SIZES: tuple[str, ...] = ("small", "large")

PHRASINGS: dict[str, str] = {
    "plain": "{subject} {relation} {others}",
    "is": "{subject} is {relation} {others}",
    "there": "there is {subject} {relation} {others}",
    "here": "here is {subject} {relation} {others}",
    "definite": "{subject} is {relation} {others}",
    "inverted": "{relation} {others} there is {subject}",
}

MAX_OBJECTS = 4


@dataclass(frozen=True, kw_only=True)
class SceneConfig:
    """Options of scenes.

    Attributes:
        resolution: width and height of the picture in pixels.
        relations: names of RELATIONS that captions use.
        phrasings: names of PHRASINGS that captions use.
        object_counts: how many sprites a scene may have, 2 to 4, drawn evenly: (2, 2, 3) gives
            a third of the scenes three. Names the subject's relation to all the others.
        bare_share: share of captions without colours.
        single_share: share of captions that name one object's colour; the rest name all.
        size_share: share of captions that name all sizes. Every sprite is small or large.
        textured_share: share of textured backgrounds; the rest are plain.
        heldout_pairs: share of noun pairs that no training scene shows together.
        heldout_colours: share of (colour, noun) combinations that no training scene shows.
        heldout_seed: chooses which; apart from the scenes' seed, so that test scenes of any seed
            stay unseen.
        nouns: names are unique.
        colours: names are unique.

    Raises:
        ValueError: an option out of range.
    """

    resolution: int = 64
    relations: tuple[str, ...] = ("left", "right", "above", "below")
    phrasings: tuple[str, ...] = ("plain", "is", "there", "here", "definite")
    object_counts: tuple[int, ...] = (2,)
    bare_share: float = 0.2
    single_share: float = 0.2
    size_share: float = 0.2
    textured_share: float = 0.5
    heldout_pairs: float = 0.2
    heldout_colours: float = 0.1
    heldout_seed: int = 0
    nouns: tuple[Noun, ...] = NOUNS
    colours: tuple[Colour, ...] = COLOURS

    def __post_init__(self) -> None:
        if self.resolution < 16:
            raise ValueError(f"resolution must be 16 or more, got {self.resolution}")
        _known("relations", self.relations, RELATIONS)
        _known("phrasings", self.phrasings, PHRASINGS)
        counts = self.object_counts
        if not counts or not all(2 <= count <= MAX_OBJECTS for count in counts):
            raise ValueError(f"object_counts must be from 2 to {MAX_OBJECTS}, got {counts}")
        shares = ("bare_share", "single_share", "size_share", "textured_share", "heldout_pairs")
        for name in (*shares, "heldout_colours"):
            share = getattr(self, name)
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"{name} must be from 0 to 1, got {share}")
        if self.bare_share + self.single_share > 1.0:
            raise ValueError(
                "bare_share and single_share must add up to 1 at most, "
                f"got {self.bare_share} and {self.single_share}"
            )
        for name, least in (("nouns", MAX_OBJECTS + 1), ("colours", 2)):
            names = [item.name for item in getattr(self, name)]
            if len(set(names)) != len(names) or len(names) < least:
                raise ValueError(f"{name} must be {least} or more with unique names, got {names}")


def _known(name: str, given: tuple[str, ...], table: dict[str, str]) -> None:
    if not given or any(item not in table for item in given):
        raise ValueError(f"{name} must be one or more of {tuple(table)}, got {given}")
