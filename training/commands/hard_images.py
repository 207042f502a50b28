"""`slipform hard-images`: pictures of hard captions, made from the captions' own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import CommandError, require, shard_of, told

if TYPE_CHECKING:
    from slipform_training.hard_images import HardImageSettings

# Options of the model and of how it is used, which `slipform mine` hands on.
OPTIONS = (
    "model",
    "variant",
    "strength",
    "steps",
    "guidance",
    "size",
    "batch_size",
    "device",
    "precision",
    "on_error",
)


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's parser."""
    parser = subparsers.add_parser(
        "hard-images",
        help="make hard images for mined rows",
        description="Make an image of every hard caption from the row's own image. Run again after "
        "a stop, it continues where it was.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "inputs",
        nargs="+",
        type=Path,
        metavar="INPUT",
        help=".jsonl, .tsv (NegCLIP's columns) or .tar as of slipform mine, or a folder of .tar",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder for the images and for the rows with hard_images, under the inputs' names",
    )
    parser.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        default=Path("."),
        help="folder that the rows' paths of images begin at (tar files bring their own)",
    )
    add_options(parser.add_argument_group("method"))
    run = parser.add_argument_group("run")
    run.add_argument("--seed", type=int, metavar="S", default=0, help="of the noise")
    run.add_argument("--shard", metavar="i/n", default="0/1", help="do the i-th of n parts, from 0")
    run.add_argument("--no-progress", action="store_true", help="no progress bar")


def add_options(group: argparse._ArgumentGroup) -> None:
    """Adds OPTIONS."""
    group.add_argument(
        "--model",
        metavar="NAME",
        default="stabilityai/sdxl-turbo",
        help="an image-to-image model of diffusers, by name or folder",
    )
    group.add_argument(
        "--variant",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="of the model's files, such as fp16 (those without a variant)",
    )
    group.add_argument(
        "--strength",
        type=float,
        metavar="X",
        default=0.5,
        help="how far from the image, above 0, at most 1",
    )
    group.add_argument(
        "--steps",
        type=int,
        metavar="N",
        default=4,
        help="of the diffusion, of which int(strength * steps) are done",
    )
    group.add_argument(
        "--guidance",
        type=float,
        metavar="G",
        default=0.0,
        help="weight of the caption; up to 1 none, as turbo models want",
    )
    group.add_argument("--size", type=int, metavar="PX", default=512, help="side of the images")
    group.add_argument("--batch-size", type=int, metavar="N", default=8, help="images at once")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...")
    group.add_argument(
        "--precision",
        choices=("auto", "fp32", "fp16", "bf16"),
        default="auto",
        help="auto: fp16 on a GPU, fp32 elsewhere",
    )
    group.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="hard images: a row or source image that cannot be used: stop, or count and go on",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; the errors of slipform_training.hard_images are CommandError here."""
    settings = settings_of(
        arguments,
        inputs=tuple(arguments.inputs),
        out=arguments.out,
        images=arguments.images,
        shard=shard_of(arguments.shard),
    )
    make(settings, shown=not arguments.no_progress)
    return 0


def settings_of(arguments: argparse.Namespace, **more: Any) -> HardImageSettings:
    """Settings with OPTIONS and the seed from the arguments; CommandError where they are wrong, or
    a package is missing."""
    require("PIL", "open_clip", "tqdm")
    require("diffusers", "transformers", "accelerate", extra="images")
    from slipform_training.hard_images import HardImageSettings

    given = vars(arguments)
    options = {name: given[name] for name in (*OPTIONS, "seed") if name in given}
    try:
        return HardImageSettings(**options, **more)
    except ValueError as error:
        raise CommandError(told(error)) from error


def make(settings: HardImageSettings, *, shown: bool) -> None:
    """Makes hard images, with a progress bar if `shown`, and prints the report."""
    from tqdm import tqdm

    from slipform_training.hard_images import make_hard_images

    with tqdm(desc="hard images", unit=" images", disable=not shown) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        try:
            report = make_hard_images(settings, progress=progress)
        except (OSError, ValueError, RuntimeError) as error:
            raise CommandError(told(error)) from error
    print(report.text())
    print(f"written: {settings.beside('report.json')} and the rows in {settings.out}")
