"""The figures of an analysis: a column of panels for each model."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # No display is needed, and none is opened.
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator, PercentFormatter, StrMethodFormatter

from slipform_training.figure_style import EASY, HARD, MARKERS, PALETTE, STYLE

from .concreteness import KINDS, Similarity
from .history import LoggedShare
from .margins import MarginRow
from .shares import ShareRow

_PULL, _THEORY, _CLOUD = "#1e1e1e", "#1e1e1e", "#b4b4b4"
_COLUMN, _ROW = 3.9, 3.3  # inches
_LEGEND: Any = {"fontsize": 8.5, "frameon": False}


def draw_shares(path: Path, rows: Sequence[ShareRow]) -> None:
    """Gradient shares against the batch size, without and with the margins."""
    margins = sorted({row.margin for row in rows})
    with plt.rc_context(STYLE):
        models, figure, panels = _grid(rows, height=2)
        for column, model in enumerate(models):
            own = [row for row in rows if row.model == model]
            for number, margin in enumerate(margins):
                part = [row for row in own if row.margin == margin]
                style: Any = {"ls": ("-", "--", ":")[number % 3], "mfc": ("full", "w")[number > 0]}
                text = f"margin {margin:g}" if margin else "no margin"
                for axes, names in (
                    (panels[0, column], ("pull", "easy", "hard")),
                    (panels[1, column], ("easy_share", "hard_share")),
                ):
                    for name in names:
                        _draw_repeats(axes, part, name, text, **style)
            panels[0, column].set(title=model, ylim=(0, 1.03))
            panels[1, column].set(xlabel="batch size", ylim=(0, 1.03))
            panels[1, column].yaxis.set_major_formatter(PercentFormatter(1))
        panels[0, 0].set_ylabel("gradient on the logits")
        panels[1, 0].set_ylabel("share of the pull 1 - p+")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(margins), **_LEGEND)
        repeats = len({row.repeat for row in rows})
        figure.suptitle(
            f"Where the pull on the positive comes from (mean of {repeats} draws of the data"
            + (", bands: their range)" if repeats > 1 else ")")
        )
        _save(figure, path)


_SHARE_STYLE = {
    "pull": ("pull 1 - p+", _PULL, "D"),
    "hard": ("p hard: its own hard captions", HARD, "o"),
    "easy": ("p easy: the rest of the batch", EASY, "s"),
    "hard_share": ("", HARD, "o"),
    "easy_share": ("", EASY, "s"),
}


def _draw_repeats(
    axes: Axes, rows: Sequence[ShareRow], name: str, margin: str, *, ls: str, mfc: str
) -> None:
    sizes = sorted({row.batch_size for row in rows})
    values = [[getattr(row, name) for row in rows if row.batch_size == size] for size in sizes]
    text, colour, marker = _SHARE_STYLE[name]
    axes.plot(
        sizes, [np.mean(one) for one in values], color=colour, marker=marker, ls=ls, lw=1.8, ms=5,
        mfc=colour if mfc == "full" else "white", label=f"{text}, {margin}",
    )  # fmt: skip
    low, high = [min(one) for one in values], [max(one) for one in values]
    axes.fill_between(sizes, low, high, color=colour, alpha=0.18, lw=0)
    _log_sizes(axes, sizes)


def _log_sizes(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8.5)
    axes.xaxis.set_minor_locator(NullLocator())


def draw_history(
    path: Path, logged: Sequence[LoggedShare], measured: Sequence[ShareRow], *, batch_size: int
) -> None:
    """Logged shares over the updates, and shares of each model on the same data as bars."""
    runs = list(dict.fromkeys(row.run for row in logged))
    models = list(dict.fromkeys(row.model for row in measured))
    with plt.rc_context(STYLE):
        widths = [1, 1, max(0.9, 0.3 * len(models))] if runs else [1]
        figure, panels = plt.subplots(
            1, len(widths), figsize=(1.5 + _COLUMN * sum(widths), 4.4), layout="constrained",
            width_ratios=widths, squeeze=False,
        )  # fmt: skip
        if runs:
            for axes, name, title in (
                (panels[0, 0], "pull", "As logged, each with its own loss:\nthe pull 1 - p+"),
                (panels[0, 1], "hard_share", "As logged:\nhard captions' share of the pull"),
            ):
                _draw_logs(axes, logged, runs, name)
                axes.set(title=title, xlabel="update")
            panels[0, 1].set_xlim(panels[0, 0].get_xlim())
            panels[0, 1].yaxis.set_major_formatter(PercentFormatter(1))
            handles, labels = panels[0, 0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower left", ncols=4, **_LEGEND)
        _draw_bars(panels[0, -1], measured, models)
        panels[0, -1].set_title(
            f"Checkpoints on the same data:\nbatches of {batch_size:,}, no margin"
        )
        figure.suptitle(
            "Gradient shares over training" if runs else "Gradient shares by checkpoint"
        )
        _save(figure, path)


def _draw_logs(axes: Axes, logged: Sequence[LoggedShare], runs: Sequence[str], name: str) -> None:
    for number, run in enumerate(runs):
        points = [
            (row.step, getattr(row, name))
            for row in logged
            if row.run == run and getattr(row, name) is not None
        ]
        # A run without hard captions has no such share, but keeps its colour and its place.
        axes.plot(
            *zip(*points, strict=True) if points else ([], []),
            color=PALETTE[number % len(PALETTE)], marker=MARKERS[number % len(MARKERS)],
            markevery=max(1, len(points) // 8), ms=5, lw=1.6, label=run,
        )  # fmt: skip
    axes.set_ylim(0, 1.03)


def _draw_bars(axes: Axes, rows: Sequence[ShareRow], models: Sequence[str]) -> None:
    for place, model in enumerate(models):
        own = [row for row in rows if row.model == model]
        hard, easy = (
            float(np.mean([getattr(row, name) for row in own])) for name in ("hard", "easy")
        )
        first = place == 0
        axes.bar(place, hard, 0.7, color=HARD, label="p hard" if first else None)
        axes.bar(
            place, easy, 0.7, bottom=hard, color=EASY, hatch="///", edgecolor="white", lw=0,
            label="p easy" if first else None,
        )  # fmt: skip
        axes.annotate(
            f"{hard / (hard + easy):.0%} hard", (place, hard + easy), (0, 3), ha="center",
            textcoords="offset points", fontsize=8.5,
        )  # fmt: skip
    names = [textwrap.fill(model, 14) for model in models]
    axes.set_xticks(range(len(models)), names, fontsize=8.5)
    centre, half = (len(models) - 1) / 2, max(len(models), 3) / 2
    axes.set_xlim(centre - half, centre + half)
    axes.grid(axis="x", visible=False)
    axes.set(ylabel="gradient on the logits", ylim=(0, 1.16))
    axes.set_yticks(np.arange(0, 1.01, 0.2))
    axes.legend(loc="upper center", ncols=2, **_LEGEND)


def draw_similarity(path: Path, found: Sequence[Similarity]) -> None:
    """Similarity of hard captions against concreteness: points, means of bins, LOESS."""
    with plt.rc_context(STYLE):
        models, figure, panels = _grid(found, height=len(KINDS))
        draw = np.random.default_rng(0)
        for one in found:
            row, column = list(KINDS).index(one.kind), models.index(one.model)
            axes = panels[row, column]
            shown = draw.permutation(len(one.cosine))[:2000]
            jitter = draw.uniform(-0.02, 0.02, len(shown))
            axes.plot(
                one.concreteness[shown] + jitter, one.cosine[shown], ".", color=_CLOUD,
                ms=3.5 if len(shown) > 500 else 6, alpha=0.6, mew=0, rasterized=True,
                label=f"hard captions ({len(shown):,} of {len(one.cosine):,}, jittered)",
            )  # fmt: skip
            centres, means = [b.x for b in one.bins], [b.y for b in one.bins]
            errors = [[b.y - b.y_low for b in one.bins], [b.y_high - b.y for b in one.bins]]
            axes.plot(one.grid, one.curve, color=PALETTE[0], lw=2, label="LOESS")
            axes.errorbar(
                centres, means, errors, fmt="s", color=HARD, mec="white", ms=6.5, capsize=3, lw=1.4,
                label="mean of a bin, 95 % interval",
            )  # fmt: skip
            if row == 0:
                axes.set_title(one.model)
            if row == len(KINDS) - 1:
                axes.set_xlabel("concreteness of the replaced word")
        for row, text in enumerate(KINDS.values()):
            panels[row, 0].set_ylabel(text)
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=3, markerscale=1.6, **_LEGEND
        )
        figure.suptitle("Similarity of hard captions against concreteness")
        _save(figure, path)


def draw_margins(path: Path, rows: Sequence[MarginRow]) -> None:
    """The factor that a margin puts on p_hard / p_easy, and what that does to the hard share."""
    sizes = sorted({row.batch_size for row in rows})
    handles: list[Any] = []
    labels: list[str] = []
    with plt.rc_context(STYLE):
        models, figure, panels = _grid(rows, height=2)
        for column, model in enumerate(models):
            upper, lower = panels[:, column]
            own = [row for row in rows if row.model == model]
            line = sorted({(row.margin, row.theory) for row in own})
            (theory,) = upper.plot(*zip(*line, strict=True), color=_THEORY, lw=1.2, ls="--")
            scale = math.log(line[-1][1]) / line[-1][0]
            upper.legend([theory], [f"theory: exp({scale:.1f} m)"], loc="upper left", **_LEGEND)
            for number, size in enumerate(sizes):
                part = sorted((r for r in own if r.batch_size == size), key=lambda r: r.margin)
                style: Any = {"color": PALETTE[number], "marker": MARKERS[number], "ms": 5}
                margins = np.array([row.margin for row in part])
                # Side by side, since the measured factors agree.
                shift = (number - (len(sizes) - 1) / 2) * 0.012 * (margins.max() or 1)
                bars = upper.errorbar(
                    margins + shift, [row.median for row in part],
                    np.abs([[row.median - row.low, row.high - row.median] for row in part]).T,
                    ls="", capsize=3, **style,
                )  # fmt: skip
                (means,) = upper.plot(
                    margins, [row.of_means for row in part], lw=1, mfc="white", **style
                )
                if column == 0:
                    handles += [bars, means]
                    labels += [f"batch {size:,}: of each anchor", f"batch {size:,}: of the means"]
                lower.plot(margins, [row.hard_share for row in part], lw=1.8, **style)
            upper.set(title=model, yscale="log")
            upper.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            lower.set(xlabel="margin (cosine)", ylim=(0, 1.03), xlim=upper.get_xlim())
            lower.yaxis.set_major_formatter(PercentFormatter(1))
        panels[0, 0].set_ylabel("factor on p hard / p easy")
        panels[1, 0].set_ylabel("hard share of the pull")
        figure.legend(handles, labels, loc="outside lower center", ncols=len(sizes), **_LEGEND)
        figure.suptitle(
            "A margin m on every hard caption: measured (median, 5 to 95 % of the anchors) "
            "and in theory"
        )
        _save(figure, path)


def _grid(rows: Sequence[Any], *, height: int) -> tuple[list[str], Any, Any]:
    """The models' names, a figure, and axes [height, models]; y axes are shared along rows."""
    models = list(dict.fromkeys(row.model for row in rows))
    # One panel would be too narrow for the titles.
    size = max(2, len(models)) * _COLUMN + 0.5, height * _ROW + 1.3
    figure, panels = plt.subplots(
        height, len(models), figsize=size, sharey="row", squeeze=False, layout="constrained"
    )
    return models, figure, panels


def _save(figure: Any, path: Path) -> None:
    temporary = path.with_name(f".{path.stem}.tmp.png")
    figure.savefig(temporary, dpi=120)
    temporary.replace(path)
    plt.close(figure)
