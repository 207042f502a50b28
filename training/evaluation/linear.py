"""Logistic regression on features: one label or several, by torch's L-BFGS or scikit-learn.

Both minimise   mean_n loss_n + weight_decay / 2 * |W|^2   over weights and biases; biases are not
decayed. loss_n is the cross entropy of the softmax over classes, or the sum over classes of the
binary cross entropies. scikit-learn's C is 1 / (weight_decay N).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SOLVERS = ("torch", "sklearn")
_MAX_ITERATIONS = 2000
# Largest entry of the gradient at the end; a hundredth of that is out of reach of fp64's loss.
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class LinearModel:
    """weights fp64 [C, D], biases fp64 [C]; a class that training did not decide on is in `unseen`.

    converged: whether the solver ended before its limit of iterations.
    """

    weights: Tensor
    biases: Tensor
    unseen: tuple[int, ...]
    converged: bool

    def scores(self, features: Tensor) -> Tensor:
        """Logits fp64 [N, C] of features [N, D]."""
        return features.double() @ self.weights.T + self.biases


def fit_linear(
    features: Tensor,
    targets: Tensor,
    *,
    classes: int,
    weight_decay: float,
    solver: str = "torch",
    start: LinearModel | None = None,
) -> LinearModel:
    """Fit on features [N, D], in fp64 on the CPU.

    Args:
        targets: int64 [N] for one label, or bool [N, C] for several.
        classes: C. Of one label, a class without an image gets the logit -inf; of several, a class
            that all images have, or none, gets 0 for every image. These are the result's `unseen`.
        weight_decay: above 0; see the module.
        solver: "torch", or "sklearn" (extra "eval").
        start: a fit of the same data with another weight decay, where torch begins.

    Raises:
        ValueError: an unknown solver; weight decay not above 0; fewer than two classes seen.
        ImportError: scikit-learn is asked for and not installed.
    """
    if solver not in SOLVERS:
        raise ValueError(f"solver: got {solver!r}, expected one of {', '.join(SOLVERS)}")
    if not weight_decay > 0:
        raise ValueError(f"weight_decay: got {weight_decay}, expected above 0")
    several = targets.dtype == torch.bool
    if several:
        share = targets.double().mean(0)
        seen = torch.nonzero((share > 0) & (share < 1))[:, 0]
        wanted = targets[:, seen]
    else:
        seen, wanted = targets.unique(return_inverse=True)
    if len(seen) < (1 if several else 2):
        raise ValueError(f"targets: got {len(seen)} classes to tell apart, expected more")
    features = features.double().cpu()
    if solver == "sklearn":
        weights, biases, converged = _sklearn(features, wanted, weight_decay, several)
    else:
        begin = None if start is None else (start.weights[seen], start.biases[seen])
        weights, biases, converged = _torch(features, wanted, weight_decay, several, begin)
    unseen = sorted(set(range(classes)) - set(seen.tolist()))
    all_weights = torch.zeros(classes, features.shape[1], dtype=torch.float64)
    all_biases = torch.full((classes,), 0.0 if several else -torch.inf, dtype=torch.float64)
    all_weights[seen], all_biases[seen] = weights, biases
    return LinearModel(all_weights, all_biases, tuple(unseen), converged)


def _torch(
    features: Tensor,
    targets: Tensor,
    weight_decay: float,
    several: bool,
    start: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor, bool]:
    classes = targets.shape[1] if several else int(targets.max()) + 1
    weights, biases = start or (
        torch.zeros(classes, features.shape[1], dtype=torch.float64),
        torch.zeros(classes, dtype=torch.float64),
    )
    weights, biases = (one.clone().requires_grad_() for one in (weights, biases))
    wanted = targets.double() if several else targets
    optimizer = torch.optim.LBFGS(
        [weights, biases],
        max_iter=_MAX_ITERATIONS,
        max_eval=2 * _MAX_ITERATIONS,
        tolerance_grad=_TOLERANCE,
        tolerance_change=1e-12,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        logits = features @ weights.T + biases
        if several:
            each = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
            loss = each.sum(1).mean()
        else:
            loss = functional.cross_entropy(logits, wanted)
        total = loss + weight_decay / 2 * weights.square().sum()
        total.backward()
        return total

    with torch.enable_grad():
        optimizer.step(closure)
    iterations = optimizer.state[weights]["n_iter"]
    return weights.detach(), biases.detach(), iterations < _MAX_ITERATIONS


def _sklearn(
    features: Tensor, targets: Tensor, weight_decay: float, several: bool
) -> tuple[Tensor, Tensor, bool]:
    try:
        regression: Any = importlib.import_module("sklearn.linear_model").LogisticRegression
    except ImportError as error:
        raise ImportError(
            "solver: got sklearn, which is not installed; install it with: "
            'pip install "slipform-kernels[eval]", or use the solver torch'
        ) from error
    C = 1 / (weight_decay * len(features))
    columns = targets.T if several else targets[None]
    if not several and int(targets.max()) == 1:
        # Of two classes it fits one vector w; the softmax's two are w / 2 and -w / 2, whose
        # squares sum to half of that of w.
        C *= 2
    weights, biases, converged = [], [], True
    for column in columns:
        model = regression(C=C, max_iter=_MAX_ITERATIONS, tol=_TOLERANCE)
        model.fit(features.numpy(), column.numpy())
        weights.append(torch.from_numpy(model.coef_))
        biases.append(torch.from_numpy(model.intercept_))
        converged &= bool(max(model.n_iter_) < _MAX_ITERATIONS)
    found = torch.cat(weights), torch.cat(biases)
    if not several and len(found[0]) == 1:
        found = torch.cat([-found[0], found[0]]) / 2, torch.cat([-found[1], found[1]]) / 2
    return *found, converged
