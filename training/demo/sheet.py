"""The demo's sheet: test scenes with both captions and what each model chose."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from slipform_training.evaluation import PairScore
from slipform_training.scenes import CREDIT, ScenePair

from .config import CATEGORIES, LABELS
from .material import Material
from .results import STAGES
from .train import Trained

PER_CATEGORY = 2
_RIGHT, _WRONG, _INK, _FAINT = "#00694d", "#b03a00", "#1e1e1e", "#6a6a6a"
_SHORT = {**LABELS, STAGES[0]: "bag of words"}


def draw_choices(path: Path, material: Material, models: Mapping[str, Trained]) -> None:
    """Write the sheet as png: the first pairs of each category, not picked by their outcome."""
    scores = {
        stage: {(one.category, one.id): one for one in models[stage].evaluation.scores}
        for stage in STAGES
    }
    layout = ConstrainedLayoutEngine(h_pad=0.03, w_pad=0.03)
    figure = plt.figure(figsize=(15, 1.72 * len(CATEGORIES) + 1.1), layout=layout)
    title = "The first held-out pairs of each category, as the models of seed 0 judge them"
    figure.suptitle(title, fontsize=15, fontweight="bold", x=0.012, ha="left")
    figure.supxlabel(CREDIT, fontsize=7.5, color=_FAINT, x=0.012, ha="left")
    cells = figure.subfigures(len(CATEGORIES), PER_CATEGORY, squeeze=False)
    for row, category in zip(cells, CATEGORIES, strict=True):
        pairs = [pair for pair in material.pairs if pair.category == category]
        for cell, pair in zip(row, pairs, strict=False):
            verdicts = {stage: by_pair[category, pair.id] for stage, by_pair in scores.items()}
            _draw_pair(cell, pair, material, verdicts)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_pair(
    cell: SubFigure | Figure,
    pair: ScenePair,
    material: Material,
    verdicts: Mapping[str, PairScore],
) -> None:
    picture, words = cell.subplots(1, 2, width_ratios=(1, 3.6))
    picture.imshow(material.pair_pictures[pair.filename], interpolation="nearest")
    picture.set(xticks=[], yticks=[])
    words.set_axis_off()
    words.set(xlim=(0, 1), ylim=(0, 1))
    words.text(0, 1, pair.category, fontsize=9, color=_FAINT, va="top")
    words.text(0, 0.85, f"true:  {pair.caption}", fontsize=10.5, color=_INK, va="top")
    wrong = textwrap.shorten(f"wrong: {pair.negative_caption}", 200)
    words.text(0, 0.67, wrong, fontsize=10.5, color=_FAINT, va="top")
    for number, (stage, score) in enumerate(verdicts.items()):
        column, line = number % 2, number // 2
        colour = _RIGHT if score.correct else _WRONG
        mark = "\u2713" if score.correct else "\u2717"
        words.text(
            0.5 * column, 0.42 - 0.21 * line, f"{mark} {_SHORT[stage]}", fontsize=10.5,
            color=colour, fontweight="bold", va="top",
        )  # fmt: skip
        words.text(
            0.5 * column + 0.255, 0.42 - 0.21 * line,
            f"{score.positive:+.2f} / {score.negative:+.2f}",
            fontsize=9.5, color=colour, va="top",
        )  # fmt: skip
