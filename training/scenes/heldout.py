"""Which combinations training never shows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from slipform_training.data import Stream
from slipform_training.scenes.config import SceneConfig


@dataclass(frozen=True)
class HeldOut:
    """Combinations kept for testing.

    Attributes:
        pairs: sets of two noun names.
        colours: (colour name, noun name).
    """

    pairs: frozenset[frozenset[str]]
    colours: frozenset[tuple[str, str]]


def hold_out(config: SceneConfig) -> HeldOut:
    """Chooses the held-out combinations of a configuration.

    Every noun is in the same number of held-out pairs, so no noun is rarer in training than
    another. Held-out colours come in twos for one noun: then both captions of a test pair that
    differ in that colour are unseen, and neither can be told by its being familiar.

    Raises:
        ValueError: shares that leave a noun without a partner or without a colour.
    """
    return HeldOut(pairs=_pairs(config), colours=_colours(config))


def _pairs(config: SceneConfig) -> frozenset[frozenset[str]]:
    names = Stream(config.heldout_seed, "held-out pairs").shuffled(
        [noun.name for noun in config.nouns]
    )
    n = len(names)
    # On a circle of shuffled nouns, all pairs at one distance form a ring: each noun is in two of
    # its pairs, or in one if the distance is half the circle.
    wanted = config.heldout_pairs * (n - 1)
    distances: list[int] = []
    degree = 0
    for distance in range(1, n // 2 + 1):
        step = 1 if 2 * distance == n else 2
        if degree + step / 2 <= wanted:
            distances.append(distance)
            degree += step
    if degree > n - 2:
        raise ValueError(
            f"heldout_pairs must leave every noun a partner, got {config.heldout_pairs}"
        )
    return frozenset(
        frozenset((names[i], names[(i + distance) % n])) for distance in distances for i in range(n)
    )


def _colours(config: SceneConfig) -> frozenset[tuple[str, str]]:
    colours = [colour.name for colour in config.colours]
    wanted = round(config.heldout_colours * len(colours) * len(config.nouns) / 2)
    if wanted > len(config.nouns) or (wanted and len(colours) < 3):
        raise ValueError(
            "heldout_colours must take two colours from each noun at most and leave it one, "
            f"got {config.heldout_colours} of {len(colours)} colours"
        )
    stream = Stream(config.heldout_seed, "held-out colours")
    nouns = stream.shuffled([noun.name for noun in config.nouns])[:wanted]
    twos = stream.shuffled(list(combinations(colours, 2)))
    return frozenset(
        (colour, noun) for i, noun in enumerate(nouns) for colour in twos[i % len(twos)]
    )
