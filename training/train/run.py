"""A training run from its settings: data, model, loss, the loop, what is left at the end."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from open_clip_train.distributed import init_distributed_device_so
from torch import nn

from slipform_training.finetune import FinetuneConfig, FinetuneResult, finetune
from slipform_training.finetune.checkpoint import seed_everything
from slipform_training.finetune.ranks import of_all_ranks
from slipform_training.losses import configured_loss
from slipform_training.macco.crop import RecordedCrop
from slipform_training.macco.masks import ConceptMasks
from slipform_training.macco.patch_mask import Grid
from slipform_training.macco.word_mask import WordFinder

from .batches import ImageTextBatches, SkipLog
from .config import HARD_LOSSES, MACCO_SETTINGS, TrainConfig
from .material import Material
from .model import ModelParts, create_model, save_weights, select_device
from .samples import Samples, read_samples
from .settings_file import RESOLVED, write_settings
from .validation import Validation

WEIGHTS = "model.pt"
# Everything that a run writes into its folder, apart from skipped.rankN.jsonl.
_OWN_FILES = (RESOLVED, WEIGHTS, "checkpoint.pt", "log.jsonl", "skipped.jsonl", "tensorboard")

# Margins where none is asked for.
_MARGINS = {"cement": 0.05, "triplet": 0.0}

# Settings that change what is learnt and are no field of FinetuneConfig: a resumed run must have
# the same. The data file counts by its contents.
_LEARNT = (
    "objective",
    "macco_random_masks",
    "macco_random_probability",
    "loss",
    "margin",
    "margin_direction",
    "margin_unit",
    "margin_static",
    "exchange",
    "hard_captions",
    "hard_images",
    "augment",
    "on_error",
)


def run_training(config: TrainConfig) -> FinetuneResult:
    """Train as `config` says, and write model.pt for open_clip beside the run's other files.

    Under torchrun every process calls this. Raises ValueError naming the setting, and what
    `finetune` raises.
    """
    out = Path(config.out)
    _check_folder(out, config)
    with _process_group(select_device(config.device)) as (device, rank, ranks):
        samples = read_samples(config)
        seed_everything(config.seed)
        parts = create_model(
            config.model, pretrained=config.pretrained, sigmoid=config.loss == "siglip"
        )
        batches = _batches(config, parts, samples, rank, ranks)
        config, settings = _resolved(config, batches, device)
        evaluate = None if config.val_data is None else Validation(config, parts)
        model, loss = _objective(config, parts.model, rank, ranks)

        def begin() -> None:
            if rank == 0:
                write_settings(out / RESOLVED, config)
                _say_start(config, parts, samples, ranks)
                if evaluate is not None:
                    print(f"validation: {config.val_data}, {len(evaluate)} samples")

        result = finetune(
            model,
            loss,
            batches,
            settings,
            out_dir=out,
            device=device,
            evaluate=evaluate,
            progress=config.progress,
            resume=config.resume,
            tensorboard=config.tensorboard,
            info={**parts.info, **_learnt(config, samples)},
            on_start=begin,
        )
        reports = of_all_ranks(batches.report())
        if rank == 0:
            save_weights(out / WEIGHTS, parts.model, parts.info)
            _say_end(out, result, reports)
    return result


def _check_folder(out: Path, config: TrainConfig) -> None:
    """Raise ValueError unless `out` is new, empty, or an earlier run's, and no input lies in the
    way of what is written."""
    inputs = [config.data, config.val_data, config.pretrained, config.model]
    for name in _OWN_FILES:
        for path in inputs:
            if path and (out / name).exists() and (out / name).resolve() == Path(path).resolve():
                raise ValueError(f"out: got {out}, where {path} would be written over")
    if out.exists() and not out.is_dir():
        raise ValueError(f"out: got {out}, which is a file, expected a folder")
    if not (out / RESOLVED).exists() and out.exists():
        foreign = [path.name for path in out.iterdir() if path.suffix not in (".yaml", ".yml")]
        if foreign:
            raise ValueError(
                f"out: got {out}, which holds something other than a training run "
                f"({sorted(foreign)[0]}), expected a folder that is new, empty or an earlier run's"
            )


@contextlib.contextmanager
def _process_group(device: str) -> Iterator[tuple[torch.device, int, int]]:
    """Join the other processes, if torchrun or Slurm started several: device, rank, ranks."""
    began = not dist.is_initialized()
    if began:
        # The CPU part carries the small messages in which ranks agree, without the GPU.
        backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else None
        joined = init_distributed_device_so(device, dist_backend=backend)
        place = torch.device(joined["device"]), joined["global_rank"], joined["world_size"]
    else:
        place = torch.device(device), dist.get_rank(), dist.get_world_size()
    try:
        yield place
    finally:
        if began and dist.is_initialized():
            dist.destroy_process_group()


def _objective(
    config: TrainConfig, clip: nn.Module, rank: int, ranks: int
) -> tuple[nn.Module, nn.Module]:
    """What is trained, and with which loss: the model itself, or inside what an objective adds."""
    loss = configured_loss(config, rank=rank, ranks=ranks)
    if config.objective == "contrastive":
        return clip, loss
    from slipform_training.macco import Macco, MaccoLoss

    settings = config.macco()
    try:
        return Macco(clip, settings), MaccoLoss(loss, settings)
    except TypeError as error:
        raise ValueError(f"model: {config.model} does not suit the objective: {error}") from error


def _batches(
    config: TrainConfig, parts: ModelParts, samples: Samples, rank: int, ranks: int
) -> ImageTextBatches:
    name = "skipped.jsonl" if rank == 0 else f"skipped.rank{rank}.jsonl"
    return ImageTextBatches(
        Material(
            samples,
            config,
            transform=parts.augment if config.augment else parts.prepare,
            tokenizer=parts.tokenizer,
            masks=_masks(config, parts) if config.objective == "macco" else None,
        ),
        batch_size=config.batch_size,
        seed=config.seed,
        rank=rank,
        ranks=ranks,
        skip=SkipLog(Path(config.out) / name) if config.on_error == "skip" else None,
        workers=config.workers,
    )


def _masks(config: TrainConfig, parts: ModelParts) -> ConceptMasks:
    return ConceptMasks(
        RecordedCrop(parts.augment),
        WordFinder(parts.tokenizer),
        Grid.of(parts.model.visual),
        random_masks=config.macco_random_masks,
        random_probability=config.macco_random_probability,
    )


def _resolved(
    config: TrainConfig, batches: ImageTextBatches, device: torch.device
) -> tuple[TrainConfig, FinetuneConfig]:
    """The settings with everything left open filled in, and the loop's part of them."""
    steps = config.steps
    if steps is None:
        updates = (config.epochs or 1) * batches.batches_per_epoch / config.accumulation
        steps = max(1, int(updates))
    config = dataclasses.replace(
        config,
        steps=steps,
        epochs=None,
        warmup_steps=min(config.warmup_steps, steps),
        margin=_MARGINS.get(config.loss) if config.margin is None else config.margin,
        device=device.type if config.device == "auto" else config.device,
    )
    shared = {one.name for one in dataclasses.fields(FinetuneConfig)}
    values = {name: value for name, value in config.to_dict().items() if name in shared}
    return config, FinetuneConfig(**values, eval_interval=config.val_interval)


