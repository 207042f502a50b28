"""One update: accumulation, gradient caching, fp16, ranks and shares against plain definitions."""

from __future__ import annotations

import copy
import inspect
import math
import signal

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

pytest.importorskip("open_clip_train")

from slipform_kernels import CementLoss, ClipLoss, NegClipLoss, SigLipLoss, TripletClipLoss
from slipform_training.data import ShuffledBatches
from slipform_training.finetune import (
    Batch,
    ConfigMismatchError,
    FinetuneConfig,
    MappedBatches,
    TrainingInterrupted,
    finetune,
    load_checkpoint,
    measured_shares,
)
from support.ranks import run_ranks, succeeded

SAMPLES, K = 24, 2


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


class Towers(nn.Module):
    """Two linear encoders with the interface of an open_clip CLIP."""

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image = nn.Linear(12, 8)
        self.embedding = nn.Embedding(50, 8)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(10.0)))
        self.logit_bias = nn.Parameter(torch.tensor(-3.0)) if bias else None

    def encode_image(self, images, normalize=False):
        return torch.nn.functional.normalize(self.image(images.flatten(1)), dim=-1)

    def encode_text(self, texts, normalize=False):
        return torch.nn.functional.normalize(self.embedding(texts).sum(1), dim=-1)


def gather(indices, _step) -> Batch:
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(SAMPLES, 3, 2, 2, generator=generator)
    texts = torch.randint(0, 50, (SAMPLES, 5), generator=generator)
    hard = torch.randint(0, 50, (SAMPLES, K, 5), generator=generator)
    rating = torch.empty(SAMPLES, K).uniform_(1, 5, generator=generator)
    mask = torch.rand(SAMPLES, K, generator=generator) < 0.7
    return Batch(
        images=images[indices],
        texts=texts[indices],
        hard_texts=hard[indices],
        concreteness=rating[indices],
        hard_mask=mask[indices],
    )


def train(out_dir, *, loss=None, order=None, model=None, tensorboard=False, **changes):
    settings = {"steps": 3, "batch_size": 8, "lr": 1e-2, "log_interval": 1, "seed": 3}
    config = FinetuneConfig(**{**settings, **changes})
    model = model or Towers()
    order = order or ShuffledBatches(SAMPLES, config.batch_size, seed=7)
    result = finetune(
        model,
        loss or ClipLoss(),
        MappedBatches(order, gather),
        config,
        out_dir=out_dir,
        progress=False,
        tensorboard=tensorboard,
    )
    return model, result


def weights(model) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in model.parameters()])


def assert_trained_alike(left, right, bar=1e-4):
    """Equal but for rounding, measured against how far training moved the weights."""
    moved = (weights(left) - weights(Towers())).norm()
    assert moved > 0.01
    assert (weights(left) - weights(right)).norm() / moved < bar


def test_accumulation_averages_the_gradients_of_batches(tmp_path):
    trained, _ = train(tmp_path, accumulation=3, steps=2, batch_size=4, schedule="constant")
    model = Towers()
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.2},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.98), eps=1e-6)
    order = ShuffledBatches(SAMPLES, 4, seed=7)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(3):
            batch = gather(next(order), 0)
            image, text = model.encode_image(batch.images), model.encode_text(batch.texts)
            logits = model.logit_scale.exp() * image @ text.T
            target = torch.arange(4)
            both = cross_entropy(logits, target) + cross_entropy(logits.T, target)
            (both / 2 / 3).backward()
        optimizer.step()
    assert_trained_alike(trained, model)


@pytest.mark.parametrize("loss", [ClipLoss(), NegClipLoss(), CementLoss(margin=0.2)])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_gradient_caching_trains_the_same(tmp_path, loss, accumulation):
    whole, one = train(tmp_path / "a", loss=loss, accumulation=accumulation)
    cached, other = train(tmp_path / "b", loss=loss, accumulation=accumulation, chunk_size=3)
    assert_trained_alike(whole, cached)
    for left, right in zip(one.records, other.records, strict=True):
        assert left.keys() == right.keys()
        for name in set(left) - {"seconds", "samples_per_second"}:
            assert left[name] == pytest.approx(right[name], rel=1e-4), name


def test_the_sigmoid_loss_is_given_the_models_bias(tmp_path):
    whole, _ = train(tmp_path / "a", loss=SigLipLoss(), model=Towers(bias=True))
    cached, _ = train(tmp_path / "b", loss=SigLipLoss(), model=Towers(bias=True), chunk_size=3)
    assert whole.logit_bias.item() != -3.0
    torch.testing.assert_close(weights(whole), weights(cached), rtol=1e-4, atol=1e-5)


