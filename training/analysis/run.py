"""An analysis from beginning to end: measured, drawn, written as png and csv."""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import Any

from slipform_kernels import __version__
from slipform_training.machine import machine
from slipform_training.mining.files import write_atomically, write_json

from .concreteness import Similarity, similarity_by_concreteness
from .history import LoggedShare, logged_shares
from .margins import MarginRow, margin_effect
from .pairs import HardPairs
from .plots import draw_history, draw_margins, draw_shares, draw_similarity
from .shares import ShareRow, shares_by_batch

FIGURES = (
    "shares_by_batch",
    "shares_over_training",
    "similarity_by_concreteness",
    "margin_effect",
)


@dataclass(frozen=True, kw_only=True)
class AnalysisConfig:
    """Settings of an analysis.

    batch_sizes: those above the number of samples are left out, and reported. margin: Cement's at
    concreteness 5, compared with none. margins: of the margin's effect, the same on every hard
    caption. Both in cosine units. repeats: draws of the data. span: of LOESS.
    """

    batch_sizes: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    margin: float = 0.05
    margins: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1, 0.2)
    repeats: int = 5
    span: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        # A cosine cannot change by more than 2.
        margins = [0 <= margin <= 2 for margin in self.margins]
        rules = (
            ("batch_sizes", min(self.batch_sizes, default=0) >= 2, "2 or more each"),
            ("margin", 0 < self.margin <= 2, "above 0, at most 2"),
            ("margins", all(margins) and any(self.margins), "0 to 2 each, one of them above 0"),
            ("repeats", self.repeats >= 1, "1 or more"),
            ("span", 0 < self.span <= 1, "above 0 to 1"),
        )
        for name, valid, expected in rules:
            if not valid:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected {expected}")


def analyse(
    subjects: Iterable[HardPairs],
    config: AnalysisConfig,
    out: Path,
    *,
    logs: Mapping[str, Path],
    about: Mapping[str, Any],
    say: Callable[[str], None] = print,
) -> None:
    """Measure each of `subjects`, and write FIGURES as png and csv, and analysis.json, to `out`.

    logs: log.jsonl of runs by label. about: what else analysis.json should say of the models and
    the data. Without concreteness in the data, similarity_by_concreteness is not written, and
    every hard caption gets the whole margin.

    Raises ValueError as the measurements do, or if the models' numbers of samples differ.
    """
    shares: list[ShareRow] = []
    effect: list[MarginRow] = []
    similarity: list[Similarity] = []
    labels: list[str] = []
    sizes: list[int] = []
    for pairs in subjects:
        if not labels:
            sizes = _sizes(config.batch_sizes, len(pairs), say)
        if pairs.label in labels:
            raise ValueError(f"label: got {pairs.label!r} twice, expected different ones")
        labels.append(pairs.label)
        shares += shares_by_batch(
            pairs,
            batch_sizes=sizes,
            margins=(0.0, config.margin),
            repeats=config.repeats,
            seed=config.seed,
        )
        few = sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})
        effect += margin_effect(
            pairs, batch_sizes=few, margins=sorted({0.0, *config.margins}), seed=config.seed
        )
        if pairs.concreteness is not None:
            similarity += similarity_by_concreteness(pairs, span=config.span)
        else:
            say(f"{pairs.label}: the data have no concreteness; the margin is the same for all")
    logged = [row for label, path in logs.items() for row in logged_shares(label, path)]
    middle = sizes[len(sizes) // 2]
    at_middle = [row for row in shares if row.batch_size == middle and row.margin == 0]
    out.mkdir(parents=True, exist_ok=True)
    draw_shares(out / "shares_by_batch.png", shares)
    _write_rows(out / "shares_by_batch.csv", ShareRow, shares)
    draw_history(out / "shares_over_training.png", logged, at_middle, batch_size=middle)
    _write_rows(out / "shares_over_training.csv", LoggedShare, logged)
    draw_margins(out / "margin_effect.png", effect)
    _write_rows(out / "margin_effect.csv", MarginRow, effect)
    if similarity:
        draw_similarity(out / "similarity_by_concreteness.png", similarity)
        _write_similarity(out / "similarity_by_concreteness.csv", similarity)
    write_json(
        out / "analysis.json",
        {
            "machine": machine(),
            "versions": _versions(),
            "settings": asdict(config),
            "batch_sizes": sizes,
            "models": labels,
            "shares": mean_shares(shares),
            "logs": {label: str(path) for label, path in logs.items()},
            **about,
        },
    )
    for label in labels:
        say(summary([row for row in shares if row.model == label]))
    say(f"written to {out}: {', '.join(FIGURES)} as png and csv, analysis.json")


def _sizes(wanted: Sequence[int], samples: int, say: Callable[[str], None]) -> list[int]:
    fitting = sorted({size for size in wanted if size <= samples})
    left_out = sorted(set(wanted) - set(fitting))
    if not fitting:
        raise ValueError(
            f"batch_sizes: got {list(wanted)}, expected one up to {samples}, the samples"
        )
    if left_out:
        sizes = ", ".join(str(size) for size in left_out)
        say(f"batch sizes left out, since there are {samples} samples: {sizes}")
    return fitting


def mean_shares(rows: Sequence[ShareRow]) -> list[dict[str, Any]]:
    """The easy and hard negatives' parts of the pull, means over the repetitions."""
    cases: dict[tuple[str, int, float], list[ShareRow]] = {}
    for row in rows:
        cases.setdefault((row.model, row.batch_size, row.margin), []).append(row)
    return [
        {
            "model": model,
            "batch_size": size,
            "margin": margin,
            "easy_share": mean(row.easy_share for row in case),
            "hard_share": mean(row.hard_share for row in case),
        }
        for (model, size, margin), case in cases.items()
    ]


def summary(rows: Sequence[ShareRow]) -> str:
    """One model's shares at the smallest and the largest batch, without and with margin."""
    sizes = sorted({row.batch_size for row in rows})
    parts = []
    for margin in sorted({row.margin for row in rows}):
        easy = [
            [row.easy_share for row in rows if (row.batch_size, row.margin) == (size, margin)]
            for size in (sizes[0], sizes[-1])
        ]
        first, last = (100 * sum(one) / len(one) for one in easy)
        text = f"margin {margin:g}" if margin else "no margin"
        parts.append(f"{text}: {first:.0f} % -> {last:.0f} %")
    return (
        f"{rows[0].model}: easy negatives' share of the pull, batch {sizes[0]} -> {sizes[-1]}: "
        + "; ".join(parts)
    )


def _versions() -> dict[str, str]:
    packages = ("torch", "open_clip_torch", "numpy", "matplotlib")
    return {
        "slipform-kernels": __version__,
        **{name: version(name) for name in packages},
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def _write_rows(path: Path, kind: Any, rows: Sequence[Any]) -> None:
    names = [one.name for one in fields(kind)]
    _write_csv(path, names, ([getattr(row, name) for name in names] for row in rows))


def _write_similarity(path: Path, found: Sequence[Similarity]) -> None:
    """Bins and curve points in one table; `what` says which."""
    names = ["model", "kind", "what", "concreteness", "cosine", "low", "high", "points"]
    rows: list[list[Any]] = []
    for one in found:
        for b in one.bins:
            rows.append([one.model, one.kind, "bin", b.x, b.y, b.y_low, b.y_high, b.points])
        for x, y in zip(one.grid.tolist(), one.curve.tolist(), strict=True):
            rows.append([one.model, one.kind, "loess", x, y, "", "", ""])
    _write_csv(path, names, rows)


def _write_csv(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    write_atomically(path, text.getvalue())
