"""Time and memory of the loss against the batch size, every peer a line."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipform_training.figure_style import MARKERS, PALETTE, STYLE

from .peers import failing, is_ours, ordered, peer_of
from .results import Folder, Results, Row
from .roofline import bound_seconds
from .words import MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes

*_COLOURS, _BOUND = PALETTE  # the black is the bound's
_COLUMN, _HEIGHT = 5.4, 4.8  # inches
_PAGE = 4096  # bytes
# Those that a CPU runs have the first round of colours.
_KNOWN = (
    *("slipform native", "slipform native, cached", "slipform torch"),
    *("open_clip", "open_clip, compiled", "checkpointed chunks", "slipform triton"),
)


@dataclass(frozen=True)
class Figure:
    """A figure: its file's name, the results that it shows, and the table that it belongs to.

    key: what it shows of every row.
    """

    name: str
    title: str
    stem: str
    beside: str
    device: str
    key: str
    panel: Callable[[Axes, Sequence[Row], dict[str, Any]], None]
    unit: str

    def results(self, folder: Folder) -> Results | None:
        """Those that it shows; None where no row has anything to draw."""
        found = folder.get(self.stem)
        return found if found and any(self.key in row for row in _drawable(found)) else None

    def digest(self, results: Results, folder: Folder) -> str:
        """Of what is drawn. It is kept in the png, so that an outdated figure is found out."""
        rows = _drawable(results)
        failed = failing(folder, self.device, rows)
        shown = [
            self.title,
            [device_name(results), results.machine.get("date")],
            [row.values for row in rows],
            sorted((name, sorted(dtypes)) for name, dtypes in failed.items()),
        ]
        return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()

    def draw(self, path: Path, results: Results, folder: Folder) -> None:
        """Write the png: a panel for each dtype and width, axes logarithmic."""
        import matplotlib

        matplotlib.use("Agg")  # No display is needed, and none is opened.
        import matplotlib.pyplot as plt

        rows = _drawable(results)
        failed = failing(folder, self.device, rows)
        peers = ordered([row for row in rows if not row.not_run])
        styles = _styles(peers)
        panels = _panels(rows)
        with plt.rc_context(STYLE):
            figure, grid = plt.subplots(
                1, len(panels), figsize=(_COLUMN * len(panels), _HEIGHT + 0.2 * len(peers)),
                sharey=True, squeeze=False, layout="constrained",
            )  # fmt: skip
            for axes, ((D, dtype), case) in zip(grid[0], panels.items(), strict=True):
                looks = {
                    name: {**style, "ls": "--" if dtype in failed.get(name, ()) else "-"}
                    for name, style in styles.items()
                }
                self.panel(axes, case, looks)
                _log_axes(axes, sorted({row.count("N") for row in case}))
                axes.set_title(f"D = {D}, {dtype}")
            grid[0][0].set_ylabel(self.unit)
            _legend(figure, grid[0], failed)
            figure.suptitle(f"{self.title} ({device_name(results)}, {results.machine.get('date')})")
            temporary = path.with_name(f".{path.stem}.tmp.png")
            description = {"Description": self.digest(results, folder)}
            figure.savefig(temporary, dpi=120, metadata=description)
            temporary.replace(path)
            plt.close(figure)


def stored_digest(path: Path) -> str:
    """The digest that a figure was drawn with; "" where it has none."""
    from PIL import Image

    with Image.open(path) as image:
        return str(image.info.get("Description", ""))


def device_name(results: Results) -> str:
    """The card, or the processor and its threads."""
    machine = results.machine
    return str(machine.get("gpu") or f"{machine.get('cpu')}, {machine.get('threads')} threads")


def _drawable(results: Results) -> list[Row]:
    return [row for row in results.rows if row.values.get("pass", "both") == "both"]


def _panels(rows: Sequence[Row]) -> dict[tuple[int, str], list[Row]]:
    """The rows by width and dtype: of the narrowest width alone, which has all sizes."""
    D = min(row.count("D") for row in rows)
    panels: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        if row.count("D") == D:
            panels.setdefault((D, row.text("dtype")), []).append(row)
    return panels


def _styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A colour and a marker a peer, the same in all figures for those that are known.

    Ours are thicker; those of a second round of colours are hollow.
    """
    looks = {}
    for number, name in enumerate(dict.fromkeys((*_KNOWN, *names))):
        turn, place = divmod(number, len(_COLOURS))
        looks[name] = {
            "color": _COLOURS[place],
            "marker": MARKERS[(place + 3 * turn) % len(MARKERS)],
            "mfc": "w" if turn else _COLOURS[place],
            "lw": 2.2 if is_ours(name) else 1.2,
            "ms": 6,
        }
    return looks


def _lines(
    axes: Axes, rows: Sequence[Row], looks: dict[str, Any], value: Callable[[Row], float]
) -> None:
    measured = [row for row in rows if not row.not_run]
    for name in ordered(measured):
        points = sorted((row.count("N"), value(row)) for row in measured if peer_of(row) == name)
        axes.plot(*zip(*points, strict=True), label=name, **looks[name])


def _time(axes: Axes, rows: Sequence[Row], looks: dict[str, Any]) -> None:
    _lines(axes, rows, looks, lambda row: row.number("seconds"))
    unit = bound_seconds(rows)
    for count, style, text in (
        (4, "-", "4U at the fp32 matmul rate of the run"),
        (3, "-.", "3U, where the matrix is cached"),
    ):
        seconds = [count * value for value in unit.values()]
        axes.plot(list(unit), seconds, color=_BOUND, ls=style, lw=1, label=text, zorder=1)


def _memory(axes: Axes, rows: Sequence[Row], looks: dict[str, Any]) -> None:
    # A growth below a page is none, and has no place on the axis.
    _lines(axes, rows, looks, lambda row: max(row.number("extra_bytes"), _PAGE) / MIB)


def _log_axes(axes: Axes, sizes: Sequence[int]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set(xscale="log", yscale="log", xlabel="N, pairs in the batch")
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.tick_params(axis="x", labelrotation=35 if len(sizes) > 4 else 0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _legend(figure: Any, panels: Sequence[Axes], failed: dict[str, set[str]]) -> None:
    """One for all panels; the peers that fail the bar in some dtype are named so."""
    entries: dict[str, Any] = {}
    for handle, label in itertools.chain.from_iterable(
        zip(*axes.get_legend_handles_labels(), strict=True) for axes in panels
    ):
        dtypes = failed.get(label)
        text = f"{label} (fails the accuracy bar: {', '.join(sorted(dtypes))})" if dtypes else label
        entries.setdefault(text, handle)
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center",
        ncols=2 if len(panels) > 1 else 1, fontsize=8.5, frameon=False, handlelength=3,
    )  # fmt: skip


FIGURES = tuple(
    figure
    for device in ("cpu", "gpu")
    for figure in (
        Figure(
            f"loss_time_{device}", "Forward and backward of the loss", f"loss_throughput_{device}",
            f"loss-throughput-{device}", device, "seconds", _time, "seconds",
        ),
        Figure(
            f"loss_memory_{device}", "Extra memory of the loss", f"loss_memory_{device}",
            f"loss-memory-{device}", device, "extra_bytes", _memory, "MiB beside the features",
        ),
    )
)  # fmt: skip
