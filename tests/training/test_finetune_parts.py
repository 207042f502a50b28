"""The parts of the loop: settings, batches, checkpoints, and what a loss is handed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("open_clip_train")

from slipform_training.data import ShuffledBatches
from slipform_training.finetune import (
    Batch,
    FinetuneConfig,
    MappedBatches,
    load_checkpoint,
    loss_terms,
    save_checkpoint,
)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("steps", 0, "at least 1"),
        ("batch_size", 0, "at least 1"),
        ("lr", 0.0, "above 0"),
        ("lr", float("nan"), "above 0"),
        ("weight_decay", -0.1, "at least 0"),
        ("beta1", 1.0, r"in \[0, 1\)"),
        ("beta2", -0.1, r"in \[0, 1\)"),
        ("eps", 0.0, "above 0"),
        ("warmup_steps", 11, r"in \[0, steps=10\]"),
        ("schedule", "linear", "'cosine' or 'constant'"),
        ("logit_scale_max", 0.5, "at least 1"),
        ("grad_clip_norm", 0.0, "None or above 0"),
        ("precision", "fp8", "'fp32', 'bf16' or 'fp16'"),
        ("seed", -1, "in"),
        ("log_interval", 0, "at least 1"),
        ("checkpoint_interval", -1, "at least 0"),
        ("eval_interval", -1, "at least 0"),
    ],
)
def test_settings_out_of_range_are_named(name, value, expected):
    settings = {"steps": 10, "batch_size": 4, "lr": 1e-3, name: value}
    with pytest.raises(ValueError, match=f"^{name}: got .*{expected}"):
        FinetuneConfig(**settings)


def test_batches_are_mapped_by_number_and_continue_from_their_state():
    def gather(indices, step):
        return Batch(images=torch.full((len(indices), 1), step), texts=torch.from_numpy(indices))

    def source():
        return MappedBatches(ShuffledBatches(10, 3, seed=1), gather)

    expected = [(step, one) for step, one in zip(range(8), ShuffledBatches(10, 3, seed=1))]  # noqa: B905
    running, resumed = source(), source()
    for step, indices in expected:
        if step == 5:
            resumed.load_state_dict(running.state_dict())
            running = resumed
        batch = next(running)
        assert batch.images.tolist() == [[step]] * 3
        assert batch.texts.tolist() == indices.tolist()


def test_a_failed_save_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "checkpoint.pt"
    save_checkpoint(path, {"step": 1})

    def half_a_save(_state, file):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", half_a_save)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(path, {"step": 2})
    assert load_checkpoint(path)["step"] == 1
    assert [file.name for file in path.parent.iterdir()] == ["checkpoint.pt"]


def test_the_final_name_never_holds_a_part(tmp_path, monkeypatch):
    """While the bytes are written, the final name still holds the old file."""
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"step": 1})
    real_save, seen = torch.save, []

    def watched_save(state, file):
        file.write(b"")
        seen.append(load_checkpoint(path)["step"])
        real_save(state, file)

    monkeypatch.setattr(torch, "save", watched_save)
    save_checkpoint(path, {"step": 2})
    assert (seen, load_checkpoint(path)["step"]) == ([1], 2)


class Payload:
    def __reduce__(self):
        return (print, ("ran code",))


def test_checkpoints_cannot_run_code(tmp_path, capsys):
    path = tmp_path / "checkpoint.pt"
    torch.save({"format": 2, "payload": Payload()}, path)
    with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
        load_checkpoint(path)
    assert "ran code" not in capsys.readouterr().out


def test_other_files_are_refused_by_name(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save({"weight": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"weights.pt of format None, expected format 2"):
        load_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "none.pt")


class Identity(nn.Module):
    """Features are the inputs, so a test can read off what arrived where."""

    def __init__(self) -> None:
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(1.0))
        self.text_calls = 0

    def encode_image(self, images, normalize):
        return images.flatten(1).float()

    def encode_text(self, texts, normalize):
        self.text_calls += 1
        return texts.float()


def make_batch(**changes) -> Batch:
    fields = {
        "images": torch.arange(12.0).reshape(4, 3, 1, 1),
        "texts": torch.arange(8).reshape(4, 2),
        "hard_texts": 100 + torch.arange(24).reshape(4, 3, 2),
        "concreteness": torch.full((4, 3), 4.5),
        "hard_mask": torch.ones(4, 3, dtype=torch.bool),
        "hard_images": 200 + torch.arange(12.0).reshape(4, 3, 1, 1),
    }
    return Batch(**{**fields, **changes})


def test_a_loss_is_handed_what_its_forward_names():
    received = {}

    class Loss(nn.Module):
        def forward(
            self, image_features, text_features, logit_scale, *, hard_text_features,
            hard_image_features=None, hard_mask=None, output_dict=False,
        ):  # fmt: skip
            received.update(locals())
            return {"a_loss": text_features.sum(), "b_loss": logit_scale, "note": 1}

    model, batch = Identity(), make_batch()
    terms = loss_terms(model, Loss(), batch)
    assert set(terms) == {"a_loss", "b_loss"}
    assert torch.equal(received["text_features"], batch.texts.float())
    assert torch.equal(received["hard_text_features"], batch.hard_texts.float())
    assert torch.equal(received["hard_image_features"], batch.hard_images.flatten(1))
    assert received["hard_mask"] is batch.hard_mask
    assert torch.equal(received["logit_scale"], torch.tensor(1.0).exp())
    assert model.text_calls == 1


def test_a_plain_loss_is_not_charged_for_hard_captions():
    rows = []

    class Plain(nn.Module):
        def forward(self, image_features, text_features, logit_scale, output_dict=False):
            return {"a_loss": text_features.sum()}

    class Counting(Identity):
        def encode_text(self, texts, normalize):
            rows.append(len(texts))
            return super().encode_text(texts, normalize)

    loss_terms(Counting(), Plain(), make_batch())
    assert rows == [4]


def test_a_missing_input_is_named():
    class Needs(nn.Module):
        def forward(self, image_features, text_features, logit_scale, *, concreteness):
            raise AssertionError

    with pytest.raises(ValueError, match=r"batch.concreteness: got None.*Needs needs concreteness"):
        loss_terms(Identity(), Needs(), make_batch(concreteness=None))


def test_a_loss_without_a_loss_term_is_refused():
    class Silent(nn.Module):
        def forward(self, image_features, text_features, logit_scale, output_dict=False):
            return {"total": text_features.sum()}

    with pytest.raises(ValueError, match=r"got the outputs \['total'\]"):
        loss_terms(Identity(), Silent(), make_batch())
