"""A training from its files to a checkpoint that open_clip loads: killed, resumed, refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

pytest.importorskip("open_clip_train")
import open_clip

from slipform_training import cli
from slipform_training.finetune import load_checkpoint
from slipform_training.train import TrainConfig, load_model, run_training
from slipform_training.train.model import ActivationMismatchError, activation_of
from slipform_training.train.settings_file import read_settings
from support.ranks import run_ranks, succeeded
from support.train_files import NAME, draw_image, mined_rows, tiny_model, write_jsonl

REAL = Path(__file__).parents[2].parent / "shared" / "data"
COUNT = 14


@pytest.fixture(autouse=True)
def _one_thread():
    """So small a model gains nothing by more, and a subprocess has to have as many."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model, and 14 mined rows of which one image is broken and one is missing."""
    folder = tmp_path_factory.mktemp("run")
    tiny_model(folder)
    write_jsonl(folder / "mined.jsonl", mined_rows(folder, COUNT))
    (folder / "pictures/4.jpg").write_text("broken")
    (folder / "pictures/8.jpg").unlink()
    write_jsonl(folder / "good.jsonl", mined_rows(folder / "good", 6))
    return folder


def settings(folder, out, **changes):
    return {
        "model": str(folder / f"{NAME}.json"),
        "data": str(folder / "mined.jsonl"),
        "images": str(folder),
        "out": str(out),
        "loss": "cement",
        "on_error": "skip",
        "batch_size": 4,
        "steps": 6,
        "lr": 1e-3,
        "warmup_steps": 1,
        "log_interval": 1,
        "progress": False,
        **changes,
    }


def train(folder, out, **changes):
    return run_training(TrainConfig(**settings(folder, out, **changes)))


def assert_same_state(left: Path, right: Path) -> None:
    """Everything in two checkpoints but times."""
    states = [load_checkpoint(path / "checkpoint.pt") for path in (left, right)]

    def flat(value, name=""):
        if isinstance(value, dict):
            return [x for key in value for x in flat(value[key], f"{name}.{key}")]
        if isinstance(value, (list, tuple)):
            return [x for i, one in enumerate(value) for x in flat(one, f"{name}.{i}")]
        return [(name, value)]

    for state in states:
        state.pop("seconds")
        state.pop("config")
    for (name, one), (other_name, other) in zip(flat(states[0]), flat(states[1]), strict=True):
        assert name == other_name
        same = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
        assert same, name


