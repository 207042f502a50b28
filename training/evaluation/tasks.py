"""What ``slipform eval --suite`` can run: by name, a function from features to counts and scores.

Another kind of evaluation joins by an entry in TASKS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slipform_training.evaluation.encoder import FeatureSource
from slipform_training.evaluation.scoring import NEAR_TIE, Count, macro, micro
from slipform_training.evaluation.suite_scores import score_suite
from slipform_training.evaluation.suites import SUITES, ImageRoots, Request, Suite
from slipform_training.mining.readers import Columns


@dataclass(frozen=True)
class TaskRequest:
    """What a task is asked for.

    annotations, roots: where files and images are. seed: of anything random in reading.
    missing: "skip" or "error". near_tie: distance of two cosines that is a near tie.
    split, columns: of Karpathy's json and of tables, for retrieval. templates, class_names: of
    zero-shot classification.
    """

    annotations: Path
    roots: ImageRoots = field(default_factory=ImageRoots)
    seed: int = 0
    missing: str = "skip"
    near_tie: float = NEAR_TIE["fp32"]
    split: str = "test"
    columns: Columns = field(default_factory=Columns)
    templates: str = "openai"
    class_names: Path | None = None


@dataclass(frozen=True)
class ScoreTable:
    """Single scores, one row a scored item and metric: columns of one length.

    margin: above 0 where the item is right, by how much; exactly 0 for a tie.
    """

    subset: list[str]
    id: list[str]
    metric: list[str]
    margin: np.ndarray

    @property
    def correct(self) -> np.ndarray:
        """Which rows are right."""
        return self.margin > 0


@dataclass(frozen=True)
class TaskResult:
    """What a task found.

    Attributes:
        headline: the metric to quote.
        counts: by metric and subset.
        scores: of single items.
        missing: names of images that are not there.
        unreadable: reasons by the name of the image.
        details: plain values for the json file.
        macro_from: subsets of fewer items are left out of the macro mean.
    """

    headline: str
    counts: Mapping[str, Mapping[str, Count]]
    scores: ScoreTable
    missing: tuple[str, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    macro_from: int = 1

    def micro(self, metric: str) -> Count:
        """All subsets as one."""
        return micro(self.counts[metric])

    def macro(self, metric: str) -> float:
        """Unweighted mean of the subsets' accuracies; nan if one has nothing scored."""
        return macro(self.counts[metric], at_least=self.macro_from)

    def to_dict(self) -> dict[str, Any]:
        """For a json file: everything but the single scores; nan becomes None."""
        return {
            **self.details,
            "headline": self.headline,
            "metrics": {
                metric: {
                    "micro": _plain(self.micro(metric)),
                    "macro": _or_none(self.macro(metric)),
                    "subsets": {name: _plain(one) for name, one in counts.items()},
                }
                for metric, counts in self.counts.items()
            },
            "missing_images": {"count": len(self.missing), "names": list(self.missing)},
            "unreadable_images": {"count": len(self.unreadable), "reasons": dict(self.unreadable)},
        }


Task = Callable[[TaskRequest, FeatureSource], TaskResult]


def run_suite(suite: Suite, request: TaskRequest, source: FeatureSource) -> TaskResult:
    """Reads and scores a compositional suite; see suite_scores.score_suite."""
    reading = suite.read(Request(request.annotations, request.roots, request.seed))
    if not reading.items:
        raise ValueError(f"annotations: got no item of {suite.name} in {request.annotations}")
    found = score_suite(
        suite,
        reading.items,
        source,
        roots=request.roots,
        missing=request.missing,
        near_tie=request.near_tie,
    )
    return TaskResult(
        headline=suite.headline,
        counts=found.counts,
        scores=ScoreTable(found.subset, found.id, found.metric, found.margin),
        missing=found.missing,
        unreadable=found.unreadable,
        macro_from=suite.macro_from,
        details={
            "citation": suite.citation,
            "rule": suite.rule.name,
            "items": len(reading.items),
            "unlike_published": suite.size_note(reading),
            "left_out": dict(reading.left_out),
            "incomplete_groups": found.incomplete_groups,
        },
    )


def _retrieval(request: TaskRequest, source: FeatureSource) -> TaskResult:
    from slipform_training.evaluation.retrieval_task import run_retrieval

    return run_retrieval(request, source)


def _zero_shot(request: TaskRequest, source: FeatureSource) -> TaskResult:
    from slipform_training.evaluation.zero_shot_task import run_zero_shot

    return run_zero_shot(request, source)


TASKS: dict[str, Task] = {
    **{name: partial(run_suite, suite) for name, suite in SUITES.items()},
    "retrieval": _retrieval,
    "zero_shot": _zero_shot,
}


def _plain(count: Count) -> dict[str, Any]:
    return {**vars(count), "accuracy": _or_none(count.accuracy)}


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
