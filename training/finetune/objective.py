"""From a batch to the loss: encoding, and handing a loss the inputs that it names."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from slipform_kernels import TripletClipLoss

from .batch import Batch

# What a loss may ask for by the name of an argument, and the field of the batch it is made from.
_SOURCES = {
    "hard_text_features": "hard_texts",
    "hard_image_features": "hard_images",
    "concreteness": "concreteness",
    "hard_mask": "hard_mask",
    "masked_text_features": "word_mask",
    "masked_image_features": "patch_mask",
    "word_mask": "word_mask",
    "patch_mask": "patch_mask",
}
_ENCODED = (
    "hard_text_features",
    "hard_image_features",
    "masked_text_features",
    "masked_image_features",
)


class AddedParts(nn.Module):
    """What an objective trains beside the model and drops afterwards.

    lr: its own peak learning rate; weight_decay: AdamW's, of its matrices.
    """

    def __init__(self, *, lr: float, weight_decay: float) -> None:
        super().__init__()
        self.lr = lr
        self.weight_decay = weight_decay


class Encoder(nn.Module):
    """Both towers and the scale of a model in one forward, for DDP and gradient caching to wrap.

    The model is an open_clip CLIP or has its encode_image, encode_text, logit_scale and, optional,
    logit_bias. An objective with parts of its own is a subclass, which has them in `added`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.added: AddedParts | None = None

    @classmethod
    def of(cls, model: nn.Module) -> Encoder:
        """`model` itself if it is an encoder, else one of it."""
        return model if isinstance(model, Encoder) else cls(model)

    def forward(
        self,
        images: Tensor,
        texts: Tensor,
        hard_texts: Tensor | None = None,
        hard_images: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The features of `encode`, the exponentiated logit_scale and, if any, the logit_bias."""
        batch = Batch(images=images, texts=texts, hard_texts=hard_texts, hard_images=hard_images)
        features = encode(self.model, batch, hard_texts=True, hard_images=True)
        return {**features, **self.scales()}

    def scales(self) -> dict[str, Tensor]:
        """The exponentiated logit_scale and, if any, the logit_bias."""
        scales: dict[str, Any] = {"logit_scale": self.model.logit_scale.exp()}  # type: ignore[operator]
        if getattr(self.model, "logit_bias", None) is not None:
            scales["logit_bias"] = self.model.logit_bias
        return scales


def loss_terms(model: nn.Module, loss: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The terms of `loss` on `batch`, each a scalar, under names that end in "_loss".

    The model is as in Encoder, or one. The loss is a module with open_clip's
    forward(image_features, text_features, logit_scale, ..., output_dict); of hard_text_features,
    hard_image_features, concreteness, hard_mask, word_mask and patch_mask it is given those that
    its forward names.

    Raises ValueError if the loss requires an input that the batch lacks, or gives no "_loss" term.
    """
    towers, others = loss_inputs(loss, batch)
    return terms_of(loss, {**Encoder.of(model)(**towers), **others})


def loss_inputs(loss: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What Encoder needs of `batch` for `loss`, and what goes to the loss as it is.

    Both by the names of arguments. Raises ValueError if the loss requires an input that the batch
    lacks.
    """
    towers = {"images": batch.images, "texts": batch.texts}
    others: dict[str, Tensor] = {}
    for name, parameter in inspect.signature(loss.forward).parameters.items():
        if name not in _SOURCES:
            continue
        source = _SOURCES[name]
        value = getattr(batch, source)
        if value is not None and name in _ENCODED:
            towers[source] = value
        elif value is not None:
            others[name] = value
        elif parameter.default is inspect.Parameter.empty:
            raise ValueError(
                f"batch.{source}: got None, expected a tensor, since {type(loss).__name__} "
                f"needs {name}"
            )
    return towers, others


def terms_of(loss: nn.Module, features: Mapping[str, Any]) -> dict[str, Tensor]:
    """The terms of `loss` on features that Encoder and loss_inputs gave."""
    named = dict(features)
    if isinstance(loss, TripletClipLoss):  # it takes one hard caption a sample, without an axis K
        named["hard_text_features"] = named["hard_text_features"].squeeze(1)
    outputs = loss(
        named.pop("image_features"),
        named.pop("text_features"),
        named.pop("logit_scale"),
        **named,
        output_dict=True,
    )
    terms = {name: value for name, value in outputs.items() if name.endswith("_loss")}
    if not terms:
        raise ValueError(f"loss: got the outputs {sorted(outputs)}, expected a name in '_loss'")
    return terms


def encode(
    model: nn.Module, batch: Batch, *, hard_texts: bool = False, hard_images: bool = False
) -> dict[str, Tensor]:
    """Unit-norm features: image_features [N, D], text_features [N, D], and on request
    hard_text_features [N, K, D] and hard_image_features [N, D].

    Captions and hard captions go through the text tower together, images and hard images through
    the image tower: one larger pass is faster than two, and batch normalisation sees both alike.
    """
    samples = len(batch)
    images, texts = batch.images, batch.texts
    if hard_images and batch.hard_images is not None:
        images = torch.cat([images, batch.hard_images])
    if hard_texts and batch.hard_texts is not None:
        texts = torch.cat([texts, batch.hard_texts.flatten(0, 1)])
    image_features = model.encode_image(images, normalize=True)  # type: ignore[operator]
    text_features = model.encode_text(texts, normalize=True)  # type: ignore[operator]
    features = {
        "image_features": image_features[:samples],
        "text_features": text_features[:samples],
    }
    if hard_images and batch.hard_images is not None:
        features["hard_image_features"] = image_features[samples:]
    if hard_texts and batch.hard_texts is not None:
        hard = text_features[samples:]
        features["hard_text_features"] = hard.unflatten(0, batch.hard_texts.shape[:2])
    return features
