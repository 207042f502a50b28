"""The settings of a fine-tuning run, and what may change when it is resumed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# These change what is written and shown, not what is learnt, so a resumed run may change them.
_FREE_FIELDS = frozenset({"log_interval", "checkpoint_interval", "eval_interval"})
PRECISIONS = ("fp32", "bf16", "fp16")


class ConfigMismatchError(ValueError):
    """A run is resumed with settings other than those it was started with."""


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """Settings of :func:`slipform_training.finetune.finetune`.

    steps: number of updates. batch_size: samples of one contrastive batch (of this process);
    accumulation: such batches an update, whose gradients are averaged. chunk_size: samples that
    are encoded at a time, by gradient caching, None for the whole batch. lr: peak learning rate.
    weight_decay, beta1, beta2, eps: AdamW's; gains, biases and the logit scale are not decayed.
    warmup_steps: linear warm-up from 0; schedule: "cosine" (to 0 at the last step) or "constant".
    logit_scale_max: upper clamp of exp(logit_scale), as in CLIP. grad_clip_norm: largest norm of
    the whole gradient, None for no clipping. precision: "fp32", "bf16" or "fp16" (autocast; fp16
    with a GradScaler). seed: seeds torch, numpy and random at step 0, plus the rank. The intervals
    count updates; checkpoint_interval and eval_interval 0 mean at the end only.
    The defaults are CLIP's own where CLIP states one (arXiv 2103.00020, table 20).

    Raises ValueError for a setting out of range; the message has its name, value and range.
    """

    steps: int
    batch_size: int
    lr: float
    accumulation: int = 1
    chunk_size: int | None = None
    weight_decay: float = 0.2
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-6
    warmup_steps: int = 0
    schedule: str = "cosine"
    logit_scale_max: float = 100.0
    grad_clip_norm: float | None = None
    precision: str = "fp32"
    seed: int = 0
    log_interval: int = 10
    checkpoint_interval: int = 0
    eval_interval: int = 0

    def __post_init__(self) -> None:
        clip = self.grad_clip_norm
        rules = (
            ("steps", self.steps >= 1, "at least 1"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("accumulation", self.accumulation >= 1, "at least 1"),
            ("chunk_size", self.chunk_size is None or self.chunk_size >= 1, "None or at least 1"),
            ("lr", self.lr > 0 and math.isfinite(self.lr), "a finite number above 0"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "finite and at least 0"),
            ("beta1", 0 <= self.beta1 < 1, "in [0, 1)"),
            ("beta2", 0 <= self.beta2 < 1, "in [0, 1)"),
            ("eps", 0 < self.eps < math.inf, "a finite number above 0"),
            ("warmup_steps", 0 <= self.warmup_steps <= self.steps, f"in [0, steps={self.steps}]"),
            ("schedule", self.schedule in ("cosine", "constant"), "'cosine' or 'constant'"),
            ("logit_scale_max", 1 <= self.logit_scale_max < math.inf, "finite and at least 1"),
            ("grad_clip_norm", clip is None or 0 < clip < math.inf, "None or above 0"),
            ("precision", self.precision in PRECISIONS, "'fp32', 'bf16' or 'fp16'"),
            ("seed", 0 <= self.seed < 2**32, "in [0, 2**32)"),
            ("log_interval", self.log_interval >= 1, "at least 1"),
            ("checkpoint_interval", self.checkpoint_interval >= 0, "at least 0"),
            ("eval_interval", self.eval_interval >= 0, "at least 0"),
        )
        for name, valid, expected in rules:
            if not valid:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected {expected}")

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, for a checkpoint or a json file."""
        return asdict(self)

    def require_same(self, stored: Mapping[str, Any], *, where: str) -> None:
        """Raise ConfigMismatchError, naming the settings, if `stored` would train otherwise."""
        require_same_values(
            {name: value for name, value in stored.items() if name not in _FREE_FIELDS},
            {name: value for name, value in asdict(self).items() if name not in _FREE_FIELDS},
            where=where,
        )


def require_same_values(
    stored: Mapping[str, Any], present: Mapping[str, Any], *, where: str
) -> None:
    """Raise ConfigMismatchError, naming every value that differs, unless both are the same."""
    changed = [
        f"{name}: {stored.get(name)!r} there, {present.get(name)!r} now"
        for name in sorted({*stored, *present})
        if stored.get(name) != present.get(name)
    ]
    if changed:
        raise ConfigMismatchError(f"{where} was written with other settings: {'; '.join(changed)}")
