"""Models to evaluate: open_clip's by name, checkpoints, Hugging Face's CLIP; and what they are."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slipform_training.train.model import create_model, load_model, select_device

HUGGING_FACE = "hf:"

# Counts up when the same model begins to give other features here, so that caches are not mixed.
_FEATURES = 1


@dataclass(frozen=True)
class TwoTowers:
    """A model in eval mode and what its inputs are made with.

    prepare: PIL image -> pixels [3, H, W]. tokenize: texts -> tokens, with ``.to(device)``.
    images, texts: a batch of either -> features [B, D], not normalised. width: D.
    info: plain values that say which model it is. context: tokens that fit, if known.
    """

    model: nn.Module
    prepare: Callable[[Any], Tensor]
    tokenize: Callable[[list[str]], Any]
    images: Callable[[Any], Tensor]
    texts: Callable[[Any], Tensor]
    width: int
    info: dict[str, Any]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device


def open_model(
    name: str, *, pretrained: str | None = None, device: str = "auto", seed: int = 0
) -> TwoTowers:
    """The model to evaluate.

    Args:
        name: a model of open_clip or a json file with its configuration; a checkpoint of
            ``slipform train`` (a ``.pt`` file), which names its model; or ``hf:`` and a folder or
            name of a CLIP for transformers.
        pretrained: a tag of open_clip or a file with weights; for ``hf:`` none.
        device: "auto", or a torch device.
        seed: of random weights, where neither tag nor file is given.

    Raises:
        ValueError: no such model or device, or weights that cannot be loaded.
        ActivationMismatchError: the weights were trained with another activation.
    """
    place = select_device(device)
    if name.startswith(HUGGING_FACE):
        if pretrained is not None:
            raise ValueError(f"pretrained: got {pretrained!r} beside {name}, expected none")
        from slipform_training.evaluation.hugging_face import open_hugging_face

        return open_hugging_face(name.removeprefix(HUGGING_FACE), device=place)
    torch.manual_seed(seed)
    if Path(name).suffix == ".pt":
        if pretrained is not None:
            raise ValueError(f"pretrained: got {pretrained!r} beside the checkpoint {name}")
        if not Path(name).is_file():
            raise ValueError(f"model: got {name}, which is no file")
        parts, weights = load_model(name), name
    else:
        parts = create_model(name, pretrained=pretrained)
        weights = pretrained or f"random, seed {seed}"
    model: Any = parts.model.eval().to(place)
    tokenizer: Any = parts.tokenizer
    return TwoTowers(
        model=model,
        prepare=parts.prepare,
        tokenize=tokenizer,
        images=model.encode_image,
        texts=model.encode_text,
        width=_width(model, tokenizer),
        info={
            "name": parts.info["model"],
            "weights": weights,
            "activation": parts.info["activation"],
            "architecture": parts.info["architecture"],
            "transform": without_addresses(parts.prepare),
            "tokenizer": f"{type(tokenizer).__name__}, {tokenizer.context_length} tokens",
        },
    )


def model_hash(towers: TwoTowers, *, precision: str) -> str:
    """A hash of all that features depend on: 32 hexadecimal digits.

    Of the weights by name, type and shape, the architecture, activation, image transform,
    tokenizer and precision; not of the name that the model was asked for by, nor of the device.
    """
    made_of = {key: value for key, value in towers.info.items() if key not in ("name", "weights")}
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([_FEATURES, precision, made_of], sort_keys=True).encode())
    for name, value in sorted(towers.model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def without_addresses(value: Any) -> str:
    """The value's repr, the same in every process: functions are shown with their addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


@torch.no_grad()
def _width(model: Any, tokenizer: Callable[[list[str]], Tensor]) -> int:
    device = next(model.parameters()).device
    return int(model.encode_text(tokenizer([""]).to(device)).shape[1])
