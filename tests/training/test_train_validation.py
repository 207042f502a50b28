"""Validation while training: by open_clip's own model and loss, and by counting."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

pytest.importorskip("open_clip_train")
import open_clip
from PIL import Image

from slipform_training.train import TrainConfig, load_model, run_training
from slipform_training.train.samples import SampleError
from slipform_training.train.validation import recalls
from support.train_files import NAME, mined_rows, tiny_model, write_jsonl

KEYS = ("image_to_text_r1", "image_to_text_r5", "text_to_image_r1", "text_to_image_r5")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model, 12 rows to train on, and 12 captions of 6 other images."""
    folder = tmp_path_factory.mktemp("validation")
    tiny_model(folder)
    write_jsonl(folder / "train.jsonl", mined_rows(folder, 12))
    rows = mined_rows(folder / "val", 12)
    for number, row in enumerate(rows):
        row["image"] = f"pictures/{number // 2}.jpg"
    write_jsonl(folder / "val.jsonl", rows)
    return folder


def train(folder, out, **changes):
    settings = {
        "model": str(folder / f"{NAME}.json"),
        "data": str(folder / "train.jsonl"),
        "images": str(folder),
        "out": str(out),
        "batch_size": 4,
        "steps": 5,
        "lr": 1e-3,
        "warmup_steps": 1,
        "progress": False,
        "tensorboard": False,
        "val_data": str(folder / "val.jsonl"),
        "val_images": str(folder / "val"),
        "val_interval": 2,
    }
    return run_training(TrainConfig(**{**settings, **changes}))


def recalls_by_counting(image, text, groups):
    """Each query's items sorted, the wrong ones first among equals."""
    similarity = image.double() @ text.double().T
    count = len(groups)
    unique = [i for i in range(count) if groups[i] not in groups[:i]]
    hits = dict.fromkeys(KEYS, 0)
    for k in (1, 5):
        for i in unique:
            items = sorted(
                range(count), key=lambda j: (-float(similarity[i, j]), groups[j] == groups[i])
            )
            hits[f"image_to_text_r{k}"] += any(groups[j] == groups[i] for j in items[:k])
        for j in range(count):
            items = sorted(unique, key=lambda i: (-float(similarity[i, j]), groups[j] == groups[i]))
            hits[f"text_to_image_r{k}"] += any(groups[j] == groups[i] for i in items[:k])
    return {
        name: hit / (len(unique) if name.startswith("image") else count)
        for name, hit in hits.items()
    }


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("coarse", [False, True])
def test_recalls_are_those_of_sorting(seed, coarse, monkeypatch):
    """With several captions an image, in blocks; coarse features have equal similarities."""
    monkeypatch.setattr("slipform_training.train.validation._ROWS", 7)
    draw = torch.Generator().manual_seed(seed)
    groups = torch.randint(0, 9, (20,), generator=draw) * 3
    shared = torch.randn(28, 4, generator=draw)[groups]
    text = shared + torch.randn(20, 4, generator=draw)
    if coarse:
        shared, text = shared.sign(), text.sign()
    found = recalls(shared, text, groups)
    assert found == pytest.approx(recalls_by_counting(shared, text, groups.tolist()))


def test_constant_features_and_nan_find_nothing():
    for value in (1.0, float("nan")):
        same = torch.full((8, 3), value)
        assert set(recalls(same, same, torch.arange(8)).values()) == {0.0}


@pytest.mark.parametrize("changes", [{}, {"chunk_size": 3, "workers": 1}])
def test_it_measures_the_model_at_hand(folder, tmp_path, changes):
    """The last record, by open_clip: all samples are one batch, so their order does not count."""
    result = train(folder, tmp_path / "out", batch_size=12, **changes)
    assert [one["step"] for one in result.records if "val_loss" in one] == [2, 4, 5]
    last = result.records[-1]
    parts = load_model(tmp_path / "out/model.pt")
    rows = [json.loads(line) for line in (folder / "val.jsonl").open()]
    with torch.no_grad():
        images = torch.stack(
            [parts.prepare(Image.open(folder / "val" / row["image"])) for row in rows]
        )
        image = normalize(parts.model.encode_image(images), dim=-1)
        text = normalize(
            parts.model.encode_text(parts.tokenizer([row["caption"] for row in rows])), dim=-1
        )
        loss = open_clip.ClipLoss()(image, text, parts.model.logit_scale.exp())
    assert last["val_loss"] == pytest.approx(loss.item(), rel=1e-4)
    wanted = recalls_by_counting(image, text, [row["image"] for row in rows])
    for name in KEYS:
        assert last[f"val_{name}"] == pytest.approx(wanted[name]), name
    assert (last["val_samples"], last["val_skipped"]) == (12, 0)


def test_it_changes_nothing_that_is_learnt(folder, tmp_path):
    train(folder, tmp_path / "a", val_data=None)
    train(folder, tmp_path / "b")
    weights = [load_model(tmp_path / f"{name}/model.pt").model.state_dict() for name in "ab"]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.mark.parametrize("loss", ["cement", "negclip", "siglip"])
def test_every_loss_validates_on_batches_of_the_same_size(folder, tmp_path, loss):
    """Two batches of 4 and a rest; a random model's loss is near that of no knowledge."""
    result = train(folder, tmp_path / "out", loss=loss, val_samples=10, lr=1e-6)
    record = result.records[-1]
    assert record["val_samples"] == 10
    assert record["val_loss"] == pytest.approx(record["loss"], rel=0.5)
    assert np.isfinite(record["val_loss"])


def test_what_cannot_be_loaded_is_an_error_or_counted(folder, tmp_path):
    rows = mined_rows(tmp_path, 8)
    (tmp_path / "pictures/3.jpg").write_text("broken")
    rows[5]["caption"] = " "
    changes = {"val_data": write_jsonl(tmp_path / "v.jsonl", rows), "val_images": str(tmp_path)}
    with pytest.raises(SampleError, match=r"v\.jsonl, line 6: empty caption"):
        train(folder, tmp_path / "a", **changes)
    record = train(folder, tmp_path / "b", **changes, on_error="skip").records[-1]
    assert (record["val_samples"], record["val_skipped"]) == (6, 2)
