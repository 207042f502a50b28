"""Linear probes against scikit-learn, on its digits."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("PIL")
pytest.importorskip("sklearn")

from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score

from slipform_training.evaluation.linear import fit_linear
from slipform_training.evaluation.probe import Split, probe

GRID = [10.0**power for power in range(-6, -1)]


@pytest.fixture(scope="module")
def digits():
    """Features (8 x 8 pixels, 0 to 1) and digits, in parts for training, validation and test."""
    found = load_digits()
    features = torch.tensor(found.data / 16)
    targets = torch.tensor(found.target)
    order = torch.tensor(np.random.default_rng(0).permutation(len(targets)))
    parts = order[:800], order[800:1100], order[1100:]
    return [Split(features[part], targets[part]) for part in parts]


@pytest.mark.parametrize("solver", ["torch", "sklearn"])
def test_it_is_scikit_learns_accuracy_on_digits(digits, solver):
    train, val, test = digits
    found = probe(train, test, val=val, classes=10, grid=GRID, solver=solver)
    # The same search with scikit-learn alone.
    scores = {}
    for decay in GRID:
        regression = LogisticRegression(C=1 / (decay * 800), max_iter=10000, tol=1e-8)
        scores[decay] = regression.fit(*train).score(*val)
    for decay, score in found.searched:
        assert 100 * score == pytest.approx(100 * scores[decay], abs=0.34)  # an image of 300
    C = 1 / (found.weight_decay * 1100)
    both = [np.concatenate(pair) for pair in zip(train, val, strict=True)]
    regression = LogisticRegression(C=C, max_iter=10000).fit(*both)
    expected = regression.score(*test)
    assert 0.9 < expected < 1
    assert 100 * found.test.accuracy == pytest.approx(100 * expected, abs=0.2)
    predicted = regression.predict(test.features.numpy())
    per_class = [np.mean(predicted[test.targets == c] == c) for c in range(10)]
    assert 100 * found.test.mean_by_class == pytest.approx(100 * np.mean(per_class), abs=0.2)
    assert found.model.converged
    assert not found.at_edge


@pytest.mark.parametrize("classes", [2, 10])
def test_both_solvers_minimise_the_same(digits, classes):
    train = digits[0]
    part = train.targets < classes
    fits = [
        fit_linear(*Split(train.features[part], train.targets[part]), classes=classes,
                   weight_decay=1e-3, solver=solver)
        for solver in ("torch", "sklearn")
    ]  # fmt: skip
    assert torch.allclose(fits[0].weights, fits[1].weights, atol=2e-3)
    ours, theirs = (fit.scores(train.features).softmax(1) for fit in fits)
    assert torch.allclose(ours, theirs, atol=1e-3)


@pytest.mark.parametrize("solver", ["torch", "sklearn"])
def test_several_labels_are_scored_by_average_precision(digits, solver):
    def labels(split):
        digit = split.targets[:, None]
        columns = [digit % 2 == 0, digit > 6, digit % 3 == 0, digit > 50]
        return Split(split.features, torch.cat(columns, 1))

    train, val, test = map(labels, digits)
    found = probe(train, test, val=val, classes=4, grid=[1e-4, 1e-3, 1e-2], solver=solver)
    C = 1 / (found.weight_decay * 1100)
    both = [torch.cat(pair).numpy() for pair in zip(train, val, strict=True)]
    expected = []
    for column in range(3):
        regression = LogisticRegression(C=C, max_iter=10000).fit(both[0], both[1][:, column])
        scores = regression.decision_function(test.features.numpy())
        expected.append(average_precision_score(test.targets[:, column].numpy(), scores))
    assert found.test.average_precision[:3] == pytest.approx(expected, abs=1e-3)
    assert found.test.mean == pytest.approx(np.mean(expected), abs=1e-3)
    assert found.test.without_positives == (3,)
    assert found.model.unseen == (3,)


def test_a_class_without_training_images_is_never_right(digits):
    train, _, test = digits
    part = train.targets != 4
    found = probe(Split(train.features[part], train.targets[part]), test, classes=10, grid=[1e-3])
    assert found.model.unseen == (4,)
    assert found.test.by_class()[4] == 0
    assert found.test.by_class()[3] > 0.8


def test_features_that_say_nothing_are_at_chance():
    targets = torch.arange(300) % 3
    same = Split(torch.ones(300, 4), targets)
    found = probe(same, same, val=same, classes=3, grid=[1e-2])
    assert found.test.accuracy <= 1 / 3  # one class, or none where all tie


def test_without_validation_images_a_fifth_of_each_class_is_held_out(digits):
    train, _, test = digits
    ones = [probe(train, test, classes=10, grid=[1e-3], seed=seed) for seed in (0, 0, 1)]
    assert ones[0].searched == ones[1].searched
    assert ones[0].test.accuracy == ones[2].test.accuracy  # fitted on all in the end
    few = Split(train.features[:2], torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="too few to hold 20% of each class out"):
        probe(few, test, classes=10, grid=[1e-3])


def test_bad_requests_are_named(digits, monkeypatch):
    train = digits[0]
    with pytest.raises(ValueError, match="solver: got 'adam', expected one of torch, sklearn"):
        fit_linear(*train, classes=10, weight_decay=1.0, solver="adam")
    with pytest.raises(ValueError, match="weight_decay: got 0, expected above 0"):
        fit_linear(*train, classes=10, weight_decay=0)
    one = torch.zeros(5, dtype=torch.int64)
    with pytest.raises(ValueError, match="targets: got 1 classes to tell apart"):
        fit_linear(train.features[:5], one, classes=1, weight_decay=1.0)
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(ImportError, match=re.escape("slipform-kernels[eval]")):
        fit_linear(*train, classes=10, weight_decay=1.0, solver="sklearn")
