"""Loss and retrieval on samples set apart, while training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from slipform_training.data import epoch_order, spaced
from slipform_training.finetune import Batch
from slipform_training.finetune.objective import Encoder, loss_inputs, terms_of
from slipform_training.finetune.update import autocast
from slipform_training.losses import configured_loss

from .batches import as_it_is
from .config import TrainConfig
from .material import Group, Loaded, Material
from .model import ModelParts
from .samples import read_samples

_SHARED = ("logit_scale", "logit_bias")
_ROWS = 1024  # of the similarity matrix at a time


class Validation:
    """Measures a model, as finetune's `evaluate`: the same samples and captions every time.

    The samples are config.val_samples of config.val_data, drawn by the seed. The loss is that of
    training, by this process alone, as the mean over batches of config.batch_size.

    Raises ValueError as read_samples does.
    """

    def __init__(self, config: TrainConfig, parts: ModelParts) -> None:
        assert config.val_data is not None
        self._config = dataclasses.replace(
            config,
            data=config.val_data,
            images=config.images if config.val_images is None else config.val_images,
            exchange="none",
        )
        samples = read_samples(self._config)
        self._material = Material(
            samples, self._config, transform=parts.prepare, tokenizer=parts.tokenizer
        )
        order = epoch_order(len(samples), seed=config.seed, epoch=0)
        order = spaced(order, samples.groups, distance=config.batch_size)
        self._numbers = order[: config.val_samples].tolist()
        self._left_out = len(samples.left_out)
        self._loss = configured_loss(self._config, rank=0, ranks=1)

    def __len__(self) -> int:
        return len(self._numbers)

    def __call__(self, model: nn.Module, step: int) -> Mapping[str, Any]:
        """val_loss, val_image_to_text_r1 and _r5, val_text_to_image_r1 and _r5 (0 to 1), and the
        numbers val_samples and val_skipped.

        Raises SampleError for a sample that cannot be loaded, unless they are to be skipped, and
        ValueError where none can.
        """
        device = next(model.parameters()).device
        parts: list[dict[str, Tensor]] = []
        skipped = self._left_out
        with autocast(device, self._config.precision):
            for loaded in self._loader():
                if loaded.failures and self._config.on_error == "raise":
                    raise loaded.failures[0][1]
                skipped += len(loaded.failures)
                if loaded.places:
                    parts.append(self._encoded(model, loaded, device))
            if not parts:
                raise ValueError(f"val_data: got no usable sample in {self._config.data}")
            features = {
                name: parts[0][name]
                if name in _SHARED
                else torch.cat([part[name] for part in parts])
                for name in parts[0]
            }
            groups = features.pop("group")
            loss = self._mean_loss(features)
        found = recalls(features["image_features"], features["text_features"], groups)
        return {
            "val_loss": loss,
            **{f"val_{name}": value for name, value in found.items()},
            "val_samples": len(groups),
            "val_skipped": skipped,
        }

    def _loader(self) -> DataLoader[Loaded]:
        size = self._config.chunk_size or self._config.batch_size
        places = range(0, len(self._numbers), size)
        return DataLoader(
            self._material,
            batch_size=None,
            sampler=[Group(0, place, self._numbers[place : place + size]) for place in places],
            num_workers=self._config.workers,
            collate_fn=as_it_is,
            generator=torch.Generator(),
        )

    def _encoded(self, model: nn.Module, loaded: Loaded, device: torch.device) -> dict[str, Tensor]:
        """What the loss takes of a chunk of samples, and their groups."""
        fields = {one.name for one in dataclasses.fields(Batch)}
        tensors = {name: value for name, value in loaded.tensors.items() if name in fields}
        towers, others = loss_inputs(self._loss, Batch(**tensors).to(device))
        return {**Encoder(model)(**towers), **others, "group": loaded.tensors["group"].to(device)}

    def _mean_loss(self, features: dict[str, Tensor]) -> float:
        size = self._config.batch_size
        starts = range(0, max(1, len(features["image_features"]) // size * size), size)
        losses = [
            sum(
                term.float().item()
                for term in terms_of(
                    self._loss,
                    {
                        name: value if name in _SHARED else value[start : start + size]
                        for name, value in features.items()
                    },
                ).values()
            )
            for start in starts
        ]
        return sum(losses) / len(losses)


def recalls(image: Tensor, text: Tensor, groups: Tensor) -> dict[str, float]:
    """Recall at 1 and 5 of images among images by their captions, and the other way.

    An image counts once, however many captions it has, and has found one if any is among the
    first. Equal similarities count against the model, as does nan.

    Args:
        image, text: [N, D], of N captions and their images.
        groups: int64 [N], equal for captions of one image.

    Returns:
        image_to_text_r1, _r5, text_to_image_r1, _r5, each 0 to 1.
    """
    image, text = image.float(), text.float()
    _, group = groups.unique(return_inverse=True)
    count = int(group.max()) + 1
    first = torch.full((count,), len(group), device=group.device)
    first.scatter_reduce_(0, group, torch.arange(len(group), device=group.device), "amin")
    images = image[first]
    to_image, to_text = [], []
    for start in range(0, len(text), _ROWS):
        similarity = text[start : start + _ROWS] @ images.T
        own = similarity.gather(1, group[start : start + _ROWS, None])
        to_image.append((~(similarity < own)).sum(1) - 1)
    for start in range(0, count, _ROWS):
        similarity = images[start : start + _ROWS] @ text.T
        numbers = torch.arange(start, start + len(similarity), device=group.device)
        is_own = group == numbers[:, None]
        own = similarity.masked_fill(~is_own, -torch.inf).amax(1, keepdim=True)
        to_text.append((~(similarity < own) & ~is_own).sum(1))
    ranks = {"image_to_text": torch.cat(to_text), "text_to_image": torch.cat(to_image)}
    return {
        f"{name}_r{k}": (rank < k).float().mean().item()
        for name, rank in ranks.items()
        for k in (1, 5)
    }
