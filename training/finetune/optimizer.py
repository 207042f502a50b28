"""AdamW for CLIP, and its learning-rate schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from open_clip_train.scheduler import const_lr, cosine_lr
from torch import nn

from .config import FinetuneConfig
from .objective import Encoder


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
    """AdamW over parameter_groups(model), with the configuration's constants.

    What an Encoder has added to its model has groups, learning rate and weight decay of its own.
    """
    encoder = Encoder.of(model)
    groups = parameter_groups(encoder.model, weight_decay=config.weight_decay)
    if encoder.added is not None:
        own = parameter_groups(encoder.added, weight_decay=encoder.added.weight_decay)
        groups += [{**group, "lr": encoder.added.lr} for group in own]
    return torch.optim.AdamW(
        groups,
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
    )


def build_schedule(
    optimizer: torch.optim.Optimizer, config: FinetuneConfig
) -> Callable[[int], float]:
    """open_clip's schedule: called with the step from 0, it sets and returns the learning rate.

    Groups that `optimizer` was built with another learning rate for keep their ratio to config.lr.
    A pure function of the step, so it has no state to save.
    """
    ratios = [group["lr"] / config.lr for group in optimizer.param_groups]
    schedule = {"constant": const_lr, "cosine": cosine_lr}[config.schedule]
    common = schedule(optimizer, config.lr, config.warmup_steps, config.steps)

    def set_lr(step: int) -> float:
        lr: float = common(step)
        for group, ratio in zip(optimizer.param_groups, ratios, strict=True):
            group["lr"] = ratio * lr
        return lr

    return set_lr
