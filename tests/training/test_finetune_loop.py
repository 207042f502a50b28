"""The training loop: a resumed run equals an undisturbed one, and every stop is a clean one."""

from __future__ import annotations

import json
import math
import random
import signal

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("open_clip_train")

from slipform_training.data import ShuffledBatches
from slipform_training.finetune import (
    Batch,
    ConfigMismatchError,
    FinetuneConfig,
    MappedBatches,
    NonFiniteLossError,
    TrainingInterrupted,
    finetune,
    load_checkpoint,
    parameter_groups,
)

STEPS = 12


class ToyClip(nn.Module):
    """Two small towers with what a resume can lose: batch statistics and random dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.image_tower = nn.Sequential(
            nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 6)
        )
        self.token_embedding = nn.Embedding(11, 6)
        self.positional_embedding = nn.Parameter(torch.zeros(5, 6))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def no_weight_decay(self) -> set[str]:
        return {"positional_embedding"}

    def encode_image(self, images: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        features = self.image_tower(images)
        return nn.functional.normalize(features, dim=-1) if normalize else features

    def encode_text(self, texts: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        features = (self.token_embedding(texts) + self.positional_embedding).mean(1)
        return nn.functional.normalize(features, dim=-1) if normalize else features


class ToyLoss(nn.Module):
    """InfoNCE written with cross_entropy, as a stand-in that is no part of this project."""

    def forward(self, image_features, text_features, logit_scale, output_dict=False):
        logits = logit_scale * image_features @ text_features.T
        target = torch.arange(len(logits))
        value = nn.functional.cross_entropy(logits, target)
        return {"toy_loss": value} if output_dict else value


class ToyData:
    def __init__(self, size: int = 30) -> None:
        generator = torch.Generator().manual_seed(5)
        self.images = torch.randn(size, 3, 2, 2, generator=generator)
        self.texts = torch.randint(0, 11, (size, 5), generator=generator)

    def gather(self, indices, step: int) -> Batch:
        noise = torch.randn(len(indices), 3, 2, 2, generator=torch.Generator().manual_seed(step))
        return Batch(images=self.images[indices] + 0.1 * noise, texts=self.texts[indices])


def toy_batches(batch_size: int) -> MappedBatches:
    return MappedBatches(ShuffledBatches(30, batch_size, seed=7), ToyData().gather)


def make_config(**changes) -> FinetuneConfig:
    settings = {
        "steps": STEPS,
        "batch_size": 8,
        "lr": 1e-2,
        "warmup_steps": 2,
        "seed": 3,
        "log_interval": 1,
    }
    return FinetuneConfig(**{**settings, **changes})


def run(out_dir, config=None, *, loss=None, evaluate=None, resume=True):
    torch.manual_seed(0)
    model = ToyClip()
    config = config or make_config()
    batches = toy_batches(config.batch_size)
    result = finetune(
        model,
        loss or ToyLoss(),
        batches,
        config,
        out_dir=out_dir,
        evaluate=evaluate,
        progress=False,
        resume=resume,
    )
    return model, result


def stop_at(step: int, stop):
    def evaluate(_model, now):
        if now == step:
            stop()
        return {}

    return evaluate


def assert_equal_bits(left, right) -> None:
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_equal_bits(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_equal_bits(one, other)
    else:
        assert left == right


def losses(result) -> list[tuple[int, float]]:
    return [(record["step"], record["loss"]) for record in result.records]


def assert_same_run(out_a, out_b) -> None:
    states = [load_checkpoint(out / "checkpoint.pt") for out in (out_a, out_b)]
    for state in states:
        assert state.pop("seconds") > 0
        state.pop("config")
    assert_equal_bits(*states)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_resumes_to_the_same_bits(tmp_path, signum):
    _, undisturbed = run(tmp_path / "a", make_config(eval_interval=1))
    stop = stop_at(5, lambda: signal.raise_signal(signum))
    with pytest.raises(TrainingInterrupted, match=r"after step 5 of 12.*same command again"):
        run(tmp_path / "b", make_config(eval_interval=1), evaluate=stop)
    assert load_checkpoint(tmp_path / "b/checkpoint.pt")["step"] == 5
    _, resumed = run(tmp_path / "b", make_config(eval_interval=1))
    assert losses(resumed) == losses(undisturbed)
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_crashed_run_resumes_from_the_last_checkpoint_to_the_same_bits(tmp_path):
    _, undisturbed = run(tmp_path / "a")

    def crash():
        raise OSError("lost")

    config = make_config(eval_interval=1, checkpoint_interval=3)
    with pytest.raises(OSError, match="lost"):
        run(tmp_path / "b", config, evaluate=stop_at(8, crash))
    assert load_checkpoint(tmp_path / "b/checkpoint.pt")["step"] == 6
    _, resumed = run(tmp_path / "b")
    # Updates 7 and 8 were done twice and stand in the log once.
    assert losses(resumed) == losses(undisturbed)
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_signal_handlers_are_put_back(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run(tmp_path)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_finished_run_is_not_repeated(tmp_path):
    first, result = run(tmp_path)
    again, repeated = run(tmp_path, loss=FailingLoss(at=1))
    assert_equal_bits(dict(first.state_dict()), dict(again.state_dict()))
    assert repeated.records == result.records


def test_resume_false_starts_anew(tmp_path):
    _, first = run(tmp_path)
    _, second = run(tmp_path, resume=False)
    assert losses(first) == losses(second)
    assert [record["step"] for record in second.records] == list(range(1, STEPS + 1))


def test_evaluation_does_not_disturb_training(tmp_path):
    def spend_random_numbers(model, _step):
        assert not model.training
        return {"spent": float(torch.rand(3)[0]) + np.random.rand() + random.random()}

    _, plain = run(tmp_path / "a")
    _, watched = run(tmp_path / "b", make_config(eval_interval=2), evaluate=spend_random_numbers)
    assert losses(plain) == losses(watched)
    assert [r["step"] for r in watched.records if "spent" in r] == [2, 4, 6, 8, 10, 12]
    assert_same_run(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("change", [{"lr": 2e-2}, {"steps": 13}, {"seed": 4}])
def test_changed_settings_are_refused(tmp_path, change):
    run(tmp_path)
    ((name, value),) = change.items()
    with pytest.raises(ConfigMismatchError, match=f"{name}: .* there, {value} now"):
        run(tmp_path, make_config(**change))


class FailingLoss(ToyLoss):
    """Gives `value` at its at-th call."""

    def __init__(self, at: int, value: float = math.nan) -> None:
        super().__init__()
        self.calls, self.at, self.value = 0, at, value

    def forward(self, image_features, text_features, logit_scale, output_dict=False):
        outputs = super().forward(image_features, text_features, logit_scale, output_dict)
        self.calls += 1
        if self.calls == self.at:
            return {"toy_loss": outputs["toy_loss"] * self.value}
        return outputs


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_loss_names_the_step_and_leaves_the_last_checkpoint(tmp_path, value):
    with pytest.raises(NonFiniteLossError, match="not finite at step 7 of 12"):
        run(tmp_path, make_config(checkpoint_interval=6), loss=FailingLoss(7, value))
    state = load_checkpoint(tmp_path / "checkpoint.pt")
    assert state["step"] == 6
    assert all(torch.isfinite(t).all() for t in state["state_dict"].values())


def test_logit_scale_is_clamped_from_above_and_below(tmp_path):
    class Push(ToyLoss):
        def __init__(self, sign):
            super().__init__()
            self.sign = sign

        def forward(self, image_features, text_features, logit_scale, output_dict=False):
            return {"toy_loss": self.sign * logit_scale + 0 * image_features.sum()}

    config = make_config(lr=1.0, schedule="constant", warmup_steps=0)
    model, result = run(tmp_path / "up", config, loss=Push(-1))
    assert model.logit_scale.exp().item() == pytest.approx(100.0, rel=1e-6)
    assert max(r["logit_scale"] for r in result.records) <= 100.0 * (1 + 1e-6)
    model, _ = run(tmp_path / "down", config, loss=Push(1))
    assert model.logit_scale.exp().item() == pytest.approx(1.0, rel=1e-6)
    config = make_config(lr=1.0, logit_scale_max=20.0)
    model, _ = run(tmp_path / "lower", config, loss=Push(-1))
    assert model.logit_scale.exp().item() == pytest.approx(20.0, rel=1e-6)


def test_gradient_clipping_bounds_the_update(tmp_path):
    seen = []

    class Spy(ToyLoss):
        def forward(self, image_features, text_features, logit_scale, output_dict=False):
            outputs = super().forward(image_features, text_features, logit_scale, output_dict)
            return {"toy_loss": 1000 * outputs["toy_loss"]}

    def norm_of_gradients(model, _step):
        grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        seen.append(torch.cat(grads).norm().item())
        return {}

    config = make_config(grad_clip_norm=0.5, eval_interval=1)
    _, result = run(tmp_path, config, loss=Spy(), evaluate=norm_of_gradients)
    assert seen == pytest.approx([0.5] * STEPS, rel=1e-3)
    assert all(record["grad_norm"] > 0.5 for record in result.records)


def test_learning_rate_warms_up_and_follows_the_cosine(tmp_path):
    _, result = run(tmp_path)
    expected = [1e-2 * 1 / 2, 1e-2 * 2 / 2]
    expected += [0.5e-2 * (1 + math.cos(math.pi * k / 10)) for k in range(10)]
    assert [r["lr"] for r in result.records] == pytest.approx(expected)


def test_gains_biases_and_scale_are_not_decayed():
    model = ToyClip()
    model.token_embedding.weight.requires_grad_(False)
    decayed, exempt = parameter_groups(model, weight_decay=0.3)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert {names[id(p)] for p in decayed["params"]} == {
        "image_tower.1.weight",
        "image_tower.4.weight",
    }
    assert {names[id(p)] for p in exempt["params"]} == {
        "image_tower.1.bias",
        "image_tower.2.weight",
        "image_tower.2.bias",
        "image_tower.4.bias",
        "positional_embedding",
        "logit_scale",
    }
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.3, 0.0)


def test_equals_a_loop_written_out(tmp_path):
    """Five updates against AdamW, schedule and clamp spelled out in place."""
    config = make_config(steps=5, warmup_steps=0, weight_decay=0.1)
    trained, _ = run(tmp_path, config)
    torch.manual_seed(0)
    model = ToyClip()
    exempt = {"positional_embedding", "logit_scale"}
    groups = [
        {"params": [p], "weight_decay": 0.0 if p.ndim < 2 or n in exempt else 0.1}
        for n, p in model.named_parameters()
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-6)
    batches = toy_batches(8)
    torch.manual_seed(3)
    model.train()
    for step in range(5):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * 0.5 * (1 + math.cos(math.pi * step / 5))
        batch = next(batches)
        image = model.encode_image(batch.images, normalize=True)
        text = model.encode_text(batch.texts, normalize=True)
        logits = model.logit_scale.exp() * image @ text.T
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, torch.arange(8)).backward()
        optimizer.step()
        model.logit_scale.data.clamp_(0, math.log(100))
    for (name, got), want in zip(
        trained.state_dict().items(), model.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(got, want, msg=name)


def test_log_lines_are_json_with_what_is_needed(tmp_path):
    run(tmp_path, make_config(log_interval=4))
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [4, 8, 12]
    assert {"loss", "toy_loss", "lr", "logit_scale", "samples_per_second", "seconds"} <= set(
        records[0]
    )


def test_batches_of_another_size_are_refused(tmp_path):
    batches = toy_batches(4)
    with pytest.raises(ValueError, match=r"batches: got batches of 4, expected .*= 8"):
        finetune(ToyClip(), ToyLoss(), batches, make_config(), out_dir=tmp_path, progress=False)


def test_bf16_runs_under_autocast(tmp_path):
    dtypes = []

    class Spy(ToyLoss):
        def forward(self, image_features, text_features, logit_scale, output_dict=False):
            dtypes.append(
                torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
            )
            return super().forward(image_features, text_features, logit_scale, output_dict)

    _, result = run(tmp_path, make_config(precision="bf16", steps=2), loss=Spy())
    assert dtypes == [torch.bfloat16] * 2
    assert all(math.isfinite(record["loss"]) for record in result.records)