def _learnt(config: TrainConfig, samples: Samples) -> dict[str, Any]:
    # Checkpoints of the plain objective do not name it: there are some from before others.
    of_objective = () if config.objective == "contrastive" else ("objective", *MACCO_SETTINGS)
    names = (*_LEARNT, *of_objective)
    return {"data": samples.digest(), **{name: getattr(config, name) for name in names}}


def _say_start(config: TrainConfig, parts: ModelParts, samples: Samples, ranks: int) -> None:
    weights = config.pretrained or "random weights"
    print(f"model: {parts.info['model']}, {parts.info['activation']}, {weights}")
    print(f"data: {config.data}, {len(samples)} samples", end="")
    if config.loss in HARD_LOSSES:
        mined = sum(bool(samples[i].hard_captions) for i in range(len(samples)))
        print(f", {mined} with hard captions", end="")
    if config.hard_images:
        pictured = sum(bool(samples[i].hard_images) for i in range(len(samples)))
        print(f", {pictured} with hard images", end="")
    print()
    if samples.left_out:
        kinds = Counter(error.kind for error in samples.left_out)
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        print(f"rows left out of it: {counts}; the first: {samples.left_out[0]}")
    total = config.batch_size * config.accumulation * ranks
    print(
        f"loss: {config.loss}{' with MACCO' if config.objective == 'macco' else ''}; "
        f"{config.steps} updates of {total} samples, "
        f"{config.warmup_steps} of them warm-up"
    )


def _say_end(out: Path, result: FinetuneResult, reports: list[str]) -> None:
    for rank, report in enumerate(reports):
        print(report if len(reports) == 1 else f"rank {rank}: {report}")
    if result.events_missing:
        print(f"TensorBoard is not installed: {result.events_missing} records are in the log only")
    print(f"weights for open_clip: {out / WEIGHTS}")
