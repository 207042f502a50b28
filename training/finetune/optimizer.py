"""AdamW for CLIP, and its learning-rate schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from open_clip_train.scheduler import const_lr, cosine_lr
from torch import nn

from .config import FinetuneConfig


def parameter_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Two AdamW groups: the decayed, and gains, biases, logit scale and bias, which are not.

    A parameter of fewer than two dimensions is a gain, a bias or a scale; open_clip models name
    more in no_weight_decay() (the positional embedding). Frozen parameters are left out.
    Raises ValueError if nothing is trainable.
    """
    named_exempt: set[str] = set()
    if callable(getattr(model, "no_weight_decay", None)):
        named_exempt = set(model.no_weight_decay())  # type: ignore[operator]
    decayed: list[nn.Parameter] = []
    exempt: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_exempt = parameter.ndim < 2 or name in named_exempt
        (exempt if is_exempt else decayed).append(parameter)
    if not decayed and not exempt:
        raise ValueError("model: got no trainable parameter, expected at least one")
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": exempt, "weight_decay": 0.0},
    ]


def build_optimizer(model: nn.Module, config: FinetuneConfig) -> torch.optim.AdamW:
    """AdamW over parameter_groups(model), with the configuration's constants."""
    return torch.optim.AdamW(
        parameter_groups(model, weight_decay=config.weight_decay),
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
    )


def build_schedule(
    optimizer: torch.optim.Optimizer, config: FinetuneConfig
) -> Callable[[int], float]:
    """open_clip's schedule: called with the step from 0, it sets and returns the learning rate.

    A pure function of the step, so it has no state to save.
    """
    if config.schedule == "constant":
        return const_lr(optimizer, config.lr, config.warmup_steps, config.steps)
    return cosine_lr(optimizer, config.lr, config.warmup_steps, config.steps)
