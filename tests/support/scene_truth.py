"""Reads a scene's caption back and judges it by the sprites' boxes, colours and sizes alone.

It knows nothing of how captions are made, only their language.
"""

from __future__ import annotations

import re
from typing import Any

COLOURS = ("red", "green", "blue", "yellow", "purple")
_PLACES = {
    "to the left of": lambda a, b: a[2] <= b[0],
    "to the right of": lambda a, b: a[0] >= b[2],
    "above": lambda a, b: a[3] <= b[1],
    "below": lambda a, b: a[1] >= b[3],
}
_PHRASE = r"(?:an?|the) (?:(?P<size{0}>small|large) )?(?:(?P<colour{0}>%s) )?(?P<noun{0}>[a-z]+)"
_PHRASE = _PHRASE % "|".join(COLOURS)
_RELATION = re.compile(rf"(?P<relation>{'|'.join(_PLACES)})")


def parse(caption: str) -> tuple[list[dict[str, str | None]], str]:
    """The objects of a caption, subject first, and the relation's words.

    Raises AssertionError if the caption is not of the scenes' language.
    """
    found = _RELATION.search(caption)
    assert found is not None, caption
    before, after = caption[: found.start()].strip(), caption[found.end() :].strip()
    if not before:
        after, before = after.split(" there is ")
    before = re.sub(r"^(there is|here is) ", "", before)
    before = re.sub(r" is$", "", before)
    objects = [_phrase(before)]
    *listed, last = after.split(" and ") if " and " in after else [after]
    for part in [*(", ".join(listed).split(", ") if listed else []), last]:
        objects.append(_phrase(part))
    return objects, found["relation"]


def holds(caption: str, scene: Any) -> bool:
    """Whether everything that the caption says is so in the scene."""
    objects, relation = parse(caption)
    sprites = {item.noun: item for item in scene.objects}
    for said in objects:
        sprite = sprites.get(said["noun"] or "")
        if sprite is None:
            return False
        if said["colour"] not in (None, sprite.colour) or said["size"] not in (None, sprite.size):
            return False
    subject, *others = (sprites[said["noun"] or ""].box for said in objects)
    return all(_PLACES[relation](subject, other) for other in others)


def plain_words(caption: str) -> list[str]:
    """The caption's words with "an" written as "a"."""
    return ["a" if word == "an" else word for word in caption.replace(",", " ,").split()]


def _phrase(text: str) -> dict[str, str | None]:
    found = re.fullmatch(_PHRASE.format(0), text)
    assert found is not None, text
    article = text.split()[0]
    if article != "the":
        assert article == ("an" if text.split()[1][0] in "aeiou" else "a"), text
    return {name: found[f"{name}0"] for name in ("size", "colour", "noun")}
