"""How a command is told which model to load: a name of open_clip with weights, or a checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipform_training.train.model import ModelParts


def add_model(parser: argparse.ArgumentParser) -> None:
    """Options that `open_model` reads."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="open_clip model, or a json file with its configuration",
    )
    group.add_argument(
        "--pretrained",
        metavar="TAG",
        default=argparse.SUPPRESS,
        help="its weights: an open_clip tag or a file (random ones, by --seed)",
    )
    group.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="checkpoint of slipform train, instead of --pretrained; it names its model",
    )


def open_model(arguments: argparse.Namespace) -> ModelParts:
    """The model that the options name, in eval mode; ValueError where they fit no model.

    Weights that are not given are random, by arguments.seed.
    """
    import torch

    from slipform_training.train.model import create_model, load_model

    given = vars(arguments)
    name, pretrained = given.get("model"), given.get("pretrained")
    if "checkpoint" in given:
        if pretrained is not None:
            raise ValueError("checkpoint: got one and --pretrained, expected one of them")
        return load_model(arguments.checkpoint, model=name)
    if name is None:
        raise ValueError("model: got nothing, expected --model or --checkpoint")
    torch.manual_seed(arguments.seed)
    parts = create_model(name, pretrained=pretrained)
    parts.model.eval()
    return parts
