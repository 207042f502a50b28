"""The demo's training: one bag-of-words model a seed, and three branches from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slipform_kernels import CementLoss, ClipLoss, NegClipLoss
from slipform_training.data import ShuffledBatches
from slipform_training.evaluation import Evaluation, evaluate_pairs
from slipform_training.finetune import (
    FinetuneConfig,
    FinetuneResult,
    MappedBatches,
    finetune,
    load_checkpoint,
)
from slipform_training.scenes import ScenePair, normalise

from .config import BAG, BRANCHES, LABELS, DemoConfig
from .material import Gather, Material, scene_config
from .model import build_model


@dataclass(frozen=True)
class Trained:
    """A finished stage: the model in eval mode, the run's log, and its scores on the test pairs."""

    model: nn.Module
    run: FinetuneResult
    evaluation: Evaluation
    test_seconds: float


def train_seed(
    config: DemoConfig, material: Material, *, seed: int, out_dir: Path, progress: bool
) -> dict[str, Trained]:
    """Stage 1 and the branches of stage 2 for one seed, under the names of BAG and BRANCHES.

    The branches start from the same weights and see the same batches in the same order. What is
    finished in out_dir is loaded, not repeated; an interrupted run is continued.
    """
    trained = {
        BAG: train_bag(config, material, seed=seed, out_dir=out_dir, progress=progress),
    }
    for name in BRANCHES:
        trained[name] = train_branch(
            config,
            material,
            branch_loss(name, config),
            name=name,
            label=LABELS[name],
            seed=seed,
            start=trained[BAG].run.checkpoint,
            out_dir=out_dir,
            progress=progress,
        )
    return trained


def train_bag(
    config: DemoConfig, material: Material, *, seed: int, out_dir: Path, progress: bool
) -> Trained:
    """Stage 1 for one seed, in out_dir/seedN/bag_of_words."""
    order = ShuffledBatches(config.scenes, config.batch_size, seed=2 * seed)
    return _train(
        config,
        material,
        ClipLoss(),
        MappedBatches(order, material.bag_gather(seed)),
        _settings(config, steps=config.bag_steps, lr=config.bag_lr, seed=seed),
        label=LABELS[BAG],
        out_dir=out_dir / f"seed{seed}" / BAG,
        start=None,
        progress=progress,
    )


def train_branch(
    config: DemoConfig,
    material: Material,
    loss: nn.Module,
    *,
    name: str,
    label: str,
    seed: int,
    start: Path,
    out_dir: Path,
    progress: bool,
    gather: Gather | None = None,
    encoder: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> Trained:
    """A branch of stage 2 for one seed, from the checkpoint `start`, in out_dir/seedN/name.

    gather: makes its batches, by default the captions with their hard captions. encoder: what is
    trained around the model, for objectives with parts of their own, as Macco is.
    """
    order = ShuffledBatches(config.scenes, config.batch_size, seed=2 * seed + 1)
    return _train(
        config,
        material,
        loss,
        MappedBatches(order, gather or material.branch_gather()),
        _settings(config, steps=config.branch_steps, lr=config.branch_lr, seed=seed),
        label=label,
        out_dir=out_dir / f"seed{seed}" / name,
        start=start,
        progress=progress,
        encoder=encoder,
    )


def branch_loss(name: str, config: DemoConfig) -> nn.Module:
    """The loss of a branch; KeyError for an unknown name."""
    return {
        "plain": ClipLoss(),
        "hard_negatives": NegClipLoss(),
        "cement": CementLoss(margin=config.margin),
    }[name]


def evaluate_model(model: nn.Module, material: Material, pairs: Sequence[ScenePair]) -> Evaluation:
    """The model's scores on test pairs; the model must be in eval mode."""

    def encode_images(pictures: Sequence[NDArray[np.uint8]]) -> Tensor:
        pixels = normalise(np.stack(pictures)).contiguous(memory_format=torch.channels_last)
        return model.encode_image(pixels, normalize=True)  # type: ignore[operator]

    def encode_texts(texts: Sequence[str]) -> Tensor:
        return model.encode_text(material.tokenizer(texts), normalize=True)  # type: ignore[operator]

    with torch.no_grad():
        return evaluate_pairs(
            pairs, encode_images, encode_texts, load_image=material.pair_pictures.__getitem__
        )


def accuracies(evaluation: Evaluation) -> dict[str, float]:
    """Accuracy by category, 0 to 1."""
    return {name: score.accuracy for name, score in evaluation.categories.items()}


def _settings(config: DemoConfig, *, steps: int, lr: float, seed: int) -> FinetuneConfig:
    return FinetuneConfig(
        steps=steps,
        batch_size=config.batch_size,
        lr=lr,
        weight_decay=config.weight_decay,
        warmup_steps=min(config.warmup_steps, steps // 2),
        seed=seed,
        eval_interval=config.eval_interval,
        checkpoint_interval=5 * config.eval_interval,
    )


def _train(
    config: DemoConfig,
    material: Material,
    loss: nn.Module,
    batches: MappedBatches,
    settings: FinetuneConfig,
    *,
    label: str,
    out_dir: Path,
    start: Path | None,
    progress: bool,
    encoder: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> Trained:
    seed = settings.seed
    model = build_model(
        config.image_tower,
        vocab_size=material.tokenizer.vocab_size,
        context_length=material.tokenizer.context_length,
        resolution=scene_config(config).resolution,
        seed=seed,
    )
    if start is not None:
        model.load_state_dict(load_checkpoint(start)["state_dict"])
    watched = curve_pairs(material.pairs, config.curve_pairs)

    def evaluate(current: nn.Module, _step: int) -> Mapping[str, Any]:
        return {"accuracy": accuracies(evaluate_model(current, material, watched))}

    run = finetune(
        encoder(model),
        loss,
        batches,
        settings,
        out_dir=out_dir,
        label=label if config.seeds == 1 else f"seed {seed}, {label}",
        evaluate=evaluate,
        progress=progress,
    )
    model.eval()
    begin = time.perf_counter()
    evaluation = evaluate_model(model, material, material.pairs)
    return Trained(model, run, evaluation, time.perf_counter() - begin)


def curve_pairs(pairs: Sequence[ScenePair], per_category: int) -> list[ScenePair]:
    """The first `per_category` pairs of each category: the curves are drawn from these."""
    taken: dict[str, int] = {}
    chosen = []
    for pair in pairs:
        taken[pair.category] = taken.get(pair.category, 0) + 1
        if taken[pair.category] <= per_category:
            chosen.append(pair)
    return chosen
