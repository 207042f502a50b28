"""The look that all figures share."""

from __future__ import annotations

from typing import Any

# Okabe and Ito's palette, told apart with any colour vision; markers repeat it.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#1e1e1e")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

# Hard and easy negatives, in every figure that shows both.
HARD, EASY = "#D55E00", "#56B4E9"

STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "hatch.linewidth": 0.6,
}
