"""``slipform probe`` from files to figures: images with labels, a model's features, a probe."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from slipform_kernels import __version__
from slipform_training.mining.files import write_atomically, write_json
from slipform_training.train.model import ModelParts, select_device
from slipform_training.train.samples import SampleError

from .labelled import LabelledImages, read_class_folders, read_label_table
from .linear import SOLVERS
from .probe import Accuracy, ProbeResult, Split, probe
from .tower import tower_features

_PACKAGES = ("torch", "open_clip_torch", "scikit-learn", "numpy", "pillow")


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """Settings of a probe.

    train, val, test: a folder with a subfolder a class, or a csv or tsv. val None: a fifth of the
    training images is held out for the search of the weight decay, which is among `grid`.
    images: where paths in tables begin. delimiter: what separates several labels in a cell; None:
    one label an image. features: "projected" or "tower", before the projection.
    missing: "error", or "skip" images that are missing or unreadable, and list them.
    """

    train: Path
    test: Path
    val: Path | None = None
    images: Path = Path()
    image_column: str = "filepath"
    label_column: str = "label"
    delimiter: str | None = None
    features: str = "tower"
    grid: tuple[float, ...]
    solver: str = "torch"
    missing: str = "error"
    batch_size: int = 64
    workers: int = 0
    device: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in (
            ("features", ("tower", "projected")),
            ("solver", SOLVERS),
            ("missing", ("error", "skip")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name}: got {getattr(self, name)!r}, expected one of {', '.join(choices)}"
                )
        if self.delimiter == "":
            raise ValueError("delimiter: got '', expected one character at least")
        if not self.grid or not all(decay > 0 for decay in self.grid):
            raise ValueError(f"grid: got {self.grid}, expected weight decays above 0")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, paths as text."""
        found = asdict(self)
        return {name: str(v) if isinstance(v, Path) else v for name, v in found.items()}


def run_probe(
    config: ProbeConfig,
    parts: ModelParts,
    out: Path,
    *,
    progress: Callable[[str, int], None] = lambda split, images: None,
) -> ProbeResult:
    """Probe the model, write out/probe.json and out/probe.md.

    progress: called with a split's name and how many more of its images were read.

    Raises:
        OSError: a file is missing.
        SampleError: an image is missing or unreadable, without missing = "skip".
        ValueError: what the readers, `tower_features` and `probe` raise.
    """
    sources = {"train": config.train, "val": config.val, "test": config.test}
    data = {name: _read(path, config) for name, path in sources.items() if path is not None}
    classes = sorted({name for one in data.values() for name in one.classes()})
    failures: dict[str, list[SampleError]] = {}
    splits = {}
    for name, one in data.items():
        found = tower_features(
            parts.model,
            one.paths,
            prepare=parts.prepare,
            projected=config.features == "projected",
            device=select_device(config.device),
            batch_size=config.batch_size,
            workers=config.workers,
            skip=config.missing == "skip",
            progress=lambda images, split=name: progress(split, images),  # type: ignore[misc]
        )
        failures[name] = found.failures
        targets = one.take(found.kept).indicators(classes)
        splits[name] = Split(
            found.features, targets if config.delimiter else targets.long().argmax(1)
        )
    result = probe(
        splits["train"],
        splits["test"],
        val=splits.get("val"),
        classes=len(classes),
        grid=config.grid,
        solver=config.solver,
        seed=config.seed,
    )
    report = {
        "versions": _versions(),
        "model": dict(parts.info),
        "settings": config.to_dict(),
        "classes": classes,
        "images": {name: len(split.targets) for name, split in splits.items()},
        "feature_size": splits["train"].features.shape[1],
        "skipped": {name: [str(error) for error in errors] for name, errors in failures.items()},
        "ignored_files": {name: [str(p) for p in one.ignored] for name, one in data.items()},
        **result.to_dict(),
    }
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "probe.json", report)
    write_atomically(out / "probe.md", markdown(report, result, classes))
    return result


def _read(path: Path, config: ProbeConfig) -> LabelledImages:
    if path.suffix in (".csv", ".tsv"):
        return read_label_table(
            path,
            root=config.images,
            image_column=config.image_column,
            label_column=config.label_column,
            delimiter=config.delimiter,
        )
    if config.delimiter is not None:
        raise ValueError(f"delimiter: got {config.delimiter!r} for {path}, expected a csv or tsv")
    return read_class_folders(path)


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"slipform-kernels": __version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return {**found, "python": platform.python_version(), "machine": platform.machine()}


def markdown(report: Mapping[str, Any], result: ProbeResult, classes: Sequence[str]) -> str:
    """The figures of a report as text and tables."""
    images = ", ".join(f"{name} {count:,}" for name, count in report["images"].items())
    skipped = sum(len(errors) for errors in report["skipped"].values())
    lines = [
        f"# Linear probe of {report['model'].get('model', 'a model')}",
        "",
        f"Features: {report['settings']['features']}, {report['feature_size']} numbers. "
        f"Images: {images}; skipped {skipped}. Classes: {len(classes)}. "
        f"Solver: {report['settings']['solver']}.",
        "",
        *_figures(result),
        "",
        f"Weight decay {result.weight_decay:g}, the best of these on the validation images:",
        "",
        "| weight decay | validation |",
        "|---|---|",
        *(f"| {decay:g} | {100 * score:.2f} |" for decay, score in result.searched),
    ]
    notes = []
    if result.at_edge:
        notes.append("The best weight decay is at the edge of the grid: a wider one may do better.")
    if not result.model.converged:
        notes.append("The solver stopped at its limit of iterations.")
    if result.model.unseen:
        unseen = ", ".join(classes[number] for number in result.model.unseen)
        notes.append(f"Classes that the training images do not tell apart: {unseen}.")
    if not isinstance(result.test, Accuracy) and result.test.without_positives:
        absent = ", ".join(classes[number] for number in result.test.without_positives)
        notes.append(f"Classes without test images, not counted: {absent}.")
    for note in notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def _figures(result: ProbeResult) -> list[str]:
    test = result.test
    if isinstance(test, Accuracy):
        return [
            "| accuracy | mean per class | ties |",
            "|---|---|---|",
            f"| {100 * test.accuracy:.2f} | {100 * test.mean_by_class:.2f} "
            f"| {int(torch.sum(test.tied))} |",
        ]
    return [
        "| mAP | mAP, VOC 11-point |",
        "|---|---|",
        f"| {100 * test.mean:.2f} | {100 * test.voc11_mean:.2f} |",
    ]
