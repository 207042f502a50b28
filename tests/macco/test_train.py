"""MACCO in the training loop and in `slipform train`: optimizer, resuming, what is left."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("open_clip_train")
import open_clip

from slipform_kernels import ClipLoss
from slipform_training.data import ShuffledBatches
from slipform_training.finetune import (
    Batch,
    FinetuneConfig,
    MappedBatches,
    build_optimizer,
    finetune,
    load_checkpoint,
)
from slipform_training.finetune.optimizer import build_schedule
from slipform_training.macco import Macco, MaccoConfig, MaccoLoss
from slipform_training.macco.rows import ConceptRow, Concepts, Phrase, write_concept_rows
from slipform_training.train import TrainConfig, load_model, run_training
from support.macco import tiny_batch, tiny_clip
from support.ranks import run_ranks, succeeded
from support.train_files import NAME, mined_rows, tiny_model


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def test_groups_of_the_optimizer():
    """0.2 on CLIP's matrices, 0.01 on the others', none on gains and biases; two learning rates."""
    macco = Macco(tiny_clip(), MaccoConfig())
    config = FinetuneConfig(steps=10, batch_size=2, lr=5e-7, weight_decay=0.2, warmup_steps=2)
    optimizer = build_optimizer(macco, config)
    of = {
        parameter: (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert len(of) == len(list(macco.parameters()))
    for name, parameter in macco.named_parameters():
        is_added = name.startswith("added.")
        is_exempt = name.rpartition(".")[2] in (
            "bias", "in_proj_bias", "positional_embedding", "class_embedding", "logit_scale",
        ) or ("weight" in name and parameter.ndim == 1)  # fmt: skip
        lr, decay = (1e-3, 0.01) if is_added else (5e-7, 0.2)
        assert of[parameter] == (lr, 0.0 if is_exempt else decay), name
    set_lr = build_schedule(optimizer, config)
    for step in range(10):
        factor = (step + 1) / 2 if step < 2 else 0.5 * (1 + math.cos(math.pi * (step - 2) / 8))
        assert set_lr(step) == pytest.approx(5e-7 * factor)
        peaks = [group["lr"] for group in optimizer.param_groups]
        wanted = [5e-7 * factor] * 2 + [1e-3 * factor] * 2
        assert peaks == pytest.approx(wanted)


SAMPLES = tiny_batch(24, seed=5)


def gather(indices, _step) -> Batch:
    names = ("images", "texts", "word_mask", "patch_mask")
    return Batch(**{name: getattr(SAMPLES, name)[indices] for name in names})


class Lost(MaccoLoss):
    """A run that dies in its seventh loss."""

    calls = 0

    def _two_way_mean(self, layout):
        self.calls += 1
        if self.calls == 3 * 7:
            raise OSError("lost")
        return super()._two_way_mean(layout)


def fit(out_dir, loss=MaccoLoss, **changes):
    settings = MaccoConfig()
    config = FinetuneConfig(
        steps=8, batch_size=8, lr=1e-3, log_interval=1, checkpoint_interval=2, **changes
    )
    macco = Macco(tiny_clip(), settings)
    batches = MappedBatches(ShuffledBatches(24, 8, seed=7), gather)
    result = finetune(
        macco, loss(ClipLoss(), settings), batches, config, out_dir=out_dir, progress=False
    )
    return macco, result


@pytest.mark.parametrize("changes", [{}, {"precision": "fp16", "chunk_size": 3}])
def test_a_run_that_died_resumes_to_the_same_bits(tmp_path, changes):
    undisturbed, result = fit(tmp_path / "a", **changes)
    with pytest.raises(OSError, match="lost"):
        fit(tmp_path / "b", loss=Lost, **changes)
    assert load_checkpoint(tmp_path / "b/checkpoint.pt")["step"] == 6
    resumed, _ = fit(tmp_path / "b", **changes)
    left, right = undisturbed.state_dict(), resumed.state_dict()
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name
    start = Macco(tiny_clip(), MaccoConfig()).state_dict()
    stood = [name for name, value in left.items() if torch.equal(value, start[name])]
    assert stood == []
    losses = [record["loss"] for record in result.records]
    if not changes:
        assert losses[-1] < losses[0]
    for record in result.records:
        terms = [record[f"{name}_loss"] for name in ("mca", "mir", "mlm", "mim")]
        assert record["loss"] == pytest.approx(sum(terms), rel=1e-5)


def test_the_checkpoint_has_the_plain_model_and_beside_it_the_rest(tmp_path):
    seen = []

    def evaluate(model, step):
        seen.append((type(model).__name__, model.training))
        return {}

    settings = MaccoConfig()
    macco = Macco(tiny_clip(), settings)
    config = FinetuneConfig(steps=1, batch_size=8, lr=1e-3)
    batches = MappedBatches(ShuffledBatches(24, 8, seed=7), gather)
    finetune(
        macco, MaccoLoss(ClipLoss(), settings), batches, config, out_dir=tmp_path,
        evaluate=evaluate, progress=False,
    )  # fmt: skip
    assert seen == [("CLIP", False)]
    state = load_checkpoint(tmp_path / "checkpoint.pt")
    plain = tiny_clip(seed=1)
    plain.load_state_dict(state["state_dict"])
    image = SAMPLES.images[:2]
    assert torch.equal(plain.encode_image(image), macco.clip.encode_image(image))
    assert state["added"].keys() == macco.added.state_dict().keys()
    assert not macco.training


class Half:
    """What one of two ranks takes of a stream of batches."""

    batch_size = 4

    def __init__(self, rank: int) -> None:
        self.whole, self.rank = ShuffledBatches(24, 8, seed=7), rank

    @property
    def step(self):
        return self.whole.step

    def __next__(self):
        return next(self.whole)[self.rank :: 2]

    def state_dict(self):
        return self.whole.state_dict()


def fit_on_a_rank(out_dir, changes):
    rank = dist.get_rank()
    settings = MaccoConfig()
    config = FinetuneConfig(steps=3, batch_size=4, lr=1e-3, schedule="constant", **changes)
    macco = Macco(tiny_clip(), settings)
    loss = MaccoLoss(ClipLoss(gather_with_grad=True, rank=rank, world_size=2), settings)
    batches = MappedBatches(Half(rank), gather)
    finetune(macco, loss, batches, config, out_dir=out_dir, progress=False)
    return macco.state_dict()


@pytest.mark.parametrize("changes", [{}, {"chunk_size": 3, "grad_clip_norm": 1.0}])
def test_two_ranks_train_as_one_process_does(tmp_path, changes):
    first, second = succeeded(run_ranks(2, fit_on_a_rank, tmp_path / "two", changes))
    settings = MaccoConfig()
    config = FinetuneConfig(steps=3, batch_size=8, lr=1e-3, schedule="constant", **changes)
    macco = Macco(tiny_clip(), settings)
    start = {name: value.clone() for name, value in macco.state_dict().items()}
    batches = MappedBatches(ShuffledBatches(24, 8, seed=7), gather)
    finetune(
        macco, MaccoLoss(ClipLoss(), settings), batches, config, out_dir=tmp_path / "one",
        progress=False,
    )  # fmt: skip
    for name, value in macco.state_dict().items():
        assert torch.equal(first[name], second[name]), name
        moved = (value - start[name]).norm()
        assert moved > 0, name
        # Adam makes as much of a gradient that is rounding as of any other.
        bar = 0.1 if name.endswith("bias") else 0.01
        assert (value - first[name]).norm() < bar * moved, name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("macco")
    tiny_model(folder)
    write_concept_rows(
        folder / "concepts.tsv",
        [
            ConceptRow(
                image=row["image"],
                caption=row["caption"],
                concepts=Concepts(
                    objects=["photo", "object"],
                    relations=["of"],
                    phrases=[Phrase("photo of object", "relation", [[0, 0, 18 + number, 20]])],
                ),
                hard_captions=row["hard_captions"],
                concreteness=row["concreteness"],
            )
            for number, row in enumerate(mined_rows(folder, 9))
        ],
    )
    return folder


KILLED = """
import json, sys, torch
from slipform_training.train import TrainConfig, run_training

