"""``slipform probe``: a linear classifier on a model's frozen image features."""

from __future__ import annotations

import argparse
from pathlib import Path

from .errors import CommandError, require
from .models import add_model, open_model


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command's parser."""
    parser = commands.add_parser(
        "probe",
        help="train a linear classifier on a model's image features",
        description="Train a linear classifier on frozen image features. Data are folders with a "
        "subfolder for each class, or csv and tsv files with an image and its label, or labels.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_model(parser)
    data = parser.add_argument_group("data")
    data.add_argument("--train", type=Path, required=True, metavar="PATH", help="folder or table")
    data.add_argument(
        "--val",
        type=Path,
        metavar="PATH",
        default=argparse.SUPPRESS,
        help="for the search of the weight decay (a fifth of --train)",
    )
    data.add_argument("--test", type=Path, required=True, metavar="PATH", help="folder or table")
    data.add_argument(
        "--images", type=Path, metavar="DIR", default=Path(), help="where tables' paths begin"
    )
    data.add_argument("--image-column", metavar="NAME", default="filepath", help="of tables")
    data.add_argument("--label-column", metavar="NAME", default="label", help="of tables")
    data.add_argument(
        "--delimiter",
        metavar="TEXT",
        default=argparse.SUPPRESS,
        help="between the labels in a cell: images have several labels, the figure is mAP",
    )
    data.add_argument(
        "--missing",
        choices=("error", "skip"),
        default="error",
        help="images that are missing or unreadable: stop, or list them and go on",
    )
    method = parser.add_argument_group("method")
    method.add_argument(
        "--features",
        choices=("tower", "projected"),
        default="tower",
        help="before the projection into the joint space, or after it with unit norm",
    )
    method.add_argument(
        "--grid",
        nargs=3,
        type=float,
        metavar=("LOW", "HIGH", "COUNT"),
        default=(1e-8, 1e2, 11),
        help="weight decays, evenly spaced in the logarithm",
    )
    method.add_argument(
        "--solver",
        choices=("torch", "sklearn"),
        default="torch",
        help="torch's L-BFGS in fp64, or scikit-learn's LogisticRegression",
    )
    method.add_argument("--seed", type=int, default=0, help="of what is held out without --val")
    run = parser.add_argument_group("run")
    run.add_argument("--out", type=Path, default=Path("runs/probe"), help="for probe.json and .md")
    run.add_argument("--batch-size", type=int, metavar="N", default=64, help="images at a time")
    run.add_argument("--workers", type=int, metavar="N", default=0, help="that load images")
    run.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    run.add_argument("--no-progress", action="store_true", help="no progress bar")


def run(arguments: argparse.Namespace) -> int:
    """Probe and print what was found."""
    require("open_clip", "PIL", "tqdm")
    if arguments.solver == "sklearn":
        require("sklearn", extra="eval")
    try:
        return _run(arguments)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{where}{error.strerror or error}") from error
    except ValueError as error:
        raise CommandError(str(error)) from error


def _run(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from slipform_training.evaluation.probe_run import ProbeConfig, run_probe

    given = vars(arguments)
    same = (
        "train", "val", "test", "images", "image_column", "label_column", "delimiter", "features",
        "solver", "missing", "batch_size", "workers", "device", "seed",
    )  # fmt: skip
    config = ProbeConfig(
        grid=_grid(*arguments.grid), **{name: given[name] for name in same if name in given}
    )
    with tqdm(desc="images", unit=" images", disable=arguments.no_progress) as bar:

        def progress(split: str, images: int) -> None:
            bar.set_description(f"{split} images", refresh=False)
            bar.update(images)

        run_probe(config, open_model(arguments), arguments.out, progress=progress)
    print((arguments.out / "probe.md").read_text(encoding="utf-8"))
    print(f"written: {arguments.out / 'probe.json'} and {arguments.out / 'probe.md'}")
    return 0


def _grid(low: float, high: float, count: float) -> tuple[float, ...]:
    """`count` weight decays from low to high, evenly spaced in the logarithm."""
    if not 0 < low <= high or count < 1 or count != int(count) or (count == 1) != (low == high):
        raise ValueError(f"grid: got {low:g} {high:g} {count:g}, expected 0 < LOW < HIGH and COUNT")
    steps = max(int(count) - 1, 1)
    return tuple(low * (high / low) ** (step / steps) for step in range(int(count)))
