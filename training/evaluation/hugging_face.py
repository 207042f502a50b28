"""CLIP models of Hugging Face's transformers, an optional dependency (the extra ``hf``)."""

from __future__ import annotations

import json
from typing import Any

from torch import Tensor

from slipform_training.evaluation.models import TwoTowers

# The name that transformers gives an activation, and the one used here.
_ACTIVATIONS = {"quick_gelu": "quick_gelu", "gelu": "gelu"}


def open_hugging_face(name: str, *, device: str) -> TwoTowers:
    """The CLIP in a folder, or of the hub, with its own processor, in eval mode.

    Raises ValueError where transformers is missing, or the model is none of its CLIPs.
    """
    try:
        from transformers import CLIPModel, CLIPProcessor
    except ImportError as error:
        raise ValueError(
            f"model: hf:{name} needs transformers: pip install 'slipform-kernels[hf]' ({error})"
        ) from error
    try:
        model: Any = CLIPModel.from_pretrained(name)
        processor: Any = CLIPProcessor.from_pretrained(name)
    except Exception as error:  # whatever loading and downloading raise
        raise ValueError(f"model: hf:{name} cannot be loaded: {error}") from error
    config = model.config
    names = {config.vision_config.hidden_act, config.text_config.hidden_act}
    context = config.text_config.max_position_embeddings

    def tokenize(texts: list[str]) -> Any:
        return processor.tokenizer(
            texts, padding="max_length", truncation=True, max_length=context, return_tensors="pt"
        )

    model = model.eval().to(device)
    return TwoTowers(
        model=model,
        prepare=_Prepare(processor.image_processor),
        tokenize=tokenize,
        images=lambda pixels: _features(model.get_image_features(pixel_values=pixels)),
        texts=lambda tokens: _features(model.get_text_features(**tokens)),
        width=config.projection_dim,
        info={
            "name": f"hf:{name}",
            "weights": name,
            "activation": "+".join(sorted(_ACTIVATIONS.get(one, one) for one in names)),
            "architecture": _plain(config),
            "transform": json.dumps(_plain(processor.image_processor), sort_keys=True),
            "tokenizer": f"{type(processor.tokenizer).__name__}, {context} tokens",
        },
    )


class _Prepare:
    """An image processor as a transform, picklable."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __call__(self, image: Any) -> Tensor:
        return self.processor(images=image, return_tensors="pt")["pixel_values"][0]


def _features(found: Any) -> Tensor:
    """transformers 5 returns the projected features inside an output, 4 as they are."""
    return found if isinstance(found, Tensor) else found.pooler_output


def _plain(config: Any) -> dict[str, Any]:
    """A configuration's entries but its path and the library's version."""
    entries = json.loads(config.to_json_string())
    return {
        key: value
        for key, value in entries.items()
        if key not in ("_name_or_path", "transformers_version")
    }