def records(out: Path) -> list[dict]:
    lines = (out / "log.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    for record in found:
        del record["seconds"], record["samples_per_second"]
    return found


def test_killed_and_resumed_it_ends_with_the_same_bits(folder, tmp_path):
    """kill -9 at some update; augmentation, skipping, dropout of samples, workers and all."""
    train(folder, tmp_path / "a", steps=12)
    flags = settings(folder, tmp_path / "b", steps=12, checkpoint_interval=2)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/run.yaml").write_text(json.dumps(flags))  # json is yaml
    command = [sys.executable, "-m", "slipform_training.cli", "train", "--config"]
    process = subprocess.Popen(
        [*command, str(tmp_path / "b/run.yaml")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    log, checkpoint = tmp_path / "b/log.jsonl", tmp_path / "b/checkpoint.pt"
    while process.poll() is None and not (checkpoint.exists() and log.read_text().count("\n") > 4):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 0 < load_checkpoint(checkpoint)["step"] <= 12
    # Another number of workers and other intervals are no other training.
    train(folder, tmp_path / "b", steps=12, checkpoint_interval=5, workers=1)
    assert_same_state(tmp_path / "a", tmp_path / "b")
    assert records(tmp_path / "a") == records(tmp_path / "b")
    assert (tmp_path / "a/skipped.jsonl").read_text() == (tmp_path / "b/skipped.jsonl").read_text()
    kinds = {json.loads(line)["kind"] for line in (tmp_path / "b/skipped.jsonl").open()}
    assert kinds == {"missing file", "unreadable image"}


@pytest.mark.parametrize("file", ["model.pt", "checkpoint.pt"])
def test_plain_open_clip_loads_what_it_leaves(folder, tmp_path, file):
    train(folder, tmp_path / "out", steps=2)
    open_clip.add_model_config(folder / f"{NAME}.json")
    plain = open_clip.create_model(NAME, pretrained=str(tmp_path / "out" / file))
    trained = load_checkpoint(tmp_path / "out/checkpoint.pt")["state_dict"]
    start = open_clip.create_model(NAME)
    assert plain.state_dict().keys() == trained.keys()
    for name, value in plain.state_dict().items():
        assert torch.equal(value, trained[name]), name
    assert not torch.equal(start.visual.proj, plain.visual.proj)
    image = torch.rand(1, 3, 32, 32)
    loaded = load_model(tmp_path / "out" / file).model
    assert torch.equal(loaded.encode_image(image), plain.eval().encode_image(image))


def test_it_trains_as_a_loop_over_open_clips_own_parts(folder, tmp_path):
    """Three updates on all six samples with the evaluation's transform, written out."""
    train(
        folder, tmp_path / "out", data=str(folder / "good.jsonl"), images=str(folder / "good"),
        loss="clip", on_error="raise", batch_size=6, steps=3, augment=False, schedule="constant",
        warmup_steps=0, seed=5,
    )  # fmt: skip
    trained = load_checkpoint(tmp_path / "out/checkpoint.pt")["state_dict"]
    torch.manual_seed(5)
    model, _, transform = open_clip.create_model_and_transforms(NAME, output_dict=True)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    rows = [json.loads(line) for line in (folder / "good.jsonl").open()]
    images = torch.stack([transform(Image.open(folder / "good" / row["image"])) for row in rows])
    texts = open_clip.get_tokenizer(NAME)([row["caption"] for row in rows])
    parameters = dict(model.named_parameters())
    exempt = [n for n, p in parameters.items() if p.ndim < 2 or n in model.no_weight_decay()]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in parameters.items() if n not in exempt], "weight_decay": 0.1},
            {"params": [parameters[n] for n in exempt], "weight_decay": 0.0},
        ],
        lr=1e-3,
        betas=(0.9, 0.98),
        eps=1e-6,
    )
    loss = open_clip.ClipLoss()
    for _ in range(3):
        optimizer.zero_grad()
        loss(**model(images, texts)).backward()
        optimizer.step()
    moved = torch.cat([(v - start[n]).flatten() for n, v in model.state_dict().items()])
    apart = torch.cat([(v - trained[n]).flatten() for n, v in model.state_dict().items()])
    assert apart.norm() < 1e-2 * moved.norm()


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "clip", "precision": "bf16"},
        {"loss": "negclip", "hard_captions": 2, "accumulation": 2, "grad_clip_norm": 1.0},
        {"loss": "cement", "chunk_size": 3, "precision": "fp16"},
        {"loss": "siglip"},
        {"loss": "triplet", "data": "hard_images.jsonl"},
    ],
)
def test_every_loss_and_precision_runs_and_lowers_the_loss(folder, tmp_path, changes):
    rows = mined_rows(folder, COUNT)[:3]
    for row in rows:
        row.update(hard_captions=row["hard_captions"][:1], concreteness=[4.0])
        row["hard_images"] = [rows[(int(row["id"]) + 1) % 3]["image"]]
    write_jsonl(folder / "hard_images.jsonl", rows)
    changes = {**changes, "data": str(folder / changes.get("data", "good.jsonl"))}
    images = folder if changes["loss"] == "triplet" else folder / "good"
    result = train(
        folder, tmp_path / "out", images=str(images), batch_size=3, steps=8, lr=5e-3,
        schedule="constant", **changes,
    )  # fmt: skip
    losses = [record["loss"] for record in result.records]
    assert sum(losses[-3:]) < sum(losses[:3])
    assert all(record["logit_scale"] <= 100.001 for record in result.records)
    if changes["loss"] in ("cement", "negclip"):
        assert any("share_hard" in record for record in result.records)
    if changes["loss"] == "siglip":
        path = str(tmp_path / "out/model.pt")
        bias = load_model(path).model.logit_bias
        assert bias.item() != -10.0
        plain = open_clip.create_model(NAME, pretrained=path, init_logit_bias=-10)
        assert torch.equal(plain.logit_bias, bias)


def test_the_resolved_settings_repeat_the_run(folder, tmp_path):
    train(folder, tmp_path / "a", steps=None, epochs=2.0)
    found = read_settings(tmp_path / "a/resolved.yaml")
    assert found["steps"] == 2 * (COUNT // 4)
    assert (found["epochs"], found["margin"], found["device"]) == (None, 0.05, "cpu")
    run_training(TrainConfig(**{**found, "out": str(tmp_path / "b")}))
    assert_same_state(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"margin": 0.2}, "margin: 0.05 there, 0.2 now"),
        ({"loss": "negclip"}, "loss: 'cement' there, 'negclip' now"),
        ({"augment": False}, "augment: True there, False now"),
        ({"batch_size": 3}, "batch_size: 4 there, 3 now"),
        ({"data": "good"}, "data: "),
    ],
)
def test_other_settings_do_not_resume(folder, tmp_path, changes, message):
    if changes.get("data"):
        changes = {"data": str(folder / "good.jsonl"), "images": str(folder / "good")}
    train(folder, tmp_path / "out", steps=1)
    before = (tmp_path / "out/resolved.yaml").read_text()
    with pytest.raises(ValueError, match="was written with other settings") as caught:
        train(folder, tmp_path / "out", steps=1, **changes)
    assert message in str(caught.value)
    assert (tmp_path / "out/resolved.yaml").read_text() == before


def test_data_may_move(folder, tmp_path):
    train(folder, tmp_path / "out", steps=1)
    (tmp_path / "moved.jsonl").write_text((folder / "mined.jsonl").read_text())
    train(folder, tmp_path / "out", steps=1, data=str(tmp_path / "moved.jsonl"))


