"""Random draws that depend on a key alone, not on what was drawn before for another key."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Stream:
    """A deterministic stream of draws named by a key of integers and strings.

    Two streams with the same key give the same draws in every process and on every platform: the
    key is hashed with BLAKE2b, and only ``random.Random.random`` is used, whose sequence Python
    keeps stable for a given seed. So a sample's draws can be keyed by ``(seed, purpose, index)``
    and do not change with the order of the work.

    Args:
        key: integers and strings, at least one.

    Raises:
        TypeError: the key holds anything else (a float or None would hash by its spelling).
    """

    def __init__(self, *key: int | str) -> None:
        if not key or any(
            isinstance(part, bool) or not isinstance(part, int | str) for part in key
        ):
            raise TypeError(f"key must be integers and strings, at least one, got {key!r}")
        digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
        self._random = random.Random(int.from_bytes(digest, "little")).random

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """A float in ``[low, high)``."""
        return low + (high - low) * self._random()

    def chance(self, probability: float) -> bool:
        """True with the given probability in ``[0, 1]``."""
        return self._random() < probability

    def below(self, n: int) -> int:
        """An integer in ``[0, n)``; ValueError if n < 1."""
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        return int(self._random() * n)

    def choice(self, items: Sequence[T]) -> T:
        """One of the items, each equally likely; ValueError if there are none."""
        if not items:
            raise ValueError("items must hold at least one item, got none")
        return items[int(self._random() * len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """A new list with the items in random order (Fisher and Yates)."""
        out = list(items)
        for i in range(len(out) - 1, 0, -1):
            j = int(self._random() * (i + 1))
            out[i], out[j] = out[j], out[i]
        return out
