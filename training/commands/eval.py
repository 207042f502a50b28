"""`slipform eval`: compositional suites, from files on disk, and comparisons of the results."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import CommandError, require, told


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command's parser."""
    parser = subparsers.add_parser(
        "eval",
        help="evaluate a model on compositional suites",
        description="Evaluate a model on compositional suites, from annotation files and images on "
        "disk (docs/evaluation.md tells which). Run again after a stop, it encodes only the rest.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    given = argparse.SUPPRESS
    parser.add_argument(
        "--suite",
        nargs="+",
        metavar="NAME",
        default=given,
        help="sugarcrepe, valse, winoground ..., retrieval, zero_shot",
    )
    parser.add_argument(
        "--annotations",
        nargs="+",
        metavar="[SUITE=]PATH",
        default=given,
        help="folder with the annotation files of all suites, or of one; of retrieval the file, of "
        "zero_shot the folder with a subfolder of images for each class",
    )
    parser.add_argument(
        "--images",
        nargs="+",
        metavar="[ROOT=]DIR",
        default=given,
        help="folder with the images of all roots, or of one (such as coco_val2017=DIR)",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        default=given,
        help="of open_clip, a checkpoint (.pt), or hf: and a folder of transformers",
    )
    parser.add_argument(
        "--pretrained", metavar="TAG", default=given, help="open_clip's tag, or a file of weights"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.json", default=given, help="results")
    parser.add_argument(
        "--missing", choices=("skip", "error"), default="skip", help="what missing images mean"
    )
    parser.add_argument(
        "--precision", choices=("fp32", "bf16"), default="fp32", help="of the model"
    )
    parser.add_argument("--device", metavar="NAME", default="auto", help="cpu, cuda, ...")
    parser.add_argument("--batch-size", type=int, metavar="N", default=64, help="images at a time")
    parser.add_argument("--workers", type=int, metavar="N", default=0, help="to read images")
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", default=Path("runs/features"), help="of features"
    )
    parser.add_argument(
        "--seed", type=int, metavar="S", default=0, help="of random weights and shuffled captions"
    )
    parser.add_argument(
        "--split", metavar="NAME", default="test", help="retrieval: of Karpathy's json"
    )
    for name, default in (("image", "filepath"), ("caption", "title")):
        parser.add_argument(
            f"--{name}-column",
            metavar="NAME",
            default=given,
            help=f"retrieval: column or key of the {name}s ({default}; of jsonl {name})",
        )
    parser.add_argument(
        "--templates",
        metavar="NAME",
        default="openai",
        help="zero_shot: openai, simple, photo, or a text file with one a line",
    )
    parser.add_argument(
        "--class-names",
        type=Path,
        metavar="FILE",
        default=given,
        help="zero_shot: json or text with a name for each folder (the folders' names)",
    )
    parser.add_argument("--no-progress", action="store_true", help="no progress bars")
    _add_compare(parser)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="compare", dest="action")
    compare = actions.add_parser(
        "compare",
        help="compare evaluations, with intervals",
        description="Compare evaluations with the first of them, on the items that both scored, "
        "with paired bootstrap intervals.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    compare.add_argument(
        "results", nargs="+", type=Path, metavar="FILE.json", help="of slipform eval"
    )
    compare.add_argument("--seed", type=int, metavar="S", default=0, help="of the resampling")
    compare.add_argument(
        "--resamples", type=int, metavar="N", default=10_000, help="of the bootstrap"
    )
    compare.add_argument(
        "--out", type=Path, metavar="FILE.md", default=argparse.SUPPRESS, help="write the table"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command; errors of the request are CommandError."""
    require("PIL", "numpy", "open_clip", "tqdm")
    require("pyarrow", extra="eval")
    try:
        return _compare(arguments) if arguments.action == "compare" else _evaluate(arguments)
    except (OSError, ValueError, RuntimeError) as error:
        raise CommandError(told(error)) from error


def _evaluate(arguments: argparse.Namespace) -> int:
    from slipform_training.evaluation.run import EvalSettings, run_evaluation
    from slipform_training.mining import Columns

    given = vars(arguments)
    for option in ("suite", "annotations", "model", "out"):
        if option not in given:
            raise ValueError(f"--{option} is needed")
    settings = EvalSettings(
        suites=arguments.suite,
        annotations=_by_name(arguments.annotations),
        images=_by_name(given.get("images", [])),
        out=arguments.out,
        model=arguments.model,
        pretrained=given.get("pretrained"),
        device=arguments.device,
        seed=arguments.seed,
        precision=arguments.precision,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        cache=arguments.cache,
        missing=arguments.missing,
        split=arguments.split,
        columns=Columns(caption=given.get("caption_column"), image=given.get("image_column")),
        templates=arguments.templates,
        class_names=given.get("class_names"),
    )
    bars = _Bars(shown=not arguments.no_progress)
    try:
        _, table = run_evaluation(settings, progress=bars.update)
    finally:
        bars.close()
    print(table)
    print(f"\nwritten: {settings.out}, with the table as .md and single scores as .parquet")
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from slipform_training.evaluation.compare import compare, comparison_table
    from slipform_training.evaluation.results import read_results
    from slipform_training.mining.files import write_atomically

    if len(arguments.results) < 2:
        raise ValueError(f"results: got {len(arguments.results)} file, expected two or more")
    results = [read_results(path) for path in arguments.results]
    differences = {
        str(other.path): compare(
            results[0], other, seed=arguments.seed, resamples=arguments.resamples
        )
        for other in results[1:]
    }
    table = comparison_table(results, differences)
    print(table)
    if "out" in vars(arguments):
        write_atomically(arguments.out, table + "\n")
    return 0


def _by_name(values: Sequence[str]) -> dict[str, Path]:
    """Paths by the name before "=", "" where there is none; a path that exists is taken whole."""
    found: dict[str, Path] = {}
    for value in values:
        name, equals, path = value.partition("=")
        key = name if equals and not Path(value).exists() else ""
        if key in found:
            raise ValueError(f"got two paths for {key or 'all'}: {found[key]} and {value}")
        found[key] = Path(path if key else value).expanduser()
    return found


class _Bars:
    """A bar for images and one for texts, each begun anew where its count falls."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._bars: dict[str, Any] = {}

    def update(self, what: str, done: int, total: int) -> None:
        from tqdm import tqdm

        bar = self._bars.get(what)
        if bar is not None and done <= bar.n:
            bar.close()
            bar = None
        if bar is None:
            bar = tqdm(total=total, desc=what, disable=not self._shown, leave=False)
            self._bars[what] = bar
        bar.update(done - bar.n)

    def close(self) -> None:
        for bar in self._bars.values():
            bar.close()