def test_a_loss_with_hard_images_is_given_one_hard_caption(tmp_path):
    def with_hard_images(indices, step):
        batch = gather(indices, step)
        return Batch(
            images=batch.images,
            texts=batch.texts,
            hard_texts=batch.hard_texts[:, :1],
            hard_images=batch.images.flip(0),
        )

    config = FinetuneConfig(steps=1, batch_size=8, lr=1e-2, log_interval=1)
    batches = MappedBatches(ShuffledBatches(SAMPLES, 8, seed=7), with_hard_images)
    model = Towers()
    result = finetune(model, TripletClipLoss(), batches, config, out_dir=tmp_path, progress=False)
    batch = with_hard_images(next(ShuffledBatches(SAMPLES, 8, seed=7)), 0)
    start = Towers()
    image, hard_image = start.encode_image(batch.images), start.encode_image(batch.hard_images)
    text, hard_text = start.encode_text(batch.texts), start.encode_text(batch.hard_texts[:, 0])
    want, target = 0.0, torch.arange(8)
    for rows, cols, hard in ((image, text, hard_text), (hard_image, hard_text, text)):
        logits = 10.0 * rows @ torch.cat([cols, hard]).T
        want += (cross_entropy(logits, target) + cross_entropy(logits[:, :8].T, target)) / 2
    assert result.records[0]["loss"] == pytest.approx(want.item(), rel=1e-5)


def test_fp16_leaves_out_updates_that_overflow_and_lowers_its_scale(tmp_path):
    """The scaler starts at 65,536, where these gradients overflow in fp16 once or more."""

    class Steep(ClipLoss):
        def forward(self, *args, **kwargs):
            outputs = super().forward(*args, **kwargs)
            return {name: 1e36 * value for name, value in outputs.items()}

    model, result = train(tmp_path / "a", precision="fp16", loss=Steep(), steps=6)
    left_out = [record["left_out"] for record in result.records]
    assert left_out[0] == 1.0
    scales = [record["gradient_scale"] for record in result.records]
    assert scales[0] == 65536.0
    assert scales[1] == 32768.0
    assert torch.isfinite(weights(model)).all()
    stored = load_checkpoint(tmp_path / "a/checkpoint.pt")["scaler"]
    assert stored["scale"] == scales[-1] * (0.5 if left_out[-1] else 1.0)


def test_fp16_trains_as_fp32_does_once_its_scale_fits(tmp_path):
    half, result = train(tmp_path / "a", precision="fp16", steps=6, schedule="constant")
    left_out = [record["left_out"] for record in result.records]
    first = left_out.index(0.0)
    assert not any(left_out[first:])
    order = ShuffledBatches(SAMPLES, 8, seed=7)
    order.step = first
    exact, _ = train(tmp_path / "b", order=order, steps=6 - first, schedule="constant")
    assert_trained_alike(half, exact, bar=0.05)


def test_all_of_it_together_resumes_to_the_same_bits(tmp_path):
    class Stopping(CementLoss):
        calls = 0

        def forward(self, *args, **kwargs):
            self.calls += 1
            if self.calls == 9:
                raise OSError("lost")
            return super().forward(*args, **kwargs)

    Stopping.forward.__signature__ = inspect.signature(CementLoss.forward)
    changes = {"precision": "fp16", "accumulation": 2, "chunk_size": 3, "grad_clip_norm": 0.5}
    changes.update(steps=6, checkpoint_interval=2)
    undisturbed, _ = train(tmp_path / "a", loss=CementLoss(), **changes)
    with pytest.raises(OSError, match="lost"):
        train(tmp_path / "b", loss=Stopping(), **changes)
    assert load_checkpoint(tmp_path / "b/checkpoint.pt")["step"] == 4
    resumed, _ = train(tmp_path / "b", loss=CementLoss(), **changes)
    assert torch.equal(weights(undisturbed), weights(resumed))


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_shares_are_those_of_the_softmax(margin):
    model, batch = Towers().requires_grad_(False), gather(torch.arange(8), 0)
    image, text = model.encode_image(batch.images), model.encode_text(batch.texts)
    hard = normalize(torch.stack([model.encode_text(one) for one in batch.hard_texts]), dim=-1)
    features = {
        "image_features": image,
        "text_features": text,
        "logit_scale": torch.tensor(10.0),
        "hard_text_features": hard,
        "hard_mask": batch.hard_mask,
        "concreteness": batch.concreteness,
    }
    pulls, hards = [], []
    for i in range(8):
        own = [k for k in range(K) if batch.hard_mask[i, k]]
        if not own:
            continue
        weight = {("text", j): math.exp(10 * float(image[i] @ text[j])) for j in range(8)}
        for j in range(8):
            for k in range(K):
                if batch.hard_mask[j, k]:
                    extra = margin * (float(batch.concreteness[j, k]) - 1) / 4 if i == j else 0.0
                    weight["hard", j, k] = math.exp(10 * (float(image[i] @ hard[j, k]) + extra))
        total = sum(weight.values())
        pulls.append(1 - weight["text", i] / total)
        hards.append(sum(weight["hard", i, k] for k in own) / total)
    found = measured_shares(CementLoss(margin=margin), features)
    assert found["share_pull"] == pytest.approx(sum(pulls) / len(pulls), rel=1e-4)
    assert found["share_hard"] == pytest.approx(sum(hards) / sum(pulls), rel=1e-4)
    assert found["share_easy"] == pytest.approx(1 - sum(hards) / sum(pulls), rel=1e-4)


