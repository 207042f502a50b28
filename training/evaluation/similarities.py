"""Similarities that are equal where the features are, whatever order a library adds in."""

from __future__ import annotations

from torch import Tensor


def similarities(rows: Tensor, cols: Tensor) -> Tensor:
    """Dot products fp32 [R, C] of rows [R, D] and cols [C, D], summed in fp64 and then rounded.

    A matrix product may add the terms of two equal pairs in two orders, and then a tie looks like
    a win. The difference in fp64 is a billionth of fp32's resolution, so rounding removes it.
    """
    return (rows.double() @ cols.double().T).float()
