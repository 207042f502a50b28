"""What is written, and comparisons of it: against a bootstrap by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow.parquet
import pytest

from slipform_training.evaluation.compare import compare, comparison_table
from slipform_training.evaluation.results import Results, read_results, write_results
from slipform_training.evaluation.scoring import count
from slipform_training.evaluation.tasks import ScoreTable, TaskResult

MODEL = {"name": "m", "weights": "w", "activation": "gelu", "precision": "fp32"}


def result(margins, subsets, missing=("coco/b.jpg", "coco/c.jpg")):
    """One metric; margins nan were not scored."""
    margins = np.array(margins, dtype=float)
    own = np.array(subsets)
    scored = ~np.isnan(margins)
    counts = {
        name: count(margins[scored & (own == name)], items=int((own == name).sum()), near=1e-6)
        for name in dict.fromkeys(subsets)
    }
    rows = np.flatnonzero(scored)
    return TaskResult(
        headline="accuracy",
        counts={"accuracy": counts},
        scores=ScoreTable(
            [subsets[i] for i in rows], [str(i) for i in rows], ["accuracy"] * len(rows),
            margins[rows],
        ),
        missing=missing,
        unreadable={"coco/d.jpg": "truncated"},
        details={"left_out": {"not valid": 3}, "unlike_published": "a: 4 of 5"},
    )  # fmt: skip


NAN = math.nan
MARGINS = [0.5, -0.1, 0.0, NAN, 0.2]
SUBSETS = ["a", "a", "a", "a", "b"]


def test_one_json_a_parquet_and_a_table(tmp_path):
    out = tmp_path / "new/run.json"
    table = write_results(out, {"model": MODEL, "seed": 0}, {"s": result(MARGINS, SUBSETS)})
    content = json.loads(out.read_text())
    whole = content["suites"]["s"]["metrics"]["accuracy"]
    assert whole["micro"] == {
        "items": 5, "scored": 4, "correct": 2, "ties": 1, "near_ties": 1, "accuracy": 0.5,
    }  # fmt: skip
    assert whole["macro"] == pytest.approx((1 / 3 + 1) / 2)
    assert whole["subsets"]["b"]["correct"] == 1
    assert content["suites"]["s"]["missing_images"] == {
        "count": 2, "names": ["coco/b.jpg", "coco/c.jpg"],
    }  # fmt: skip
    assert content["suites"]["s"]["unreadable_images"]["reasons"] == {"coco/d.jpg": "truncated"}
    rows = pyarrow.parquet.read_table(tmp_path / "new/run.parquet").to_pylist()
    assert rows[1] == {
        "suite": "s", "subset": "a", "id": "1", "metric": "accuracy", "margin": -0.1,
        "correct": False, "tie": False,
    }  # fmt: skip
    assert [row["tie"] for row in rows] == [False, False, True, False]
    assert (tmp_path / "new/run.md").read_text() == table + "\n"
    assert "| s | **all** | accuracy | 50.00 | 66.67 | 4 | 5 | 1 | 1 |" in table
    assert "| s | a | accuracy | 33.33 |  | 3 | 4 | 1 | 1 |" in table
    for note in ("2 images are missing", "d.jpg (truncated)", "not valid: 3", "a: 4 of 5"):
        assert note in table
    assert sorted(path.name for path in out.parent.iterdir()) == [
        "run.json", "run.md", "run.parquet",
    ]  # fmt: skip
    assert read_results(out).margins[("s", "accuracy", "a", "1")] == -0.1


def test_nothing_scored_is_null(tmp_path):
    out = tmp_path / "run.json"
    write_results(out, {"model": MODEL}, {"s": result([NAN, 0.1], ["a", "b"])})
    whole = json.loads(out.read_text())["suites"]["s"]["metrics"]["accuracy"]
    assert whole["subsets"]["a"]["accuracy"] is None
    assert whole["macro"] is None


def test_other_files_are_refused(tmp_path):
    out = tmp_path / "run.json"
    out.write_text('{"format": 99}')
    with pytest.raises(ValueError, match="expected the json of slipform eval"):
        read_results(out)
    with pytest.raises(ValueError, match="expected the json of slipform eval"):
        read_results(tmp_path / "lost.json")
    write_results(out, {"model": MODEL}, {"s": result(MARGINS, SUBSETS)})
    (tmp_path / "run.parquet").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="cannot be read"):
        read_results(out)


def evaluation(tmp_path, name, correct):
    """correct: by (subset, id) whether it is right."""
    margins = {("s", "accuracy", *key): 0.1 if won else -0.1 for key, won in correct.items()}
    return Results(tmp_path / f"{name}.json", {"model": MODEL}, margins)


def draw_pair(tmp_path, sizes, seed=0):
    rng = np.random.default_rng(seed)
    keys = [(subset, str(i)) for subset, size in sizes.items() for i in range(size)]
    first = {key: bool(rng.random() < 0.5) for key in keys}
    second = {
        key: won if rng.random() < 0.6 else bool(rng.random() < 0.7) for key, won in first.items()
    }
    return first, second


def test_intervals_are_those_of_resampled_pairs(tmp_path):
    first, second = draw_pair(tmp_path, {"a": 150, "b": 50})
    found = compare(evaluation(tmp_path, "a", first), evaluation(tmp_path, "b", second))
    micro, macro = found
    gain = {key: second[key] - int(first[key]) for key in first}
    rng = np.random.default_rng(5)

    def resampled(values):
        values = np.array(values)
        return values[rng.integers(0, len(values), (20_000, len(values)))].mean(axis=1)

    parts = [[g for (s, _), g in gain.items() if s == subset] for subset in "ab"]
    for one, draws in (
        (micro, resampled(list(gain.values()))),
        (macro, (resampled(parts[0]) + resampled(parts[1])) / 2),
    ):
        low, high = np.quantile(draws, [0.025, 0.975])
        assert one.low == pytest.approx(low, abs=0.011)
        assert one.high == pytest.approx(high, abs=0.011)
        assert one.matched == 200
    assert micro.second - micro.first == pytest.approx(np.mean(list(gain.values())))
    assert macro.second - macro.first == pytest.approx(np.mean([np.mean(p) for p in parts]))
    again = compare(evaluation(tmp_path, "a", first), evaluation(tmp_path, "b", second))
    assert again == found
    few = [
        compare(
            evaluation(tmp_path, "a", first),
            evaluation(tmp_path, "b", second),
            seed=seed,
            resamples=50,
        )
        for seed in (0, 1)
    ]
    assert few[0] != few[1]


def test_pairing_makes_equal_models_equal(tmp_path):
    first, _ = draw_pair(tmp_path, {"a": 60})
    one = compare(evaluation(tmp_path, "a", first), evaluation(tmp_path, "b", first))[0]
    assert (one.low, one.high, one.second - one.first) == (0.0, 0.0, 0.0)


def test_items_that_one_of_them_lacks_are_counted(tmp_path):
    first = {("a", "1"): True, ("a", "2"): False, ("a", "3"): True, ("b", "9"): True}
    second = {("a", "2"): True, ("a", "3"): True, ("a", "4"): False}
    one = compare(evaluation(tmp_path, "a", first), evaluation(tmp_path, "b", second))[0]
    assert (one.matched, one.unmatched, one.first, one.second) == (2, 3, 0.5, 1.0)
    with pytest.raises(ValueError, match="no scored item in common"):
        compare(evaluation(tmp_path, "a", first), evaluation(tmp_path, "b", {("c", "1"): True}))
    with pytest.raises(ValueError, match="resamples: got 0"):
        compare(evaluation(tmp_path, "a", first), evaluation(tmp_path, "b", second), resamples=0)


def test_a_table_of_three(tmp_path):
    first, second = draw_pair(tmp_path, {"a": 40})
    results = [
        evaluation(tmp_path, name, correct)
        for name, correct in (("a", first), ("b", second), ("c", first))
    ]
    table = comparison_table(
        results, {str(other.path): compare(results[0], other) for other in results[1:]}
    )
    assert table.count("| suite | metric |") == 2
    assert "| s | accuracy | micro |" in table
    assert "| +0.00 | +0.00 to +0.00 | 40 | 0 |" in table
