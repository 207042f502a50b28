"""The demo's figure: loss and accuracy curves, the final accuracies, and the gradient shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # No display is needed, and none is opened.
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from slipform_training.figure_style import EASY, HARD, STYLE

from .config import BAG, BRANCHES, CATEGORIES, FAMILIES, LABELS
from .results import STAGES, Results, mean, spread
from .train import Trained

# Okabe and Ito's palette, told apart with any colour vision; markers and hatches repeat it.
COLOURS = {BAG: "#8c8c8c", "plain": "#0072B2", "hard_negatives": "#E69F00", "cement": "#009E73"}
_MARKERS = {BAG: "d", "plain": "o", "hard_negatives": "s", "cement": "^"}
_HATCHES = {BAG: "", "plain": "", "hard_negatives": "///", "cement": "..."}


def draw_curves(path: Path, results: Results, trained: Sequence[Mapping[str, Trained]]) -> None:
    """Write the figure as png; lines are means over seeds, bands their range."""
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(14, 8.2), layout="constrained")
        grid = figure.add_gridspec(2, 12, height_ratios=(1, 1.05))
        _draw_loss(figure.add_subplot(grid[0, :3]), trained)
        for column, family in enumerate(FAMILIES):
            at = 3 * (column + 1)
            _draw_family(figure.add_subplot(grid[0, at : at + 3]), family, results, trained)
        _draw_bars(figure.add_subplot(grid[1, :8]), results)
        _draw_shares(figure.add_subplot(grid[1, 8:]), results)
        seeds = results.config.seeds
        figure.suptitle(
            "Stage 1 learns from shuffled captions on purpose; stage 2 goes on from it with real "
            f"captions and three losses ({seeds} seed{'s: mean and range' if seeds > 1 else ''})",
            fontsize=12,
        )
        figure.savefig(path, dpi=120)
        plt.close(figure)


def _series(runs: Sequence[Trained], value: Any) -> tuple[np.ndarray, np.ndarray]:
    """Steps [T] and values [seeds, T] of the records for which value(record) is not None."""
    columns = [
        [(record["step"], value(record)) for record in run.run.records if value(record) is not None]
        for run in runs
    ]
    steps = np.array([step for step, _ in columns[0]])
    return steps, np.array([[number for _, number in column] for column in columns])


def _draw_line(axes: Axes, steps: np.ndarray, values: np.ndarray, stage: str, **style: Any) -> None:
    colour = COLOURS[stage]
    axes.plot(steps, values.mean(0), color=colour, label=LABELS[stage], lw=1.8, **style)
    if len(values) > 1:
        axes.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.18, lw=0)


def _draw_loss(axes: Axes, trained: Sequence[Mapping[str, Trained]]) -> None:
    offset = 0
    for stage in STAGES:
        runs = [models[stage] for models in trained]
        steps, values = _series(runs, lambda record: record["loss"])
        _draw_line(axes, steps + (0 if stage == BAG else offset), values, stage)
        if stage == BAG:
            offset = int(steps[-1])
    axes.axvline(offset, color="#555555", lw=0.9, ls=":")
    axes.annotate(
        "stage 2", (offset, 0.62), (4, 0), xycoords=("data", "axes fraction"),
        textcoords="offset points", va="top", fontsize=9, color="#555555",
    )  # fmt: skip
    axes.set(title="Training loss (each loss its own)", xlabel="update", ylabel="nats")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, framealpha=1, edgecolor="none")


def _draw_family(
    axes: Axes, family: str, results: Results, trained: Sequence[Mapping[str, Trained]]
) -> None:
    names = FAMILIES[family]

    def accuracy(record: Mapping[str, Any]) -> float | None:
        found = record.get("accuracy")
        return None if found is None else 100 * mean([found[name] for name in names])

    _, before = _series([models[BAG] for models in trained], accuracy)
    for stage in BRANCHES:
        steps, values = _series([models[stage] for models in trained], accuracy)
        steps = np.concatenate([[0], steps])
        values = np.concatenate([before[:, -1:], values], axis=1)
        _draw_line(axes, steps, values, stage, marker=_MARKERS[stage], ms=5)
    _chance(axes)
    axes.set(
        title=f"Accuracy on {family} pairs ({results.config.curve_pairs} a category)",
        xlabel="update of stage 2",
        ylabel="% of pairs" if family == "swap" else "",
        ylim=(35, 102),
    )
    if family == "swap":
        axes.legend(fontsize=8, frameon=False, loc="lower right")


def _chance(axes: Axes) -> None:
    axes.axhline(50, color="#555555", lw=1, ls="--")
    axes.annotate(
        "chance", (0, 50), (2, -3), xycoords=("axes fraction", "data"),
        textcoords="offset points", va="top", fontsize=8, color="#555555",
    )  # fmt: skip


def _draw_bars(axes: Axes, results: Results) -> None:
    width = 0.2
    places = np.arange(len(CATEGORIES))
    for number, stage in enumerate(STAGES):
        by_category = results.accuracy[stage]
        heights = [100 * mean(by_category[name]) for name in CATEGORIES]
        errors = None
        if results.config.seeds > 1:
            errors = [100 * spread(by_category[name]) for name in CATEGORIES]
        bars = axes.bar(
            places + (number - 1.5) * width, heights, width * 0.92, yerr=errors, capsize=2,
            color=COLOURS[stage], hatch=_HATCHES[stage], edgecolor="white", lw=0,
            error_kw={"lw": 1, "ecolor": "#333333"}, label=LABELS[stage],
        )  # fmt: skip
        axes.bar_label(bars, fmt="%.0f", fontsize=7.5, padding=1)
    axes.axhline(50, color="#555555", lw=1, ls="--", zorder=3)
    axes.set_xticks(places, CATEGORIES)
    axes.grid(axis="x", visible=False)
    axes.set(
        title=f"Held-out pairs at the end, {results.config.pairs_per_category} a category "
        "(dashed: chance)",
        ylabel="% of pairs",
        ylim=(0, 119),
    )
    axes.set_yticks(range(0, 101, 25))
    axes.legend(fontsize=8.5, frameon=False, ncols=4, loc="upper center")


def _draw_shares(axes: Axes, results: Results) -> None:
    labels = []
    for place, row in enumerate(results.shares):
        hard, easy = 100 * row.hard, 100 * row.easy
        # A gap after each batch size, so that its two bars are seen together.
        at = place + 0.5 * (place // 2)
        axes.bar(at, hard, color=HARD, label="its hard negatives" if place == 0 else None)
        axes.bar(
            at, easy, bottom=hard, color=EASY, hatch="///", edgecolor="white", lw=0,
            label="easy negatives of the batch" if place == 0 else None,
        )  # fmt: skip
        axes.annotate(
            f"{hard:.0f}", (at, hard), (0, 4), textcoords="offset points", ha="center", fontsize=9,
            fontweight="bold", bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"},
        )  # fmt: skip
        labels.append((at, f"margin\n{row.margin:g}" if row.margin else "no\nmargin"))
        if place % 2 == 0:
            axes.annotate(
                f"batch {row.batch_size}", (at + 0.5, 0), (0, -38),
                xycoords=("data", "axes fraction"), textcoords="offset points", ha="center",
                fontsize=9.5, fontweight="bold",
            )  # fmt: skip
    axes.set_xticks([at for at, _ in labels], [text for _, text in labels], fontsize=8.5)
    axes.grid(axis="x", visible=False)
    axes.set(
        title="Where the pull on the positive comes from\n(after stage 1)",
        ylabel="% of the gradient",
        ylim=(0, 116),
    )
    axes.set_yticks(range(0, 101, 25))
    axes.legend(fontsize=8.5, frameon=False, ncols=2, loc="upper center")
