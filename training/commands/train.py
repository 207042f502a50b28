"""``slipform train``: an open_clip model, a file of captions, a loss."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from slipform_training.train.config import TrainConfig, types_of

from .errors import CommandError, require


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command's parser: a flag for every setting."""
    parser = commands.add_parser(
        "train",
        help="train an open_clip model on captions and images",
        description="Train an open_clip model with a loss of slipform_kernels. Settings come from "
        "a yaml file, from flags, or both, where flags win. Run again, it continues where it "
        "stopped. Under torchrun, one process a device: torchrun --nproc-per-node 2 -m "
        "slipform_training.cli train ...",
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, metavar="YAML", help="file of settings")
    types = types_of()
    for one in fields(TrainConfig):
        kind, _ = types[one.name]
        flag = "--" + one.name.replace("_", "-")
        text = one.metadata["help"]
        if one.default not in (None, ""):
            text = f"{text} (default: {one.default})"
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": text, "dest": one.name}
        if kind is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        else:
            choices = one.metadata["choices"]
            metavar = "{" + ",".join(choices) + "}" if choices else kind.__name__.upper()
            parser.add_argument(flag, type=kind, metavar=metavar, **options)


def run(arguments: argparse.Namespace) -> int:
    """Train; 130 where it was interrupted, with its state saved."""
    require("open_clip", "PIL", "tqdm", "yaml")
    from slipform_training.finetune import NonFiniteLossError, TrainingInterrupted
    from slipform_training.train.run import run_training
    from slipform_training.train.settings_file import read_settings

    flags = {name: vars(arguments)[name] for name in types_of() if name in vars(arguments)}
    try:
        settings = read_settings(arguments.config) if arguments.config else {}
        run_training(TrainConfig(**{**settings, **flags}))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{where}{error.strerror or error}") from error
    except (ValueError, NonFiniteLossError) as error:
        raise CommandError(str(error)) from error
    except TrainingInterrupted as stopped:
        print(f"slipform: {stopped}", file=sys.stderr)
        return 130
    return 0
