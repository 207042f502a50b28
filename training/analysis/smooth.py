"""A curve through a cloud of points: means of bins with intervals, and LOESS."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Bin(NamedTuple):
    """Points with low <= x < high: how many, mean x and y, and the mean's 95 % interval.

    The interval is mean +- 1.96 standard errors; nan with one point.
    """

    low: float
    high: float
    points: int
    x: float
    y: float
    y_low: float
    y_high: float


def binned(x: Array, y: Array, *, width: float, start: float) -> list[Bin]:
    """Bins of `width` from `start` on that hold points; x, y: [N]. Points below start are refused.

    Raises ValueError for shapes that differ, width not above 0, or an x below `start`.
    """
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"y: got shape {y.shape}, expected that of x, {x.shape}, one axis")
    if not width > 0 or (len(x) and x.min() < start):
        raise ValueError(f"start: got {start} and width {width}, expected x >= start, width > 0")
    numbers = np.floor((x - start) / width).astype(int)
    bins = []
    for number in np.unique(numbers):
        inside = numbers == number
        count, mean = int(inside.sum()), float(y[inside].mean())
        error = 1.96 * y[inside].std(ddof=1) / math.sqrt(count) if count > 1 else math.nan
        low = start + number * width
        bins.append(
            Bin(low, low + width, count, float(x[inside].mean()), mean, mean - error, mean + error)
        )
    return bins


def loess(x: Array, y: Array, at: Array, *, span: float = 0.5) -> Array:
    """Local linear fits with tricube weights (Cleveland 1979), without robust steps.

    Args:
        x, y: [N]. at: [G], where the curve is wanted.
        span: share of the points that a fit reaches, above 0 to 1. Where these have one x alone,
            it reaches on to the next.

    Returns:
        [G]; where only one x is in reach, the mean there.

    Raises ValueError for shapes that differ, no points, or a span out of range.
    """
    if x.shape != y.shape or x.ndim != 1 or not len(x):
        raise ValueError(f"y: got shape {y.shape}, expected that of x, {x.shape}, one axis, not 0")
    if not 0 < span <= 1:
        raise ValueError(f"span: got {span}, expected above 0 to 1")
    reach = math.ceil(span * len(x))
    curve = np.empty(len(at))
    for place, centre in enumerate(at):
        distance = np.abs(x - centre)
        bandwidth = np.partition(distance, reach - 1)[reach - 1]
        within = x[distance <= bandwidth]
        if within.min() == within.max():
            farther = distance[(distance >= bandwidth) & (x != within[0])]
            bandwidth = farther.min() if len(farther) else bandwidth
        # The outermost points count too: their weight would be 0 where nothing lies farther in.
        relative = np.clip(distance / (1.001 * bandwidth or 1.0), 0, 1)
        weight = (1 - relative**3) ** 3
        weight /= weight.sum()
        mean_x, mean_y = weight @ x, weight @ y
        spread = weight @ (x - mean_x) ** 2
        slope = weight @ ((x - mean_x) * (y - mean_y)) / spread if spread > 1e-12 else 0.0
        curve[place] = mean_y + slope * (centre - mean_x)
    return curve
