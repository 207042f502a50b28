"""A study's figure: every contrast's difference, a dot a seed and a bar at the mean."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # No display is needed, and none is opened.
import matplotlib.pyplot as plt

from slipform_training.demo.config import FAMILIES
from slipform_training.demo.results import mean

from .report import Outcome, contrast_label

_DOT, _MEAN = "#0072B2", "#1e1e1e"


def draw_contrasts(path: Path, outcome: Outcome) -> None:
    """Write the figure as png: a panel a family of pairs, a row a contrast."""
    contrasts = outcome.study.contrasts
    figure, panels = plt.subplots(
        1,
        len(FAMILIES),
        figsize=(13, 1.8 + 0.5 * len(contrasts)),
        sharey=True,
        layout="constrained",
    )
    for axes, family in zip(panels, FAMILIES, strict=True):
        for row, contrast in enumerate(contrasts):
            gains = [100 * value for value in outcome.gains(contrast, family)]
            axes.plot(gains, [row] * len(gains), "o", ms=7, mfc="none", mec=_DOT, mew=1.6)
            axes.plot([mean(gains)] * 2, [row - 0.28, row + 0.28], color=_MEAN, lw=2.2)
        axes.axvline(0, color="#555555", lw=1, ls="--")
        axes.set(title=f"{family} pairs", xlabel="points of accuracy")
        axes.grid(axis="x", color="#e4e4e4")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(
        range(len(contrasts)), [contrast_label(outcome.study, one) for one in contrasts]
    )
    panels[0].invert_yaxis()
    figure.suptitle(
        f"{outcome.study.title}: difference of the two branches, a circle a seed, a bar at the mean"
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)
