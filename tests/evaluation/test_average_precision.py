"""Average precision against scikit-learn, and the 11-point form against values by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from slipform_training.evaluation.average_precision import (
    average_precision,
    mean_precision,
    voc11_precision,
)

pytest.importorskip("sklearn")

from sklearn import metrics


@pytest.mark.parametrize("levels", [3, 10, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_it_equals_scikit_learns_also_with_equal_scores(levels, seed):
    draw = np.random.default_rng(seed)
    targets = draw.random((97, 6)) < draw.random(6)
    scores = np.round(levels * (draw.random((97, 6)) + 0.3 * targets)) / levels
    targets[:, 4] = False
    found = mean_precision(torch.tensor(scores), torch.tensor(targets))
    assert found.without_positives == (4,)
    assert math.isnan(found.average_precision[4])
    counted = [c for c in range(6) if targets[:, c].any()]
    expected = [metrics.average_precision_score(targets[:, c], scores[:, c]) for c in counted]
    assert [found.average_precision[c] for c in counted] == pytest.approx(expected, abs=1e-12)
    assert found.mean == pytest.approx(np.mean(expected), abs=1e-12)
    assert found.to_dict()["average_precision"][4] is None


def test_eleven_points_by_hand():
    # Precision after each of the six: 1, 1/2, 2/3, 2/4, 2/5, 3/6; recall 1/3, ..., 2/3, ..., 1.
    targets = torch.tensor([True, False, True, False, False, True])
    scores = torch.tensor([6.0, 5, 4, 3, 2, 1])
    # Recalls 0 to 0.3: 1; 0.4 to 0.6: 2/3; 0.7 to 1: 1/2.
    assert voc11_precision(scores, targets) == pytest.approx((4 * 1 + 3 * 2 / 3 + 4 * 0.5) / 11)
    assert average_precision(scores, targets) == pytest.approx((1 + 2 / 3 + 0.5) / 3)


def test_a_recall_of_exactly_a_tenth_counts():
    # Ten positives at the odd places: the k-th has recall k / 10 and precision k / (2 k - 1).
    targets = torch.tensor([True, False] * 9 + [True])
    scores = torch.arange(19.0, 0.0, -1)
    expected = np.mean([1, *(k / (2 * k - 1) for k in range(1, 11))])
    assert voc11_precision(scores, targets) == pytest.approx(expected, abs=1e-12)


def test_equal_scores_have_no_order():
    targets = torch.tensor([True, False, True, False])
    assert average_precision(torch.zeros(4), targets) == 0.5
    assert voc11_precision(torch.zeros(4), targets) == 0.5


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"targets: got dtype torch.int64"):
        mean_precision(torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"targets: got \[3, 1\]"):
        mean_precision(torch.zeros(3, 2), torch.zeros(3, 1, dtype=torch.bool))
    with pytest.raises(ValueError, match="not finite"):
        mean_precision(torch.full((3, 2), torch.nan), torch.zeros(3, 2, dtype=torch.bool))
