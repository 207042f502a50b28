"""The demo's checkpoints and scenes as subjects of an analysis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from slipform_training.demo.config import LABELS, MINED_FILE, SETTINGS_FILE, DemoConfig
from slipform_training.demo.material import SCENES, Material, prepare
from slipform_training.demo.model import build_model
from slipform_training.finetune import Batch, load_checkpoint

from .pairs import HardPairs, encode_pairs

_CHUNK = 256


def read_demo(
    folder: Path,
    *,
    seed: int,
    samples: int,
    say: Callable[[str], None],
    progress: Callable[[str, int], None] = lambda label, samples: None,
) -> tuple[DemoConfig, Iterator[HardPairs], dict[str, Path]]:
    """The demo's settings, its trained models one after the other, and their logs by label.

    samples: how many of the training scenes, at most. progress: called with a model's label and
    how many more scenes it has encoded.

    Raises FileNotFoundError, naming it, if the folder lacks the demo's settings, its mined hard
    captions or the seed's models.
    """
    for name in (SETTINGS_FILE, MINED_FILE, f"seed{seed}"):
        if not (folder / name).exists():
            raise FileNotFoundError(
                2, "not a finished demo's folder: no such file", str(folder / name)
            )
    stored = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
    del stored["slipform-kernels"]
    config = DemoConfig(**{**stored, "share_batches": tuple(stored["share_batches"])})
    runs = {
        label: folder / f"seed{seed}" / name
        for name, label in LABELS.items()
        if (folder / f"seed{seed}" / name / "checkpoint.pt").exists()
    }
    if not runs:
        raise FileNotFoundError(2, "no trained models", str(folder / f"seed{seed}"))
    material = prepare(config, folder, say=say)
    count = min(samples, config.scenes)
    subjects = (
        _subject(config, material, label, run, count, progress) for label, run in runs.items()
    )
    return config, subjects, {label: run / "log.jsonl" for label, run in runs.items()}


def _subject(
    config: DemoConfig,
    material: Material,
    label: str,
    run: Path,
    count: int,
    progress: Callable[[str, int], None],
) -> HardPairs:
    model = build_model(
        config.image_tower,
        vocab_size=material.tokenizer.vocab_size,
        context_length=material.tokenizer.context_length,
        resolution=SCENES.resolution,
        seed=0,
    )
    model.load_state_dict(load_checkpoint(run / "checkpoint.pt")["state_dict"])
    return encode_pairs(
        label,
        model,
        _batches(material, count),
        rated=True,
        progress=lambda scenes: progress(label, scenes),
    )


def _batches(material: Material, count: int) -> Iterator[Batch]:
    gather = material.branch_gather()
    for at in range(0, count, _CHUNK):
        yield gather(np.arange(at, min(at + _CHUNK, count)), 0)
