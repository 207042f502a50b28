"""open_clip models by name or checkpoint, and the activation that weights were trained with.

A CLIP's weights say nothing of the activation between them: loaded into a model with another one
they fit, and score badly (https://github.com/mlfoundations/open_clip/issues/771). So checkpoints
written here carry its name, and other weights are checked where open_clip knows their activation.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.pretrained import get_pretrained_cfg
from torch import Tensor, nn

from slipform_training.finetune import load_checkpoint, save_checkpoint

# open_clip's start of logit scale and bias for the sigmoid loss (arXiv 2303.15343, section 3.2).
_SIGMOID_START = {"init_logit_scale": math.log(10), "init_logit_bias": -10.0}


class ActivationMismatchError(ValueError):
    """Weights were trained with another activation than the model has."""


@dataclass(frozen=True)
class ModelParts:
    """A model and what its inputs are made with.

    augment, prepare: open_clip's transforms for training and evaluation, PIL image -> [3, H, W].
    info: plain values that say which model it is, for the checkpoint.
    """

    model: nn.Module
    augment: Callable[[Any], Tensor]
    prepare: Callable[[Any], Tensor]
    tokenizer: Callable[[list[str]], Tensor]
    info: dict[str, Any]


def create_model(name: str, *, pretrained: str | None = None, sigmoid: bool = False) -> ModelParts:
    """The open_clip model `name`, or that of a json file with a model configuration.

    pretrained: one of open_clip's tags, or a file; None for random weights.
    sigmoid: give a model without a logit bias one, as the sigmoid loss needs.

    Raises ValueError for an unknown model or weights that cannot be loaded, and
    ActivationMismatchError.
    """
    if name.endswith(".json"):
        name = _register(Path(name))
    architecture = open_clip.get_model_config(name)
    if architecture is None and ":" not in name:
        raise ValueError(f"model: got {name!r}, which open_clip does not know; see list_models()")
    stored = _stored_info(pretrained)
    start = _SIGMOID_START if sigmoid and "init_logit_bias" not in (architecture or {}) else {}
    if pretrained is not None and stored is None:
        _check_tag(name, pretrained, bool((architecture or {}).get("quick_gelu", False)))
    try:
        model, augment, prepare = open_clip.create_model_and_transforms(
            name, pretrained=pretrained if stored is None else None, output_dict=True, **start
        )
        activation = activation_of(model)
        if stored is not None:
            _check_stored(stored, activation, name=name, where=str(pretrained))
            open_clip.load_checkpoint(model, str(pretrained))
        tokenizer = open_clip.get_tokenizer(name)
    except ActivationMismatchError:
        raise
    except Exception as error:  # whatever loading and downloading raise
        weights = f" with the weights {pretrained}" if pretrained else ""
        raise ValueError(f"model: {name}{weights} cannot be made: {error}") from error
    info: dict[str, Any] = {
        "model": name,
        "activation": activation,
        "architecture": json.loads(json.dumps(architecture)),
        "start": dict(start),
    }
    return ModelParts(model, augment, prepare, tokenizer, info)


def load_model(path: Path | str, *, model: str | None = None) -> ModelParts:
    """The model in a checkpoint of ``slipform train``, in eval mode.

    model: its name or json file, if not that which the checkpoint names. Raises ValueError for a
    file that is not such a checkpoint, and ActivationMismatchError where `model` has another
    activation than the weights were trained with.
    """
    info = load_checkpoint(Path(path)).get("info", {})
    if "model" not in info:
        raise ValueError(f"path: got {path}, which says nothing of its model")
    if model is None and open_clip.get_model_config(info["model"]) is None:
        _register_stored(info)
    parts = create_model(model or info["model"], pretrained=str(path), sigmoid=bool(info["start"]))
    parts.model.eval()
    return parts


def activation_of(model: nn.Module) -> str:
    """ "quick_gelu" if any of the model's layers is open_clip's QuickGELU, else "gelu"."""
    names = {type(module).__name__ for module in model.modules()}
    return "quick_gelu" if "QuickGELU" in names else "gelu"


def _register(path: Path) -> str:
    """Make the configuration in a json file known to open_clip, under the file's stem."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        missing = [key for key in ("embed_dim", "vision_cfg", "text_cfg") if key not in found]
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"model: {path} cannot be read as json ({error})") from error
    if missing:
        raise ValueError(f"model: {path} lacks {', '.join(missing)}")
    known = open_clip.get_model_config(path.stem)
    if known is not None and known != found:
        raise ValueError(
            f"model: got {path}, whose name is that of another model of open_clip; rename the file"
        )
    open_clip.add_model_config(path)
    return path.stem


def _register_stored(info: dict[str, Any]) -> None:
    """Make a configuration that a checkpoint holds, since it came from a json file, known."""
    if not info["architecture"]:  # a model of a hub, which open_clip asks for itself
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{Path(info['model']).name}.json"
        path.write_text(json.dumps(info["architecture"]), encoding="utf-8")
        _register(path)


def _stored_info(pretrained: str | None) -> dict[str, Any] | None:
    """What a checkpoint written here says of its model; None for any other weights."""
    if pretrained is None or not Path(pretrained).is_file():
        return None
    try:
        return load_checkpoint(Path(pretrained)).get("info") or None
    except ValueError:
        return None


def _check_stored(stored: dict[str, Any], activation: str, *, name: str, where: str) -> None:
    if stored.get("activation", activation) != activation:
        raise _mismatch(where, stored["activation"], name, activation)


def _check_tag(name: str, tag: str, is_quick: bool) -> None:
    known = get_pretrained_cfg(name, tag)
    if known and bool(known.get("quick_gelu", False)) != is_quick:
        names = {True: "quick_gelu", False: "gelu"}
        raise _mismatch(tag, names[not is_quick], name, names[is_quick])


def _mismatch(weights: str, theirs: str, name: str, ours: str) -> ActivationMismatchError:
    is_quick = name.endswith("-quickgelu")
    other = name.removesuffix("-quickgelu") if is_quick else f"{name}-quickgelu"
    hint = f"; use --model {other}" if open_clip.get_model_config(other) is not None else ""
    return ActivationMismatchError(
        f"pretrained: {weights} was trained with the activation {theirs}, and the model {name} has "
        f"{ours}: the weights would load, and the model would score badly without a word "
        f"(open_clip issue 771){hint}"
    )


def save_weights(path: Path, model: nn.Module, info: dict[str, Any]) -> None:
    """Write the weights alone, as open_clip loads them, with `info` beside them."""
    weights = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    save_checkpoint(path, {"info": info, "state_dict": weights})


def select_device(name: str) -> str:
    """The device that `auto` means, or `name`; ValueError where torch does not know it."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device: got {name!r}, expected a torch device ({error})") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: got {name!r}, and torch finds no GPU")
    return name