torch.set_num_threads(1)
run_training(TrainConfig(**json.load(open(sys.argv[1]))))
"""


def settings_of(folder, out, **changes):
    return {
        "model": str(folder / f"{NAME}.json"),
        "data": str(folder / "concepts.tsv"),
        "images": str(folder),
        "out": str(out),
        "objective": "macco",
        "batch_size": 4,
        "steps": 4,
        "lr": 1e-3,
        "beta2": 0.999,
        "warmup_steps": 1,
        "log_interval": 1,
        "progress": False,
        **changes,
    }


def train(folder, out, **changes):
    return run_training(TrainConfig(**settings_of(folder, out, **changes)))


@pytest.mark.parametrize("loss", ["clip", "negclip", "cement"])
def test_model_pt_is_a_plain_clip(folder, tmp_path, loss, capsys):
    result = train(folder, tmp_path / "out", loss=loss, text_layers=1, mlm=10)
    assert f"loss: {loss} with MACCO; 4 updates" in capsys.readouterr().out
    assert {"mca_loss", "mir_loss", "mlm_loss", "mim_loss"} <= result.records[0].keys()
    state = load_checkpoint(tmp_path / "out/checkpoint.pt")
    assert not any("text_predictor.blocks.1" in name for name in state["added"])
    open_clip.add_model_config(folder / f"{NAME}.json")
    for file in ("model.pt", "checkpoint.pt"):
        plain = open_clip.create_model(NAME, pretrained=str(tmp_path / "out" / file)).eval()
        loaded = load_model(tmp_path / "out" / file).model
        for name, value in plain.state_dict().items():
            assert torch.equal(value, state["state_dict"][name]), name
            assert torch.equal(value, loaded.state_dict()[name]), name


def test_other_settings_do_not_resume(folder, tmp_path):
    train(folder, tmp_path / "out", steps=1)
    for changes, message in (
        ({"mlm": 10.0}, "mlm: 20.0 there, 10.0 now"),
        ({"image_layers": 1}, "image_layers: 3 there, 1 now"),
        ({"objective": "contrastive"}, "objective: 'macco' there, 'contrastive' now"),
    ):
        with pytest.raises(ValueError, match="was written with other settings") as caught:
            train(folder, tmp_path / "out", steps=1, **changes)
        assert message in str(caught.value)


def test_killed_and_resumed_it_ends_with_the_same_bits(folder, tmp_path):
    """kill -9 after some checkpoint."""
    changes = {"steps": 10, "checkpoint_interval": 2, "loss": "cement"}
    train(folder, tmp_path / "a", **changes)
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(settings_of(folder, tmp_path / "b", **changes)))
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    checkpoint = tmp_path / "b/checkpoint.pt"
    while process.poll() is None and not checkpoint.exists():
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 0 < load_checkpoint(checkpoint)["step"] <= 10
    train(folder, tmp_path / "b", **changes)
    left, right = (load_checkpoint(tmp_path / name / "checkpoint.pt") for name in ("a", "b"))
    for part in ("state_dict", "added"):
        assert left[part].keys() == right[part].keys()
        for name, value in left[part].items():
            assert torch.equal(value, right[part][name]), name
    log = (tmp_path / "b/log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == list(range(1, 11))


def test_settings_that_do_not_go_together(tmp_path):
    required = {"model": "m", "data": "d", "out": "o"}
    for changes, message in (
        ({"objective": "macco", "loss": "siglip"}, "loss: got 'siglip', expected one of clip, neg"),
        ({"objective": "other"}, "objective: got 'other', expected one of contrastive, macco"),
        ({"mim": 1.0}, "mim: got 1.0, expected its default with the objective contrastive"),
        ({"objective": "macco", "mim": -1.0}, "mim: got -1.0, expected finite"),
    ):
        with pytest.raises(ValueError, match=message):
            TrainConfig(**required, **changes)


def test_a_model_whose_tokens_cannot_be_masked_is_refused(folder, tmp_path):
    changes = json.loads(Path(folder / f"{NAME}.json").read_text())
    changes["vision_cfg"] = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 16}
    model = tiny_model(tmp_path, "tiny-resnet", **changes)
    with pytest.raises(ValueError, match="got the image tower ModifiedResNet, expected"):
        train(folder, tmp_path / "out", model=model)
