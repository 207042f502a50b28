"""Where phrases are in images: the interface of everything that finds boxes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from slipform_training.macco.rows import Concepts, Phrase


class Box(NamedTuple):
    """Corners in pixels of the image turned upright, x to the right, y down; score 0 to 1."""

    x1: float
    y1: float
    x2: float
    y2: float
    score: float = 1.0


class Detector(Protocol):
    """Finds phrases in images."""

    def detect(
        self, images: Sequence[str], phrases: Sequence[Sequence[Phrase]]
    ) -> Iterator[list[list[Box]] | str]:
        """The boxes of each phrase of each image, in order, or why the image has none.

        Args:
            images: N paths, as the rows have them.
            phrases: of each image.

        Raises:
            InputError: an image cannot be read; the message names it.
        """


def with_boxes(concepts: Concepts, boxes: Sequence[Sequence[Box]]) -> Concepts:
    """The same concepts, each phrase with its boxes."""
    phrases = [
        Phrase(one.text, one.kind, [list(box[:4]) for box in found], one.nouns)
        for one, found in zip(concepts.phrases, boxes, strict=True)
    ]
    return Concepts(
        objects=concepts.objects,
        attributes=concepts.attributes,
        relations=concepts.relations,
        phrases=phrases,
    )