def test_weights_of_another_activation_are_refused(folder, tmp_path):
    """open_clip loads them without a word: their shapes are the same (its issue 771)."""
    train(folder, tmp_path / "out", steps=1)
    weights = str(tmp_path / "out/model.pt")
    other = tiny_model(tmp_path, "tiny-slipform", quick_gelu=False)
    open_clip.add_model_config(other)
    assert activation_of(open_clip.create_model("tiny-slipform", pretrained=weights)) == "gelu"
    for attempt in (
        lambda: load_model(weights, model=other),
        lambda: train(folder, tmp_path / "new", model=other, pretrained=weights),
    ):
        with pytest.raises(ActivationMismatchError, match="issue 771") as caught:
            attempt()
        text = str(caught.value)
        assert (
            "trained with the activation quick_gelu, and the model tiny-slipform has gelu" in text
        )
        assert f"use --model {NAME}" in text
    assert activation_of(load_model(weights).model) == "quick_gelu"
    train(folder, tmp_path / "more", steps=1, pretrained=weights)


def test_tags_of_another_activation_are_refused_before_a_download(folder, tmp_path):
    with pytest.raises(ActivationMismatchError, match="use --model ViT-B-32-quickgelu"):
        train(folder, tmp_path / "out", model="ViT-B-32", pretrained="openai")


def test_a_checkpoint_cannot_run_code(folder, tmp_path):
    proof = tmp_path / "proof"

    class Payload:
        def __reduce__(self):
            return Path.touch, (proof,)

    torch.save({"state_dict": {}, "payload": Payload()}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match=r"evil\.pt cannot be made"):
        train(folder, tmp_path / "out", pretrained=str(tmp_path / "evil.pt"))
    assert not proof.exists()


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in folder.rglob("*")
    }


def test_nothing_is_written_but_the_files_of_a_run(tmp_path):
    """Paths and names in the data lead out of its folder, and to the run's own files."""
    inside = tmp_path / "home/data"
    inside.mkdir(parents=True)
    rows = mined_rows(inside, 6)
    draw_image(tmp_path / "outside.jpg", 9)
    rows[0].update(image="../../outside.jpg", id="../../../evil")
    rows[1].update(image=str(tmp_path / "outside.jpg"))
    rows[2].update(image="../out/checkpoint.pt", caption="../../evil")
    write_jsonl(inside / "m.jsonl", rows)
    tiny_model(inside)
    before = listing(tmp_path)
    train(inside, tmp_path / "home/out", data=str(inside / "m.jsonl"), steps=2)
    after = listing(tmp_path)
    new = {name for name in after if after[name] != before.get(name)}
    assert {name for name in new if not name.startswith("home/out")} <= {"home"}
    assert {name.rpartition("/")[2] for name in new} - {"home", "out"} <= {
        "checkpoint.pt", "model.pt", "log.jsonl", "resolved.yaml", "skipped.jsonl", "tensorboard",
    }  # fmt: skip


def test_a_folder_with_other_things_is_left_alone(folder, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"other than a training run \(notes\.txt\)"):
        train(folder, tmp_path)
    assert listing(tmp_path).keys() == {"notes.txt"}


@pytest.mark.skipif(not (REAL / "negclip").is_dir(), reason="no ../shared/data")
def test_negclips_tsv_trains_as_it_is(folder, tmp_path, capsys):
    """Its images are not here: those of its first rows are drawn, and the others are skipped."""
    path = REAL / "negclip/valid_neg_clip.tsv"
    for number, line in enumerate(path.read_text().splitlines()[1:25]):
        draw_image(tmp_path / "images" / line.split("\t")[2], number, (33, 33))
    flags = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in settings(folder, tmp_path / "out").items()
        if name not in ("progress",)
    ]
    flags += [f"--data={path}", f"--images={tmp_path / 'images'}", "--loss=negclip", "--steps=2"]
    assert cli.main(["train", "--no-progress", *flags]) == 0
    shown = capsys.readouterr().out
    assert "samples, 4839 with hard captions" in shown
    assert " missing file)" in shown
    skipped = len((tmp_path / "out/skipped.jsonl").read_text().splitlines())
    assert f"skipped {skipped} ({skipped} missing file)" in shown


def rank_trains(folder, out, changes):
    result = train(folder, out, **changes)
    return len(result.records)


def test_two_ranks_write_one_folder_and_train_as_one_process(folder, tmp_path):
    good = {"data": str(folder / "good.jsonl"), "images": str(folder / "good"), "steps": 3}
    good.update(loss="negclip", schedule="constant", on_error="raise")
    counts = succeeded(
        run_ranks(2, rank_trains, folder, tmp_path / "two", {**good, "batch_size": 3})
    )
    assert counts == [3, 0]
    train(folder, tmp_path / "one", **{**good, "batch_size": 6})
    one, two = (
        load_checkpoint(tmp_path / name / "model.pt")["state_dict"] for name in ("one", "two")
    )
    torch.manual_seed(0)
    start = open_clip.create_model(NAME).state_dict()
    moved = torch.cat([(one[name] - start[name]).flatten() for name in one])
    apart = torch.cat([(one[name] - two[name]).flatten() for name in one])
    assert apart.norm() < 1e-2 * moved.norm()
