"""Linear probes: how much of a task's labels a linear classifier reads from frozen features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slipform_training.data import Stream

from .average_precision import MeanPrecision, mean_precision
from .linear import LinearModel, fit_linear

# Of the training images, where there is no validation split.
HELD_OUT = 0.2


class Split(NamedTuple):
    """features [N, D]; targets int64 [N] of one label, or bool [N, C] of several."""

    features: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Accuracy:
    """correct, tied: bool [N], whether the true class's score is above all others, or equals one.

    An image is correct only if no other class scores as high. targets: int64 [N].
    """

    correct: Tensor
    tied: Tensor
    targets: Tensor

    @property
    def accuracy(self) -> float:
        """0 to 1."""
        return self.correct.double().mean().item()

    def by_class(self) -> dict[int, float]:
        """The same for each class that has images."""
        return {
            number: self.correct[self.targets == number].double().mean().item()
            for number in self.targets.unique().tolist()
        }

    @property
    def mean_by_class(self) -> float:
        """Unweighted mean of by_class()."""
        shares = self.by_class().values()
        return sum(shares) / len(shares)

    def to_dict(self) -> dict[str, Any]:
        """For a json file."""
        return {
            "accuracy": self.accuracy,
            "mean_per_class": self.mean_by_class,
            "accuracy_by_class": self.by_class(),
            "ties": int(self.tied.sum()),
        }


@dataclass(frozen=True)
class ProbeResult:
    """searched: weight decay and validation score (accuracy or mAP) of each point of the grid.

    test: figures of the classifier fitted with `weight_decay` on training and validation images.
    """

    searched: tuple[tuple[float, float], ...]
    weight_decay: float
    model: LinearModel
    test: Accuracy | MeanPrecision

    @property
    def at_edge(self) -> bool:
        """Whether the best weight decay is the grid's first or last: a wider grid may do better."""
        decays = [decay for decay, _ in self.searched]
        return len(decays) > 1 and self.weight_decay in (min(decays), max(decays))

    def to_dict(self) -> dict[str, Any]:
        """For a json file."""
        return {
            "searched": [{"weight_decay": d, "validation": score} for d, score in self.searched],
            "weight_decay": self.weight_decay,
            "at_edge_of_grid": self.at_edge,
            "converged": self.model.converged,
            "unseen_classes": list(self.model.unseen),
            "test": self.test.to_dict(),
        }


def probe(
    train: Split,
    test: Split,
    *,
    val: Split | None = None,
    classes: int,
    grid: Sequence[float],
    solver: str = "torch",
    seed: int = 0,
) -> ProbeResult:
    """Search the weight decay on the validation split, fit on both, test.

    The best validation score wins, of equal ones the largest weight decay. Without `val`, a fifth
    of the training images is held out for the search, of every class if there is one label.

    Raises:
        ValueError: an empty grid; no classes without test positives; what `fit_linear` raises.
    """
    if not grid:
        raise ValueError("grid: got no weight decays, expected one at least")
    if val is None:
        train, val = _held_out(train, seed)
    searched = []
    model: LinearModel | None = None
    for decay in sorted(grid, reverse=True):
        model = fit_linear(*train, classes=classes, weight_decay=decay, solver=solver, start=model)
        found = evaluate(model, val)
        score = found.accuracy if isinstance(found, Accuracy) else found.mean
        searched.append((decay, score))
    best = max(searched, key=lambda point: (point[1], point[0]))[0]
    both = Split(*(torch.cat(parts) for parts in zip(train, val, strict=True)))
    model = fit_linear(*both, classes=classes, weight_decay=best, solver=solver)
    return ProbeResult(tuple(searched), best, model, evaluate(model, test))


def evaluate(model: LinearModel, split: Split) -> Accuracy | MeanPrecision:
    """Accuracy of one label, average precision of several."""
    scores = model.scores(split.features)
    if split.targets.dtype == torch.bool:
        return mean_precision(scores, split.targets)
    own = scores.gather(1, split.targets[:, None])
    others = scores.scatter(1, split.targets[:, None], -torch.inf).amax(1)
    own = own[:, 0]
    return Accuracy(own > others, own == others, split.targets)


def _held_out(split: Split, seed: int) -> tuple[Split, Split]:
    """The split without, and with only, the images held out for the search."""
    several = split.targets.dtype == torch.bool
    groups = [torch.arange(len(split.targets))]
    if not several:
        groups = [torch.nonzero(split.targets == c)[:, 0] for c in split.targets.unique()]
    held = torch.zeros(len(split.targets), dtype=torch.bool)
    for number, group in enumerate(groups):
        order = Stream(seed, "held out", number).shuffled(group.tolist())
        held[order[: round(HELD_OUT * len(group))]] = True
    if not bool(held.any()):
        raise ValueError(
            f"train: got {len(held)} images, too few to hold {HELD_OUT:.0%} of each class out; "
            "expected more, or a validation split"
        )
    parts = (Split(split.features[part], split.targets[part]) for part in (~held, held))
    return next(parts), next(parts)
