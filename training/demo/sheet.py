"""The demo's sheet: test scenes with both captions and what each model chose."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from slipform_training.evaluation import PairScore
from slipform_training.scenes import CREDIT, ScenePair

from .config import CATEGORIES, LABELS
from .material import Material
from .results import STAGES
from .train import Trained

PER_CATEGORY = 2
_RIGHT, _WRONG, _INK, _FAINT = "#00694d", "#b03a00", "#1e1e1e", "#6a6a6a"
_SHORT = {**LABELS, STAGES[0]: "bag of words"}

# Inches: a pair's picture and the words beside it, the gaps, and the strips above and below.
_SIDE, _WORDS, _GAP = 1.5, 5.7, 0.22
_TOP, _HEADER, _BOTTOM, _EDGE = 0.95, 0.3, 0.4, 0.3
_ROW = _HEADER + _SIDE + _GAP


def draw_choices(path: Path, material: Material, models: Mapping[str, Trained]) -> None:
    """Write the sheet as png: the first pairs of each category, not picked by their outcome."""
    scores = {
        stage: {(one.category, one.id): one for one in models[stage].evaluation.scores}
        for stage in STAGES
    }
    width = 2 * _EDGE + PER_CATEGORY * (_SIDE + _GAP + _WORDS) + _GAP
    height = _TOP + len(CATEGORIES) * _ROW + _BOTTOM
    figure = plt.figure(figsize=(width, height))
    _write_frame(figure)
    for row, category in enumerate(CATEGORIES):
        top = _TOP + row * _ROW
        _text(figure, _EDGE, top, category, size=12, weight="bold")
        pairs = [pair for pair in material.pairs if pair.category == category]
        for column, pair in enumerate(pairs[:PER_CATEGORY]):
            left = _EDGE + column * (_SIDE + 2 * _GAP + _WORDS)
            verdicts = {stage: by_pair[category, pair.id] for stage, by_pair in scores.items()}
            _draw_pair(figure, left, top + _HEADER, pair, material, verdicts)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _text(figure: Figure, left: float, top: float, text: str, **style: object) -> None:
    """Text with its upper left corner at inches from the figure's."""
    width, height = figure.get_size_inches()
    figure.text(left / width, 1 - top / height, text, va="top", **style)  # type: ignore[arg-type]


def _write_frame(figure: Figure) -> None:
    _text(figure, _EDGE, 0.2, "Which caption does the scene have?", size=16, weight="bold")
    _text(
        figure, _EDGE, 0.55,
        "The first held-out pairs of each category, not picked by their outcome; models of seed 0. "
        "\u2713 chooses the true caption, \u2717 the wrong one; beside it the cosines of the true "
        "and of the wrong one.",
        size=10.5, color=_FAINT,
    )  # fmt: skip
    height = figure.get_size_inches()[1]
    _text(figure, _EDGE, height - 0.3, CREDIT, size=8, color=_FAINT)


def _draw_pair(
    figure: Figure,
    left: float,
    top: float,
    pair: ScenePair,
    material: Material,
    verdicts: Mapping[str, PairScore],
) -> None:
    width, height = figure.get_size_inches()
    box = (left / width, 1 - (top + _SIDE) / height, _SIDE / width, _SIDE / height)
    picture = figure.add_axes(box)
    picture.imshow(material.pair_pictures[pair.filename], interpolation="nearest")
    picture.set_axis_off()
    frame = Rectangle((0, 0), 1, 1, transform=picture.transAxes, fill=False, ec="#9a9a9a", lw=1)
    frame.set_clip_on(False)
    picture.add_patch(frame)
    words = left + _SIDE + _GAP
    line = top
    for tag, caption, ink in (
        ("true", pair.caption, _INK),
        ("wrong", pair.negative_caption, _FAINT),
    ):
        lines = textwrap.wrap(caption, 62)
        _text(figure, words, line, tag, size=10.5, color=_FAINT)
        _text(figure, words + 0.62, line, "\n".join(lines), size=10.5, color=ink)
        line += 0.07 + 0.19 * len(lines)
    for number, (stage, score) in enumerate(verdicts.items()):
        at = words + 2.75 * (number % 2)
        line = top + 0.88 + 0.34 * (number // 2)
        colour = _RIGHT if score.correct else _WRONG
        mark = "\u2713" if score.correct else "\u2717"
        _text(figure, at, line, f"{mark} {_SHORT[stage]}", size=11, color=colour, weight="bold")
        cosines = f"{score.positive:.3f} / {score.negative:.3f}"
        _text(figure, at + 1.58, line + 0.015, cosines, size=9.5, color=colour)
