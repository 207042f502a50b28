"""From a word's concreteness to the margin of its hard negative."""

from __future__ import annotations

import torch
from torch import Tensor

DIRECTIONS = ("increasing", "decreasing")


def concreteness_margin(
    concreteness: Tensor,
    *,
    margin: float = 0.05,
    direction: str = "increasing",
    static: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """Margin of each hard negative in cosine units: margin * (c - 1) / 4.

    Cement, arXiv 2604.13313; the linear form and its scale are this package's choice.

    Args:
        concreteness: [...], rating 1 to 5 of the replaced word (Brysbaert et al. 2014).
        margin: the margin of a rating of 5 (of 1, where decreasing); >= 0.
        direction: "increasing", or "decreasing": margin * (5 - c) / 4.
        static: give every hard negative the mean of these margins, for ablation.
        mask: bool, shape of `concreteness`; False where there is no hard negative. Such entries
            get 0, may hold anything (nan too), and do not count in the mean.

    Returns:
        fp32, shape of `concreteness`, without gradient.

    Raises:
        TypeError, ValueError: wrong type, shape or option; on the CPU a rating outside 1..5.
    """
    if not isinstance(concreteness, Tensor):
        raise TypeError(f"concreteness: got {type(concreteness).__name__}; expected a tensor")
    if direction not in DIRECTIONS:
        raise ValueError(f"direction: got {direction!r}; expected one of {', '.join(DIRECTIONS)}")
    check_margin(margin)
    if concreteness.dtype == torch.bool or concreteness.is_complex():
        raise TypeError(f"concreteness: got dtype {concreteness.dtype}; expected real numbers")
    if mask is None:
        mask = torch.ones_like(concreteness, dtype=torch.bool)
    elif not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask: got {got}; expected a bool tensor")
    elif mask.device != concreteness.device:
        raise ValueError(
            f"mask: got device {mask.device}; expected {concreteness.device}, that of concreteness"
        )
    elif mask.shape != concreteness.shape:
        raise ValueError(
            f"mask: got shape {list(mask.shape)}; expected that of concreteness, "
            f"{list(concreteness.shape)}"
        )
    rating = torch.where(mask, concreteness.detach().float(), 3.0)
    _check_ratings(rating)
    share = (rating - 1) / 4 if direction == "increasing" else (5 - rating) / 4
    result = torch.where(mask, margin * share, 0.0)
    if static:
        mean = result.sum() / mask.sum().clamp(min=1)
        result = torch.where(mask, mean, 0.0)
    return result


def check_margin(margin: float) -> None:
    """A margin must be a finite number >= 0."""
    if isinstance(margin, bool) or not isinstance(margin, (int, float)):
        raise TypeError(f"margin: got {type(margin).__name__}; expected a number >= 0")
    if not 0 <= margin < float("inf"):
        raise ValueError(f"margin: got {margin}; expected a finite number >= 0")


def _check_ratings(rating: Tensor) -> None:
    if rating.device.type != "cpu" or rating.numel() == 0 or torch.compiler.is_compiling():
        return
    low, high = (float(v) for v in torch.aminmax(rating))
    if not (low >= 1 and high <= 5):
        raise ValueError(f"concreteness: got values from {low:g} to {high:g}; expected 1 to 5")
