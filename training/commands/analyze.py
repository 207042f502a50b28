"""``slipform analyze``: gradient shares, margins and concreteness of any checkpoint and data."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .demo import MODULES
from .errors import CommandError, require

if TYPE_CHECKING:
    from slipform_training.analysis.pairs import HardPairs


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command's parser."""
    parser = commands.add_parser(
        "analyze",
        help="where the gradient goes, by batch size, margin and concreteness",
        description="Measure where the gradient of a contrastive loss goes: shares of hard and "
        "easy negatives against the batch size and over training, the margin's effect on them, "
        "and the similarity of hard captions against concreteness. Writes png and csv.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_subjects(parser)
    method = parser.add_argument_group("method")
    method.add_argument(
        "--batch-sizes",
        nargs="+",
        type=int,
        metavar="N",
        default=[64, 128, 256, 512, 1024, 2048, 4096],
        help="of the shares; those above the number of samples are left out",
    )
    method.add_argument(
        "--margin",
        type=float,
        metavar="M",
        default=argparse.SUPPRESS,
        help="Cement's at concreteness 5, compared with none (0.05; the demo's own)",
    )
    method.add_argument(
        "--margins",
        nargs="+",
        type=float,
        metavar="M",
        default=[0.0, 0.02, 0.05, 0.1, 0.2],
        help="of the margin's effect, the same on every hard caption",
    )
    method.add_argument("--repeats", type=int, metavar="N", default=5, help="draws of the data")
    method.add_argument(
        "--span", type=float, metavar="S", default=0.5, help="share of the points in a LOESS fit"
    )
    method.add_argument("--seed", type=int, metavar="S", default=0, help="of the draws")
    run = parser.add_argument_group("run")
    run.add_argument("--out", type=Path, default=Path("runs/analysis"), help="folder")
    run.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    run.add_argument("--workers", type=int, metavar="N", default=0, help="that load images")
    run.add_argument(
        "--chunk-size", type=int, metavar="N", default=64, help="samples encoded at a time"
    )
    run.add_argument("--no-progress", action="store_true", help="no progress bar")


def _add_subjects(parser: argparse.ArgumentParser) -> None:
    models = parser.add_argument_group("models")
    models.add_argument(
        "--model",
        action="append",
        metavar="NAME[=TAG]",
        default=[],
        help="open_clip model, with weights of a tag or in a file; may be given again",
    )
    models.add_argument(
        "--checkpoint",
        action="append",
        metavar="FILE",
        default=[],
        help="checkpoint of slipform train, LABEL=FILE to name it; may be given again",
    )
    models.add_argument(
        "--log",
        action="append",
        metavar="FILE",
        default=[],
        help="log.jsonl of a run, LABEL=FILE to name it; may be given again",
    )
    models.add_argument(
        "--demo",
        type=Path,
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="a finished demo's models, logs and scenes, instead of all other models and data",
    )
    models.add_argument("--demo-seed", type=int, metavar="N", default=0, help="which of its seeds")
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        metavar="FILE",
        default="",
        help="captions with hard captions, in any form that slipform train reads",
    )
    data.add_argument("--images", metavar="DIR", default=".", help="where images' paths begin")
    for name, default in (
        ("format", "auto"),
        ("image-column", "filepath"),
        ("caption-column", "title"),
        ("hard-caption-column", "neg_caption"),
        ("concreteness-column", "concreteness"),
    ):
        data.add_argument(f"--{name}", metavar="NAME", default=default, help="as slipform train's")
    data.add_argument(
        "--hard-captions", type=int, metavar="K", default=1, help="of a sample, drawn"
    )
    data.add_argument(
        "--samples", type=int, metavar="N", default=8192, help="drawn from the data, at most"
    )
    data.add_argument(
        "--missing",
        choices=("error", "skip"),
        default="error",
        help="samples that cannot be used: stop, or list them and go on",
    )


def run(arguments: argparse.Namespace) -> int:
    """Analyse and say where it was written."""
    require("open_clip", "PIL", "matplotlib", "tqdm")
    if "demo" in vars(arguments):
        require(*MODULES)
    try:
        return _run(arguments)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{where}{error.strerror or error}") from error
    except ValueError as error:
        raise CommandError(str(error)) from error


