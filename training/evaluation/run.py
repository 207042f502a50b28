"""An evaluation from its settings to its files: what ``slipform eval`` does."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from slipform_kernels import __version__
from slipform_training.evaluation.encoder import ModelSource
from slipform_training.evaluation.feature_cache import FeatureCache
from slipform_training.evaluation.models import model_hash, open_model
from slipform_training.evaluation.results import write_results
from slipform_training.evaluation.scoring import NEAR_TIE
from slipform_training.evaluation.suites import ImageRoots
from slipform_training.evaluation.tasks import TASKS, TaskRequest, TaskResult
from slipform_training.mining.files import read_json
from slipform_training.mining.readers import Columns

_PACKAGES = ("torch", "open_clip_torch", "transformers", "numpy", "pillow")


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    """What to evaluate.

    Attributes:
        suites: names of TASKS.
        annotations: folders or files by suite; "" is that of all others.
        images: image folders by root; "" is that of all others.
        out: the json that is written.
        model, pretrained, device, seed: see models.open_model; seed is also of shuffled captions.
        precision, batch_size, workers: see encoder.ModelSource.
        cache: folder of the features.
        missing: "skip" or "error".
        split, columns, templates, class_names: see tasks.TaskRequest.
    """

    suites: Sequence[str]
    annotations: Mapping[str, Path]
    out: Path
    model: str
    images: Mapping[str, Path] = field(default_factory=dict)
    pretrained: str | None = None
    device: str = "auto"
    seed: int = 0
    precision: str = "fp32"
    batch_size: int = 64
    workers: int = 0
    cache: Path = Path("runs/features")
    missing: str = "skip"
    split: str = "test"
    columns: Columns = field(default_factory=Columns)
    templates: str = "openai"
    class_names: Path | None = None

    def __post_init__(self) -> None:
        for name in self.suites:
            if name not in TASKS:
                raise ValueError(f"suite: got {name!r}, expected some of {', '.join(TASKS)}")
            if name not in self.annotations and "" not in self.annotations:
                raise ValueError(f"annotations: expected a folder for {name}, got none")
        if not self.suites:
            raise ValueError(f"suite: got none, expected some of {', '.join(TASKS)}")
        if self.out.suffix != ".json":
            raise ValueError(f"out: got {self.out}, expected the name of a json file")


def run_evaluation(
    settings: EvalSettings,
    *,
    progress: Callable[[str, int, int], None] | None = None,
    report: Callable[[str], None] = print,
) -> tuple[dict[str, TaskResult], str]:
    """Evaluate a model on the suites and write json, parquet and markdown.

    progress: see encoder.ModelSource. report: called with lines about the run.

    Returns the results by suite, and the markdown table. Raises ValueError and FileNotFoundError
    that name the setting, file or row.
    """
    towers = open_model(
        settings.model, pretrained=settings.pretrained, device=settings.device, seed=settings.seed
    )
    source = ModelSource(
        towers,
        precision=settings.precision,
        batch_size=settings.batch_size,
        workers=settings.workers,
        progress=progress,
    )
    identity = model_hash(towers, precision=settings.precision)
    _check_out(settings.out, identity)
    cache = FeatureCache(source, settings.cache, model=identity, report=report)
    named = {root: path for root, path in settings.images.items() if root}
    roots = ImageRoots(settings.images.get(""), named)
    results = {}
    for name in settings.suites:
        report(f"{name} ...")
        request = TaskRequest(
            settings.annotations.get(name) or settings.annotations[""],
            roots,
            seed=settings.seed,
            missing=settings.missing,
            near_tie=NEAR_TIE[settings.precision],
            split=settings.split,
            columns=settings.columns,
            templates=settings.templates,
            class_names=settings.class_names,
        )
        results[name] = TASKS[name](request, cache)
    about = {
        "versions": _versions(),
        "model": {
            **{key: value for key, value in towers.info.items() if key != "architecture"},
            "hash": identity,
            "precision": settings.precision,
            "device": str(towers.device),
        },
        "settings": {
            "seed": settings.seed,
            "missing": settings.missing,
            "near_tie": NEAR_TIE[settings.precision],
            "split": settings.split,
            "templates": settings.templates,
            "annotations": {key: str(path) for key, path in settings.annotations.items()},
            "images": {key: str(path) for key, path in settings.images.items()},
        },
        "encoded": dict(cache.encoded),
        "texts_cut": source.cut,
    }
    if source.cut:
        report(f"texts cut to the context length, of those encoded now: {source.cut}")
    return results, write_results(settings.out, about, results)


def _check_out(out: Path, identity: str) -> None:
    """Refuse to write over another model's results."""
    found = read_json(out)
    earlier = found.get("model", {}).get("hash") if isinstance(found, dict) else None
    if found is not None and earlier != identity:
        raise ValueError(
            f"out: got {out}, which holds something else than this model's results; name another "
            "file, or remove it"
        )


def _versions() -> dict[str, Any]:
    found = {"python": platform.python_version(), "slipform_kernels": __version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
