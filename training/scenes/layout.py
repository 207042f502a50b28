"""Where a scene's sprites go, so that its relation is plain and no other holds."""

from __future__ import annotations

from collections.abc import Sequence

from slipform_training.data import Stream

Box = tuple[int, int, int, int]

# Shares of the picture. Along the relation's axis the two sides' centres are at least
# 0.5 - 2 * ALONG apart; across it, a lone other's centre is within 2 * ACROSS of the subject's.
ALONG = 0.04
ACROSS = 0.05
TOGETHER = 0.12


def place(
    sizes: Sequence[tuple[int, int]], *, relation: str, resolution: int, stream: Stream
) -> list[Box]:
    """Places the first sprite on its side of all the others.

    The picture is halved along the relation's axis: the first sprite has one half, the others are
    spread over the other half.

    Args:
        sizes: (width, height) in pixels of the sprites, two or more.
        relation: "left", "right", "above" or "below".
        resolution: width and height of the picture in pixels.
        stream: gives the small shifts.

    Returns:
        x0, y0, x1, y1 of each, x1 and y1 exclusive, inside the picture and without overlap.
    """
    horizontal = relation in ("left", "right")
    near, far = (0.25, 0.75) if relation in ("left", "above") else (0.75, 0.25)
    others = len(sizes) - 1
    together = stream.uniform(-TOGETHER, TOGETHER) if others == 1 else 0.0
    boxes = []
    for number, (width, height) in enumerate(sizes):
        if number == 0:
            along, across, room = near, 0.5 + together, 1.0
        else:
            along, across, room = far, (number - 0.5) / others + together, 1.0 / others
        along += stream.uniform(-ALONG, ALONG)
        shift = stream.uniform(-ACROSS, ACROSS)
        long, wide = (width, height) if horizontal else (height, width)
        half = (0.0, 0.5) if along < 0.5 else (0.5, 1.0)
        slot = (0.0, 1.0) if room == 1.0 else ((number - 1) * room, number * room)
        a = _fit(along, long, half, resolution)
        b = _fit(across + shift, wide, slot, resolution)
        x, y = (a, b) if horizontal else (b, a)
        boxes.append((x, y, x + width, y + height))
    return boxes


def _fit(centre: float, length: int, span: tuple[float, float], resolution: int) -> int:
    low = round(span[0] * resolution)
    high = round(span[1] * resolution) - length
    return min(max(round(centre * resolution - length / 2), low), max(low, high))