def _run(arguments: argparse.Namespace) -> int:
    from slipform_training.analysis.run import AnalysisConfig, analyse

    given = vars(arguments)
    settings: dict[str, Any] = {
        "batch_sizes": tuple(arguments.batch_sizes),
        "margins": tuple(arguments.margins),
        **{name: given[name] for name in ("repeats", "span", "seed", "margin") if name in given},
    }
    config = AnalysisConfig(**settings)
    about: dict[str, Any] = {}
    bar = _Bar(shown=not arguments.no_progress)
    if "demo" in given:
        if arguments.model or arguments.checkpoint or arguments.log or arguments.data:
            raise ValueError("demo: got other models, logs or data too, expected --demo alone")
        from slipform_training.analysis.demo import read_demo

        demo, subjects, logs = read_demo(
            arguments.demo,
            seed=arguments.demo_seed,
            samples=arguments.samples,
            say=print,
            progress=bar.update,
        )
        config = AnalysisConfig(**{"margin": demo.margin, **settings})
        about["data"] = f"the demo's scenes, at most {arguments.samples}"
    else:
        logs = _labelled(arguments.log)
        subjects = _subjects(arguments, about, bar.update)
    analyse(subjects, config, arguments.out, logs=logs, about=about)
    return 0


def _subjects(
    arguments: argparse.Namespace, about: dict[str, Any], progress: Callable[[str, int], None]
) -> Iterator[HardPairs]:
    """Each model's features of the data; `about` is filled on the way."""
    import torch

    from slipform_training.analysis.files import choose_samples, file_subject
    from slipform_training.train.config import TrainConfig
    from slipform_training.train.model import create_model, load_model, select_device

    names = [("model", name) for name in arguments.model]
    names += [("checkpoint", name) for name in arguments.checkpoint]
    if not names:
        raise ValueError("model: got nothing, expected --model, --checkpoint or --demo")
    data = TrainConfig(
        model=names[0][1],
        out=str(arguments.out),
        loss="negclip",
        augment=False,
        on_error="skip" if arguments.missing == "skip" else "raise",
        batch_size=arguments.chunk_size,
        seed=arguments.seed,
        **{
            name: getattr(arguments, name)
            for name in (
                "data", "images", "format", "image_column", "caption_column",
                "hard_caption_column", "concreteness_column", "hard_captions", "workers",
            )
        },
    )  # fmt: skip
    choice = choose_samples(data, count=arguments.samples, seed=arguments.seed)
    about["model_info"] = {}
    for kind, text in names:
        if kind == "model":
            name, _, tag = text.partition("=")
            torch.manual_seed(arguments.seed)
            parts = create_model(name, pretrained=tag or None)
            label = ", ".join([parts.info["model"], tag] if tag else [parts.info["model"]])
        else:
            ((label, path),) = _labelled([text]).items()
            parts = load_model(path)
        about["model_info"][label] = parts.info
        yield file_subject(
            label,
            parts,
            choice,
            data,
            device=select_device(arguments.device),
            progress=lambda samples, label=label: progress(label, samples),  # type: ignore[misc]
        )
        about["data"] = {"path": arguments.data, **choice.report()}


def _labelled(texts: list[str]) -> dict[str, Path]:
    """LABEL=FILE, or FILE under the name of its folder."""
    found: dict[str, Path] = {}
    for text in texts:
        label, given, file = text.partition("=")
        path = Path(file if given else text)
        label = label if given else path.resolve().parent.name
        if label in found:
            raise ValueError(
                f"label: got two files named {label!r}, expected LABEL=FILE to tell them apart"
            )
        found[label] = path
    return found


class _Bar:
    """A progress bar for each model, one after the other."""

    def __init__(self, *, shown: bool) -> None:
        self._shown, self._label, self._bar = shown, "", None

    def update(self, label: str, samples: int) -> None:
        from tqdm import tqdm

        if label != self._label:
            if self._bar is not None:
                self._bar.close()
            self._label = label
            self._bar = tqdm(desc=label, unit=" samples", disable=not self._shown)
        assert self._bar is not None
        self._bar.update(samples)
