"""Shares, margins and curves of an analysis against their formulas in fp64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

pytest.importorskip("PIL")
pytest.importorskip("tqdm")

from slipform_training.analysis.concreteness import similarity_by_concreteness
from slipform_training.analysis.history import logged_shares
from slipform_training.analysis.margins import margin_effect
from slipform_training.analysis.pairs import HardPairs
from slipform_training.analysis.shares import shares_by_batch
from slipform_training.analysis.smooth import binned, loess

SCALE = 12.0


def pairs_of(count, *, near=0.8, rated=True, seed=0, dim=16, choices=2):
    draw = torch.Generator().manual_seed(seed)

    def unit(*shape):
        return torch.nn.functional.normalize(torch.randn(*shape, dim, generator=draw), dim=-1)

    images = unit(count)
    texts = torch.nn.functional.normalize(images + unit(count), dim=-1)
    hard = near * texts[:, None] + (1 - near) * unit(count, choices)
    mask = torch.rand(count, choices, generator=draw) < 0.8
    mask[0] = False
    return HardPairs(
        label="model",
        images=images,
        texts=texts,
        hard=torch.nn.functional.normalize(hard, dim=-1),
        mask=mask,
        concreteness=1 + 4 * torch.rand(count, choices, generator=draw) if rated else None,
        scale=SCALE,
    )


def softmax_parts(pairs, numbers, margins):
    """p_hard and p_easy [n] of images in fp64: captions, own hard captions, others' hard ones."""
    images, texts = pairs.images[numbers].double(), pairs.texts[numbers].double()
    hard, mask = pairs.hard[numbers].double(), pairs.mask[numbers]
    parts = []
    for i, image in enumerate(images):
        own = other = 0.0
        positive = math.exp(SCALE * float(image @ texts[i]))
        for j in range(len(texts)):
            if j != i:
                other += math.exp(SCALE * float(image @ texts[j]))
            for k in range(hard.shape[1]):
                cosine = float(image @ hard[j, k])
                if mask[j, k] and j == i:
                    own += math.exp(SCALE * (cosine + float(margins[j, k])))
                elif mask[j, k]:
                    other += math.exp(SCALE * cosine)
        total = positive + own + other
        parts.append((own / total, other / total))
    return np.array(parts).T


@pytest.mark.parametrize("margin", [0.0, 0.3])
@pytest.mark.parametrize("rated", [True, False])
def test_shares_are_those_of_the_softmax(margin, rated):
    pairs = pairs_of(24, rated=rated)
    everything = torch.arange(24)  # the draw's order does not matter to a batch of all
    found = shares_by_batch(pairs, batch_sizes=[24], margins=[margin], repeats=2)
    rating = pairs.concreteness if rated else torch.full((24, 2), 5.0)
    hard, easy = softmax_parts(pairs, everything, margin * (rating - 1) / 4)
    counted = pairs.mask.any(1).numpy()
    assert not counted.all()
    hard, easy = hard[counted], easy[counted]
    for row in found:
        assert row.pull == pytest.approx((hard + easy).mean(), rel=1e-5)
        assert row.hard == pytest.approx(hard.mean(), rel=1e-5)
        assert row.easy_share == pytest.approx(easy.sum() / (hard + easy).sum(), rel=1e-5)


def test_batches_of_a_repetition_are_the_same_samples_cut():
    pairs = pairs_of(40)
    found = shares_by_batch(pairs, batch_sizes=[8, 16, 32], margins=[0.0, 0.2], repeats=3)
    assert [row.batches for row in found if row.repeat == 1] == [4, 4, 2, 2, 1, 1]
    again = shares_by_batch(pairs, batch_sizes=[8, 16, 32], margins=[0.0, 0.2], repeats=3)
    assert found == again
    other = shares_by_batch(pairs, batch_sizes=[8, 16, 32], margins=[0.0, 0.2], repeats=3, seed=1)
    assert found != other
    assert len({row.pull for row in found if (row.batch_size, row.margin) == (8, 0.0)}) == 3


def test_easy_negatives_grow_with_the_batch_and_the_margin_raises_the_hard_share():
    pairs = pairs_of(512)
    found = shares_by_batch(pairs, batch_sizes=[16, 64, 256, 512], margins=[0.0, 0.2], repeats=2)
    for repeat in (0, 1):
        plain, with_margin = (
            [row for row in found if (row.repeat, row.margin) == (repeat, margin)]
            for margin in (0.0, 0.2)
        )
        easy = [row.easy_share for row in plain]
        assert easy == sorted(easy)
        assert easy[-1] > easy[0] + 0.1
        for without, row in zip(plain, with_margin, strict=True):
            assert row.hard_share > without.hard_share


def test_sizes_that_do_not_fit_and_data_without_hard_captions_are_refused():
    pairs = pairs_of(16)
    for sizes in ([1, 8], [8, 17]):
        with pytest.raises(ValueError, match=r"batch_sizes: got .* expected 2 to 16"):
            shares_by_batch(pairs, batch_sizes=sizes, margins=[0.0], repeats=1)
    pairs.mask[:] = False
    with pytest.raises(ValueError, match="no batch of model has hard captions"):
        shares_by_batch(pairs, batch_sizes=[8], margins=[0.0], repeats=1)


