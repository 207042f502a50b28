"""How like a hard caption is to its image and its caption, against the word's concreteness."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .pairs import HardPairs
from .smooth import Array, Bin, binned, loess

# A quarter of a point of the scale from 1 to 5.
_WIDTH = 0.25
_POINTS = 81


@dataclass(frozen=True)
class Similarity:
    """One model's cosines, and what is drawn of them.

    kind: a key of KINDS. concreteness, cosine: [M], one for each hard caption. grid, curve: LOESS.
    """

    model: str
    kind: str
    concreteness: Array
    cosine: Array
    bins: list[Bin]
    grid: Array
    curve: Array


KINDS = {
    "image": "cos(image, hard caption)",
    "text": "cos(caption, hard caption)",
}


def similarity_by_concreteness(pairs: HardPairs, *, span: float = 0.5) -> list[Similarity]:
    """Similarities of each of KINDS. ValueError if the data have no concreteness."""
    if pairs.concreteness is None:
        raise ValueError(
            "concreteness: got none in the data, expected a rating of each hard caption"
        )
    x = pairs.concreteness[pairs.mask].double().numpy()
    found = []
    for kind, anchor in (("image", pairs.images), ("text", pairs.texts)):
        cosine = (anchor[:, None].double() * pairs.hard.double()).sum(-1)
        y = cosine[pairs.mask].numpy()
        grid = np.linspace(x.min(), x.max(), _POINTS)
        found.append(
            Similarity(
                model=pairs.label,
                kind=kind,
                concreteness=x,
                cosine=y,
                bins=binned(x, y, width=_WIDTH, start=1.0),
                grid=grid,
                curve=loess(x, y, grid, span=span),
            )
        )
    return found
