"""Boxes from instance annotations in COCO's format, matched to the nouns of phrases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from slipform_training.macco.boxes import Box
from slipform_training.macco.categories import Categories
from slipform_training.macco.patch_mask import OVERSHOOT
from slipform_training.macco.rows import Phrase
from slipform_training.mining.json_stream import array_entries
from slipform_training.mining.rows import InputError

# Of several instances, the one that a caption means is that which is so many times as large.
CLEARLY_LARGER = 2.0

NOT_ANNOTATED = "image not in the annotations"


class Instance(NamedTuple):
    """An annotated thing; a crowd is several."""

    category: int
    box: Box
    is_crowd: bool

    @property
    def area(self) -> float:
        """Pixels of the box."""
        return (self.box.x2 - self.box.x1) * (self.box.y2 - self.box.y1)


@dataclass(frozen=True)
class InstanceBoxes:
    """A Detector that looks phrases up in annotations.

    A plural noun has the boxes of all instances of its category. A singular one has the only
    instance; of several, in a relation, that of the pair which is nearest to one another, else the
    one that is CLEARLY_LARGER than the next. Where that leaves a doubt, the phrase has no box.

    Attributes:
        categories: of the annotations.
        instances: by the image's file name.
    """

    categories: Categories
    instances: Mapping[str, Sequence[Instance]]

    @staticmethod
    def read(paths: Sequence[Path]) -> InstanceBoxes:
        """Reads files with images, annotations and categories; of those, boxes are kept.

        Raises:
            InputError: not such a file, or a box that is none; the message names the annotation.
        """
        names: dict[int, str] = {}
        found: dict[str, list[Instance]] = {}
        for path in paths:
            try:
                names.update((one["id"], one["name"]) for one in array_entries(path, "categories"))
                images = {one["id"]: one for one in array_entries(path, "images")}
                found.update({one["file_name"]: [] for one in images.values()})
                for one in array_entries(path, "annotations"):
                    if one["image_id"] not in images or one["category_id"] not in names:
                        raise InputError(
                            f"{path}, annotation {one['id']}: no image {one['image_id']!r} or no "
                            f"category {one['category_id']!r} in the file"
                        )
                    image = images[one["image_id"]]
                    found[image["file_name"]].append(_instance(one, image, path))
            except (KeyError, TypeError) as error:
                raise InputError(
                    f"{path} must be COCO's instances, with images (id, file_name, width, height), "
                    "categories (id, name) and annotations (id, image_id, category_id, bbox); "
                    f"missing: {error}"
                ) from error
        return InstanceBoxes(Categories(names), found)

    def detect(
        self, images: Sequence[str], phrases: Sequence[Sequence[Phrase]]
    ) -> Iterator[list[list[Box]] | str]:
        """See Detector."""
        for image, wanted in zip(images, phrases, strict=True):
            here = self.instances.get(image, self.instances.get(PurePosixPath(image).name))
            if here is None:
                yield NOT_ANNOTATED
            else:
                yield [self._boxes(one, here) for one in wanted]

    def _boxes(self, phrase: Phrase, here: Sequence[Instance]) -> list[Box]:
        found = [self.categories.find(noun) for noun in phrase.nouns]
        groups = [_meant(here, *one) for one in found if one is not None]
        groups = [choices for choices in groups if choices]
        if len(groups) == 2:
            choices = _nearest(*groups)
        else:
            choices = [choice for group in groups for choice in _certain(group)]
        return [one.box for choice in choices for one in choice]


# The instances that a noun may mean: one choice a set; a plural has one choice, of them all.
_Choices = list[list[Instance]]


def _meant(here: Sequence[Instance], category: int, is_plural: bool) -> _Choices:
    found = [one for one in here if one.category == category]
    if is_plural:
        return [found] if found else []
    return [[one] for one in found if not one.is_crowd]


def _nearest(first: _Choices, second: _Choices) -> _Choices:
    """The pair of different choices with the smallest gap, of equal ones the largest."""
    pairs = list(itertools.product(first, second))
    # "a man and a woman" are two of one category.
    pairs = [(a, b) for a, b in pairs if a != b] or pairs
    a, b = min(
        pairs,
        key=lambda pair: (_gap(*pair), -sum(one.area for one in (*pair[0], *pair[1]))),
    )
    return [a] if a == b else [a, b]


def _gap(first: Sequence[Instance], second: Sequence[Instance]) -> float:
    return min(
        max(a.box.x1 - b.box.x2, b.box.x1 - a.box.x2, 0.0)
        + max(a.box.y1 - b.box.y2, b.box.y1 - a.box.y2, 0.0)
        for a, b in itertools.product(first, second)
    )


def _certain(choices: _Choices) -> _Choices:
    """The only choice, or the one that is clearly the largest, if there is one."""
    ordered = sorted(choices, key=lambda choice: -sum(one.area for one in choice))
    areas = [sum(one.area for one in choice) for choice in ordered]
    return [] if len(areas) > 1 and areas[0] < CLEARLY_LARGER * areas[1] else ordered[:1]


def _instance(entry: Mapping[str, object], image: Mapping[str, float], path: Path) -> Instance:
    box = entry["bbox"]
    if not isinstance(box, list) or len(box) != 4 or not all(value >= 0 for value in box):
        raise InputError(
            f"{path}, annotation {entry['id']}: bbox: got {box!r}, expected x, y, w, h"
        )
    x, y, width, height = box
    over = max(x + width - image["width"], y + height - image["height"])
    if over > OVERSHOOT:
        raise InputError(
            f"{path}, annotation {entry['id']}: bbox: got {box!r}, {over:g} pixels outside of the "
            f"image of {image['width']} x {image['height']}"
        )
    # Rounding puts some boxes a fraction of a pixel over the edge.
    return Instance(
        category=int(str(entry["category_id"])),
        box=Box(x, y, min(x + width, image["width"]), min(y + height, image["height"])),
        is_crowd=bool(entry.get("iscrowd", 0)),
    )
