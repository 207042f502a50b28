"""From a batch to the loss: encoding, and handing a loss the inputs that it names."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from .batch import Batch

# What a loss may ask for by the name of an argument, and the field of the batch it is made from.
_SOURCES = {
    "hard_text_features": "hard_texts",
    "hard_image_features": "hard_images",
    "concreteness": "concreteness",
    "hard_mask": "hard_mask",
}


def loss_terms(model: nn.Module, loss: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The terms of `loss` on `batch`, each a scalar, under names that end in "_loss".

    The model is an open_clip CLIP or has its encode_image, encode_text, logit_scale and, optional,
    logit_bias. The loss is a module with open_clip's forward(image_features, text_features,
    logit_scale, ..., output_dict); of hard_text_features, hard_image_features, concreteness and
    hard_mask it is given those that its forward names.

    Raises ValueError if the loss requires an input that the batch lacks, or gives no "_loss" term.
    """
    inputs = _loss_inputs(loss, batch)
    features = encode(
        model,
        batch,
        hard_texts="hard_text_features" in inputs,
        hard_images="hard_image_features" in inputs,
    )
    for name, source in inputs.items():
        features.setdefault(name, source)
    if getattr(model, "logit_bias", None) is not None:
        features["logit_bias"] = model.logit_bias  # type: ignore[assignment]
    outputs = loss(
        features.pop("image_features"),
        features.pop("text_features"),
        model.logit_scale.exp(),  # type: ignore[operator]
        **features,
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


def _loss_inputs(loss: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The batch's fields that the forward of `loss` names, under the names it has for them."""
    inputs: dict[str, Tensor] = {}
    for name, parameter in inspect.signature(loss.forward).parameters.items():
        if name not in _SOURCES:
            continue
        value = getattr(batch, _SOURCES[name])
        if value is not None:
            inputs[name] = value
        elif parameter.default is inspect.Parameter.empty:
            raise ValueError(
                f"batch.{_SOURCES[name]}: got None, expected a tensor, since "
                f"{type(loss).__name__} needs {name}"
            )
    return inputs
