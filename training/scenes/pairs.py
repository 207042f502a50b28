"""Test pairs of scenes, in SugarCrepe's format and categories.

The negative caption is made from the scene, so it is surely false, and by the caption's own
grammar, so it is well formed. Nothing but the picture tells which of the two is true: in ``swap_*``
and ``replace_*`` both captions could as well be each other's; both hold equally many held-out noun
pairs and held-out colours. ``add_*`` negatives say one thing more than the caption, as in
SugarCrepe, so they are longer by nature.

In split "heldout" every pair shows two nouns that training never shows together, and ``swap_att``
and ``replace_att`` captions hold a held-out colour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from slipform_training.data import Stream
from slipform_training.evaluation import CATEGORIES, Pair, save_pairs
from slipform_training.scenes.captions import Mention, caption_text
from slipform_training.scenes.compose import Scene, Scenes
from slipform_training.scenes.config import SIZES

Edit = tuple[tuple[Mention, ...], str]

# About one scene in thirty serves the strictest category, a held-out colour that is swapped.
MAX_TRIES = 2000


@dataclass(frozen=True)
class ScenePair(Pair):
    """A test pair and the scene that its image shows."""

    scene: Scene


def build_pairs(
    scenes: Scenes,
    *,
    per_category: int = 100,
    seed: int = 0,
    split: str = "heldout",
    categories: Sequence[str] = CATEGORIES,
) -> list[ScenePair]:
    """Makes test pairs.

    Args:
        scenes: gives the scenes.
        per_category: pairs of each category.
        seed: chooses the scenes and the edits.
        split: see Scenes.scene.
        categories: names of CATEGORIES.

    Returns:
        The pairs, category by category; no two of a category have the same captions.

    Raises:
        ValueError: an unknown category.
        RuntimeError: the configuration gives too few pairs of a category, such as replace_rel
            with one relation.
    """
    pairs: list[ScenePair] = []
    for category in categories:
        if category not in _EDITS:
            raise ValueError(f"categories must be of {tuple(_EDITS)}, got {category!r}")
        seen: set[tuple[str, str]] = set()
        tries = per_category * MAX_TRIES
        for number in range(tries):
            if len(seen) == per_category:
                break
            stream = Stream(seed, "pair", split, category, number)
            scene = scenes.scene(stream.below(1 << 40), seed=seed, split=split)
            edited = _EDITS[category](scene, scenes, stream)
            if edited is None or not _fair(scene, edited[0], scenes, category):
                continue
            negative = caption_text(edited[0], relation=edited[1], phrasing=scene.phrasing)
            captions = (scene.caption, negative)
            if captions in seen:
                continue
            key = str(len(seen))
            seen.add(captions)
            pairs.append(
                ScenePair(category, key, f"{category}_{int(key):05d}.png", *captions, scene)
            )
        if len(seen) < per_category:
            raise RuntimeError(
                f"the configuration gives {len(seen)} pairs of {category} in {tries} tries, "
                f"per_category is {per_category}"
            )
    return pairs


def write_pairs(pairs: Sequence[ScenePair], scenes: Scenes, directory: str | Path) -> None:
    """Writes ``<category>.json`` and ``images/*.png`` into a folder, which is made if needed.

    Raises:
        ValueError: two pairs of a category have the same id.
    """
    save_pairs(pairs, directory)
    folder = Path(directory) / "images"
    folder.mkdir(exist_ok=True)
    for pair in pairs:
        Image.fromarray(scenes.render(pair.scene)).save(folder / pair.filename)


def pair_images(pairs: Iterable[ScenePair], scenes: Scenes) -> Callable[[str], NDArray[np.uint8]]:
    """A loader of the pairs' pictures by file name, rendered when asked for.

    The loader returns uint8 ``[resolution, resolution, 3]`` and raises FileNotFoundError for
    another name.
    """
    by_name = {pair.filename: pair.scene for pair in pairs}

    def load(filename: str) -> NDArray[np.uint8]:
        if filename not in by_name:
            raise FileNotFoundError(f"no pair has the image {filename!r}")
        return scenes.render(by_name[filename])

    return load


def _fair(scene: Scene, edited: tuple[Mention, ...], scenes: Scenes, category: str) -> bool:
    counts = []
    for mentions in (scene.mentions, edited):
        held_pairs = sum(
            frozenset((a.noun, b.noun)) in scenes.heldout.pairs
            for a, b in combinations(mentions, 2)
        )
        held_colours = sum((m.colour, m.noun) in scenes.heldout.colours for m in mentions)
        counts.append((held_pairs, held_colours))
    if scene.split == "heldout" and category.endswith("_att") and category != "add_att":
        wanted = 1 if scenes.heldout.colours else 0
        return counts[0] == counts[1] and counts[0][1] >= wanted
    return counts[0] == counts[1]


def _with(mentions: tuple[Mention, ...], number: int, mention: Mention) -> tuple[Mention, ...]:
    return (*mentions[:number], mention, *mentions[number + 1 :])


def _swap_objects(scene: Scene, scenes: Scenes, stream: Stream) -> Edit | None:
    # Only the subject's place is told, so the subject must be one of the two.
    mentions = scene.mentions
    other = 1 + stream.below(len(mentions) - 1)
    swapped = _with(mentions, 0, mentions[other])
    return _with(swapped, other, mentions[0]), scene.relation


def _swap_attributes(scene: Scene, scenes: Scenes, stream: Stream) -> Edit | None:
    mentions = scene.mentions
    options = [
        (i, j, name)
        for i, j in combinations(range(len(mentions)), 2)
        for name in ("colour", "size")
        if None not in (getattr(mentions[i], name), getattr(mentions[j], name))
        and getattr(mentions[i], name) != getattr(mentions[j], name)
    ]
    if not options:
        return None
    i, j, name = stream.choice(options)
    first, second = mentions[i], mentions[j]
    swapped = _with(mentions, i, replace(first, **{name: getattr(second, name)}))
    return _with(swapped, j, replace(second, **{name: getattr(first, name)})), scene.relation


def _replace_object(scene: Scene, scenes: Scenes, stream: Stream) -> Edit | None:
    mentions = scene.mentions
    number = stream.below(len(mentions))
    noun = _absent_noun(scene, scenes, stream)
    return _with(mentions, number, replace(mentions[number], noun=noun)), scene.relation


def _replace_attribute(scene: Scene, scenes: Scenes, stream: Stream) -> Edit | None:
    mentions = scene.mentions
    options = [
        (i, name)
        for i, mention in enumerate(mentions)
        for name in ("colour", "size")
        if getattr(mention, name) is not None
    ]
    if not options:
        return None
    i, name = stream.choice(options)
    values = SIZES if name == "size" else [colour.name for colour in scenes.config.colours]
    value = stream.choice([v for v in values if v != getattr(mentions[i], name)])
    return _with(mentions, i, replace(mentions[i], **{name: value})), scene.relation


def _replace_relation(scene: Scene, scenes: Scenes, stream: Stream) -> Edit | None:
    others = [name for name in scenes.config.relations if name != scene.relation]
    return (scene.mentions, stream.choice(others)) if others else None


def _add_object(scene: Scene, scenes: Scenes, stream: Stream) -> Edit | None:
    mentions = scene.mentions
    pattern = stream.choice(mentions)
    colour = stream.choice(scenes.config.colours).name
    added = Mention(
        noun=_absent_noun(scene, scenes, stream),
        colour=colour if pattern.colour else None,
        size=stream.choice(SIZES) if pattern.size else None,
    )
    place = 1 + stream.below(len(mentions))
    return (*mentions[:place], added, *mentions[place:]), scene.relation


def _add_attribute(scene: Scene, scenes: Scenes, stream: Stream) -> Edit | None:
    mentions = scene.mentions
    bare = [i for i, mention in enumerate(mentions) if mention.colour is None]
    if not bare:
        return None
    number = stream.choice(bare)
    wrong = [c.name for c in scenes.config.colours if c.name != scene.objects[number].colour]
    coloured = replace(mentions[number], colour=stream.choice(wrong))
    return _with(mentions, number, coloured), scene.relation


def _absent_noun(scene: Scene, scenes: Scenes, stream: Stream) -> str:
    present = Counter(item.noun for item in scene.objects)
    return stream.choice([n.name for n in scenes.config.nouns if n.name not in present])


_EDITS: dict[str, Callable[[Scene, Scenes, Stream], Edit | None]] = {
    "add_att": _add_attribute,
    "add_obj": _add_object,
    "replace_att": _replace_attribute,
    "replace_obj": _replace_object,
    "replace_rel": _replace_relation,
    "swap_att": _swap_attributes,
    "swap_obj": _swap_objects,
}