def test_shares_with_hard_images_have_both_kinds_of_anchors():
    """Images whose twin is there, and the hard images, over all captions and hard captions."""
    torch.manual_seed(3)
    image, text, hard_image, hard_text = normalize(torch.randn(4, 5, 6, dtype=torch.float64), dim=2)
    mask = torch.tensor([True, False, True, True, False])
    features = {
        "image_features": image.float(),
        "text_features": text.float(),
        "logit_scale": torch.tensor(10.0),
        "hard_text_features": hard_text.float()[:, None],
        "hard_image_features": hard_image.float(),
        "hard_mask": mask[:, None],
        "concreteness": torch.full((5, 1), 5.0),
    }
    cols = {("text", j): text[j] for j in range(5)}
    cols |= {("hard", j): hard_text[j] for j in range(5) if mask[j]}
    pulls, hards = [], []
    for i in range(5):
        for own, twin, anchor in (("text", "hard", image[i]), ("hard", "text", hard_image[i])):
            if not mask[i]:
                continue
            weight = {
                (kind, j): math.exp(10 * (float(anchor @ col) + 0.3 * ((kind, j) == (twin, i))))
                for (kind, j), col in cols.items()
            }
            pulls.append(1 - weight[own, i] / sum(weight.values()))
            hards.append(weight[twin, i] / sum(weight.values()))
    found = measured_shares(CementLoss(margin=0.3, layout="paired"), features)
    assert found["share_pull"] == pytest.approx(sum(pulls) / len(pulls), rel=1e-4)
    assert found["share_hard"] == pytest.approx(sum(hards) / sum(pulls), rel=1e-4)


def test_tensorboard_has_the_log_where_it_is_installed(tmp_path, monkeypatch):
    import sys
    import types

    written, closed = [], []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            assert (folder, purge_step) == (str(tmp_path / "a/tensorboard"), 1)

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def close(self):
            closed.append(True)

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    _, result = train(tmp_path / "a", tensorboard=True)
    for record in result.records:
        assert ("loss", record["loss"], record["step"]) in written
    assert closed == [True]
    assert result.events_missing == 0
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    _, result = train(tmp_path / "b", tensorboard=True)
    assert result.events_missing == 3


class Half:
    """What one of two ranks takes of a stream of batches."""

    def __init__(self, rank: int) -> None:
        self.whole, self.rank, self.batch_size = ShuffledBatches(SAMPLES, 8, seed=7), rank, 4

    @property
    def step(self):
        return self.whole.step

    def __next__(self):
        return next(self.whole)[self.rank :: 2]

    def state_dict(self):
        return {**self.whole.state_dict(), "rank": self.rank}

    def load_state_dict(self, state):
        assert state["rank"] == self.rank
        self.whole.load_state_dict(state)


def on_a_rank(out_dir, changes, interrupt_at=None):
    import torch.distributed as dist

    rank = dist.get_rank()
    loss = CementLoss(margin=0.2)
    if interrupt_at is not None and rank == 1:
        original = loss.forward

        def forward(*args, **kwargs):
            loss.calls = getattr(loss, "calls", 0) + 1
            if loss.calls == interrupt_at:
                signal.raise_signal(signal.SIGTERM)
            return original(*args, **kwargs)

        forward.__signature__ = inspect.signature(original)
        loss.forward = forward
    try:
        model, result = train(out_dir, loss=loss, order=Half(rank), **changes)
    except TrainingInterrupted as stopped:
        return stopped.step
    return weights(model), copy.deepcopy(result.records)


@pytest.mark.parametrize("changes", [{}, {"chunk_size": 3}, {"accumulation": 2}])
def test_two_ranks_train_as_one_process_does(tmp_path, changes):
    settings = {"batch_size": 4, "steps": 4, **changes}
    (first, records), (second, none) = succeeded(
        run_ranks(2, on_a_rank, tmp_path / "two", settings)
    )
    assert torch.equal(first, second)
    assert none == []
    alone, result = train(
        tmp_path / "one", loss=CementLoss(margin=0.2), **{**settings, "batch_size": 8}
    )
    moved = (weights(alone) - weights(Towers())).norm()
    assert (weights(alone) - first).norm() / moved < 1e-3
    for name in ("loss", "share_hard", "share_pull"):
        for left, right in zip(records, result.records, strict=True):
            assert left[name] == pytest.approx(right[name], rel=1e-3), name


def test_ranks_stop_together_and_resume_to_the_same_bits(tmp_path):
    settings = {"batch_size": 4, "steps": 5}
    (undisturbed, _), _ = succeeded(run_ranks(2, on_a_rank, tmp_path / "a", settings))
    assert succeeded(run_ranks(2, on_a_rank, tmp_path / "b", settings, 2)) == [2, 2]
    (resumed, _), (other, _) = succeeded(run_ranks(2, on_a_rank, tmp_path / "b", settings))
    assert torch.equal(undisturbed, resumed)
    assert torch.equal(other, resumed)
    with pytest.raises(ConfigMismatchError, match="ranks: 2 there, 1 now"):
        train(tmp_path / "b", loss=CementLoss(margin=0.2), **settings)
