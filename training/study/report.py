"""What a study found: accuracies, and differences between branches of the same seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipform_training.demo import DemoConfig
from slipform_training.demo.config import BAG, CATEGORIES, FAMILIES, LABELS
from slipform_training.demo.report import aligned
from slipform_training.demo.results import accuracy_cell, mean, versions
from slipform_training.machine import machine
from slipform_training.markdown import markdown_table

from .branches import STUDIES, Contrast, Study


@dataclass(frozen=True)
class Outcome:
    """accuracy: by stage (stage 1 and the branches), by category, one value a seed, 0 to 1."""

    study: Study
    config: DemoConfig
    accuracy: Mapping[str, Mapping[str, Sequence[float]]]

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Outcome:
        """What `to_dict` made, read again.

        Raises KeyError, naming it, for a study that does not exist, and for a stage or category
        of the study that the accuracies lack.
        """
        config = dict(stored["config"])
        config["share_batches"] = tuple(config["share_batches"])
        outcome = cls(STUDIES[stored["study"]], DemoConfig(**config), stored["accuracy"])
        for stage in (BAG, *(branch.name for branch in outcome.study.branches)):
            for category in CATEGORIES:
                if category not in outcome.accuracy.get(stage, {}):
                    raise KeyError(f"accuracy.{stage}.{category}")
        return outcome

    def family(self, stage: str, family: str) -> list[float]:
        """Mean accuracy over the family's categories, one value a seed."""
        columns = [self.accuracy[stage][name] for name in FAMILIES[family]]
        return [mean(values) for values in zip(*columns, strict=True)]

    def gains(self, contrast: Contrast, family: str) -> list[float]:
        """accuracy(name) - accuracy(over), seed by seed."""
        pairs = zip(
            self.family(contrast.name, family), self.family(contrast.over, family), strict=True
        )
        return [ours - theirs for ours, theirs in pairs]

    def to_dict(self) -> dict[str, Any]:
        """As plain json values, with the machine and versions that produced them."""
        return {
            "study": self.study.name,
            "machine": machine(),
            "versions": versions(),
            "config": self.config.to_dict(),
            "chance": 0.5,
            "accuracy": {stage: dict(columns) for stage, columns in self.accuracy.items()},
            "gains": [
                {
                    "name": contrast.name,
                    "over": contrast.over,
                    **{family: self.gains(contrast, family) for family in FAMILIES},
                }
                for contrast in self.study.contrasts
            ],
        }


def accuracy_table(outcome: Outcome) -> list[list[str]]:
    """Header and rows: mean and standard deviation over seeds by category, in percent."""
    rows = [["", *CATEGORIES]]
    labels = {BAG: LABELS[BAG], **{one.name: one.label for one in outcome.study.branches}}
    for stage, label in labels.items():
        columns = outcome.accuracy[stage]
        rows.append([label, *(accuracy_cell(columns[name]) for name in CATEGORIES)])
    return rows


def gains_table(outcome: Outcome) -> list[list[str]]:
    """Header and rows: each contrast's mean difference in points, and that of every seed."""
    rows = [["points", *FAMILIES]]
    for contrast in outcome.study.contrasts:
        rows.append(
            [
                contrast_label(outcome.study, contrast),
                *(_gain(outcome.gains(contrast, family)) for family in FAMILIES),
            ]
        )
    return rows


def contrast_label(study: Study, contrast: Contrast) -> str:
    """Such as "Cement - InfoNCE"."""
    return f"{study.branch(contrast.name).label} \N{MINUS SIGN} {study.branch(contrast.over).label}"


def legend(outcome: Outcome) -> list[str]:
    """How to read the tables, as sentences."""
    config = outcome.config
    pairs = config.pairs_per_category
    half = 196 * math.sqrt(0.25 / pairs)
    return [
        f"Accuracy on {pairs} held-out pairs a category, %; chance is 50, ties count as wrong. By "
        f"the number of pairs alone a figure near 50 is sure to ± {half:.0f} points (95 %).",
        f"{config.seeds} seed(s), mean ± standard deviation. Branches of a seed start from the "
        "same weights and see the same scenes in the same order.",
        "Differences: the mean over seeds, in brackets each seed's. swap, replace and add are the "
        "means of their categories.",
    ]


def terminal_report(outcome: Outcome) -> str:
    """The report as text for a terminal."""
    return "\n".join(
        [
            f"\n{outcome.study.title}",
            aligned(accuracy_table(outcome)),
            "",
            aligned(gains_table(outcome)),
            *legend(outcome),
        ]
    )


def markdown_report(outcome: Outcome, *, picture: str) -> str:
    """The report as a markdown page."""
    config = outcome.config
    found = ", ".join(f"{name} {number}" for name, number in versions().items())
    blocks = [
        f"# {outcome.study.title}",
        "\n".join(f"- **{one.label}**: {one.note}" for one in outcome.study.branches),
        "## Accuracy on held-out pairs",
        markdown_table(accuracy_table(outcome)),
        "## Differences, seed by seed",
        markdown_table(gains_table(outcome)),
        "\n".join(f"- {line}" for line in legend(outcome)),
        f"![Differences seed by seed]({picture})",
        f"{config.scenes} training scenes, batch {config.batch_size}, stage 1 {config.bag_steps} "
        f"updates, each branch {config.branch_steps}, margin {config.margin:g}. {found}.",
    ]
    return "\n\n".join(blocks) + "\n"


def _gain(values: Sequence[float]) -> str:
    text = f"{100 * mean(values):+.1f}"
    if len(values) == 1:
        return text
    return f"{text} ({', '.join(f'{100 * value:+.1f}' for value in values)})"
