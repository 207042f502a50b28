"""A pool of pale backgrounds, plain and textured."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipform_training.data import Stream

PLAIN = 24
TEXTURED = 48

# Near-grey papers: far enough from every tint that a sprite's colour stays unmistakable.
_PAPERS = (
    (250, 250, 250),
    (236, 236, 232),
    (222, 224, 226),
    (206, 206, 206),
    (244, 238, 226),
    (226, 234, 236),
    (238, 228, 228),
    (214, 210, 202),
)
_CONTRAST = 22.0


def make_backgrounds(resolution: int) -> NDArray[np.float32]:
    """The pool: the first PLAIN are plain, the next TEXTURED are textured.

    Args:
        resolution: width and height in pixels.

    Returns:
        float32 [PLAIN + TEXTURED, resolution, resolution, 3], 0 to 255; always the same.
    """
    pool = np.empty((PLAIN + TEXTURED, resolution, resolution, 3), dtype=np.float32)
    for number in range(PLAIN + TEXTURED):
        stream = Stream("background", number)
        paper = np.array(_PAPERS[number % len(_PAPERS)], dtype=np.float32)
        paper = paper - stream.uniform(0, 10)
        if number < PLAIN:
            pool[number] = paper
        else:
            texture = _TEXTURES[number % len(_TEXTURES)](resolution, stream)
            pool[number] = paper - _CONTRAST * texture[..., None]
    return np.clip(pool, 0, 255)


def _grid(resolution: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    steps = np.arange(resolution, dtype=np.float32) / resolution
    return np.meshgrid(steps, steps)


def _noise(resolution: int, stream: Stream, cells: int) -> NDArray[np.float32]:
    coarse = np.array(
        [stream.uniform() for _ in range((cells + 1) ** 2)], dtype=np.float32
    ).reshape(cells + 1, cells + 1)
    at = np.arange(resolution, dtype=np.float32) / resolution * cells
    low = at.astype(np.int64)
    share = at - low
    rows = coarse[low] * (1 - share)[:, None] + coarse[low + 1] * share[:, None]
    return np.asarray(rows[:, low] * (1 - share) + rows[:, low + 1] * share, dtype=np.float32)


def _clouds(resolution: int, stream: Stream) -> NDArray[np.float32]:
    return np.asarray(
        0.7 * _noise(resolution, stream, 4) + 0.3 * _noise(resolution, stream, 12),
        dtype=np.float32,
    )


def _grain(resolution: int, stream: Stream) -> NDArray[np.float32]:
    return _noise(resolution, stream, min(32, resolution))


def _stripes(resolution: int, stream: Stream) -> NDArray[np.float32]:
    x, y = _grid(resolution)
    across = (x, y, x + y, x - y)[stream.below(4)]
    return (np.floor(across * stream.choice((6, 8, 10))) % 2).astype(np.float32)


def _checks(resolution: int, stream: Stream) -> NDArray[np.float32]:
    x, y = _grid(resolution)
    cells = stream.choice((4, 6, 8))
    return ((np.floor(x * cells) + np.floor(y * cells)) % 2).astype(np.float32)


def _dots(resolution: int, stream: Stream) -> NDArray[np.float32]:
    x, y = _grid(resolution)
    cells = stream.choice((5, 7, 9))
    apart = np.hypot((x * cells) % 1 - 0.5, (y * cells) % 1 - 0.5)
    return (apart < 0.28).astype(np.float32)


def _slope(resolution: int, stream: Stream) -> NDArray[np.float32]:
    x, y = _grid(resolution)
    return np.asarray((x, y, (x + y) / 2, 1 - y)[stream.below(4)], dtype=np.float32)


_TEXTURES = (_clouds, _grain, _stripes, _checks, _dots, _slope)