def test_a_margin_multiplies_every_anchors_ratio_by_its_exponential():
    pairs = pairs_of(64)
    rows = margin_effect(pairs, batch_sizes=[16, 64], margins=[0.0, 0.1, 0.4])
    assert [(row.batch_size, row.margin) for row in rows[:3]] == [(16, 0.0), (16, 0.1), (16, 0.4)]
    for row in rows:
        expected = math.exp(SCALE * row.margin)
        assert row.theory == pytest.approx(expected)
        assert (row.low, row.median, row.high) == pytest.approx(3 * (expected,), rel=5e-3)
        assert 0 < row.resolved <= row.anchors < row.batch_size
    whole = torch.arange(64)
    parts = [softmax_parts(pairs, whole, torch.full((64, 2), m)) for m in (0.0, 0.4)]
    counted = pairs.mask.any(1).numpy()
    ratio = [hard[counted].sum() / easy[counted].sum() for hard, easy in parts]
    assert rows[-1].of_means == pytest.approx(ratio[1] / ratio[0], rel=1e-4)
    assert rows[-1].of_means < rows[-1].theory
    assert rows[-1].hard_share == pytest.approx(ratio[1] / (1 + ratio[1]), rel=1e-4)


def test_factors_that_fp32_cannot_tell_are_counted_not_shown():
    rows = margin_effect(pairs_of(32), batch_sizes=[32], margins=[1.9])
    assert rows[0].resolved == 0
    assert rows[0].anchors > 0
    assert math.isnan(rows[0].median)


def test_bins_by_hand():
    x = np.array([1.0, 1.1, 1.24, 1.25, 3.0])
    y = np.array([0.0, 3.0, 6.0, 5.0, 7.0])
    first, second, third = binned(x, y, width=0.25, start=1.0)
    assert (first.points, second.points, third.points) == (3, 1, 1)
    assert first.y == 3.0
    half = 1.96 * 3.0 / math.sqrt(3)
    assert (first.y_low, first.y_high) == pytest.approx((3 - half, 3 + half))
    assert second.y == 5.0
    assert math.isnan(second.y_low)
    assert (third.low, third.high) == (3.0, 3.25)
    with pytest.raises(ValueError, match="start: got 2"):
        binned(x, y, width=0.25, start=2.0)


@pytest.mark.parametrize("span", [0.2, 0.5, 1.0])
def test_loess_is_a_weighted_line_at_each_point(span):
    draw = np.random.default_rng(0)
    x = draw.uniform(1, 5, 60)
    y = np.sin(x) + draw.normal(0, 0.2, 60)
    at = np.linspace(1, 5, 9)
    expected = []
    for centre in at:
        nearest = np.argsort(np.abs(x - centre))[: math.ceil(span * 60)]
        distance = np.abs(x[nearest] - centre)
        weight = (1 - (distance / (1.001 * distance.max())) ** 3) ** 3
        line = np.polyfit(x[nearest], y[nearest], 1, w=np.sqrt(weight))
        expected.append(np.polyval(line, centre))
    # Points at a distance within a thousandth of the farthest are in reach too.
    assert loess(x, y, at, span=span) == pytest.approx(np.array(expected), abs=2e-3)


def test_loess_keeps_lines_and_stands_clusters():
    x = np.linspace(0, 10, 50)
    assert loess(x, 3 - 2 * x, x, span=0.3) == pytest.approx(3 - 2 * x, abs=1e-9)
    clusters = np.repeat([1.0, 2.0, 4.0], 30)
    values = np.repeat([5.0, 6.0, 8.0], 30)
    curve = loess(clusters, values, np.array([1.0, 2.0, 3.0, 4.0]), span=0.2)
    assert curve == pytest.approx([5.0, 6.0, 7.0, 8.0], abs=1e-6)
    assert loess(np.ones(5), np.arange(5.0), np.ones(1)) == pytest.approx([2.0])
    with pytest.raises(ValueError, match="span: got 0"):
        loess(x, x, x, span=0)


def test_similarities_are_cosines_of_the_hard_captions_that_there_are():
    pairs = pairs_of(30)
    image, text = similarity_by_concreteness(pairs)
    places = [(i, k) for i in range(30) for k in range(2) if pairs.mask[i, k]]
    for found, anchor in ((image, pairs.images), (text, pairs.texts)):
        expected = [float(anchor[i] @ pairs.hard[i, k]) for i, k in places]
        assert found.cosine == pytest.approx(expected, abs=1e-6)
        assert found.concreteness == pytest.approx([pairs.concreteness[p].item() for p in places])
        assert sum(b.points for b in found.bins) == len(places)
    with pytest.raises(ValueError, match="concreteness: got none"):
        similarity_by_concreteness(pairs_of(8, rated=False))


def test_logs_give_the_records_that_have_shares(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"step": 1, "loss": 3.0}\n{"step": 2, "share_pull": 0.5}\n'
        '{"step": 4, "share_pull": 0.4, "share_hard": 0.75, "share_easy": 0.25}\n'
    )
    rows = logged_shares("run", path)
    assert [(row.step, row.pull, row.hard_share) for row in rows] == [
        (2, 0.5, None),
        (4, 0.4, 0.75),
    ]
    path.write_text('{"step": 1, "loss": 3.0}\n')
    with pytest.raises(ValueError, match="no gradient shares"):
        logged_shares("run", path)
    with pytest.raises(FileNotFoundError):
        logged_shares("run", tmp_path / "absent.jsonl")
