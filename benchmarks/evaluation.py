"""How long do 100,000 pairs take once their features are cached, and in how much memory?

    python -m benchmarks.evaluation [--pairs 100000] [--width 512] [--threads 2]

SugarCrepe's format, as many images as pairs and two texts each, all different; random features. A
process of its own reads the annotations, looks for every image and hashes it, takes the features
from the cache, scores, and writes json, parquet and table. Reported are its whole time from the
start of Python, its time on the CPUs, and its peak resident memory. Images are files of some bytes:
hashing real photos takes the time to read them besides.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks import record
from slipform_training.evaluation import CATEGORIES
from slipform_training.evaluation.feature_cache import FeatureCache
from slipform_training.evaluation.results import write_results
from slipform_training.evaluation.suites import ImageRoots
from slipform_training.evaluation.tasks import TASKS, TaskRequest

_BATCH = 4096
_MODEL = {"name": "random", "weights": "none", "activation": "none", "precision": "fp32"}


class _RandomSource:
    """Stands for a model; `allowed` is whether anything may be encoded."""

    def __init__(self, width: int, *, allowed: bool) -> None:
        self.towers = SimpleNamespace(width=width)
        self._allowed = allowed

    def image_batches(self, items: Sequence[Any]) -> Iterator[tuple[Any, dict[int, str], Any]]:
        for places, features in self.text_batches(items):
            yield list(places), {}, features

    def text_batches(self, texts: Sequence[Any]) -> Iterator[tuple[range, Any]]:
        for start in range(0, len(texts), _BATCH):
            assert self._allowed, "the cache lacks features"
            places = range(start, min(start + _BATCH, len(texts)))
            features = torch.randn(len(places), self.towers.width)
            yield places, torch.nn.functional.normalize(features, dim=-1)


def _make_files(folder: Path, pairs: int) -> None:
    """Annotations and images."""
    (folder / "images").mkdir()
    files: list[dict[str, dict[str, str]]] = [{} for _ in CATEGORIES]
    for number in range(pairs):
        name = f"{number:012d}.jpg"
        (folder / "images" / name).write_bytes(f"image {number}".encode())
        files[number % len(files)][str(number)] = {
            "filename": name,
            "caption": f"a photo of the thing that has the number {number}",
            "negative_caption": f"a photo of the thing that lacks the number {number}",
        }
    for category, rows in zip(CATEGORIES, files, strict=True):
        (folder / f"{category}.json").write_text(json.dumps(rows))


def _evaluate(folder: Path, width: int, *, fill: bool) -> None:
    source: Any = _RandomSource(width, allowed=fill)
    cache = FeatureCache(source, folder / "features", model="random")
    request = TaskRequest(folder, ImageRoots(folder / "images"))
    result = TASKS["sugarcrepe"](request, cache)
    write_results(folder / "results.json", {"model": _MODEL}, {"sugarcrepe": result})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.folder is not None:
        _evaluate(arguments.folder, arguments.width, fill=False)
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu = used.ru_utime + used.ru_stime
        print(json.dumps({"CPU seconds": cpu, "peak GiB": used.ru_maxrss / 2**20}))  # KiB on Linux
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_files(folder, arguments.pairs)
        _evaluate(folder, arguments.width, fill=True)
        options = ["--width", str(arguments.width), "--threads", str(arguments.threads)]
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.evaluation", "--folder", name, *options],
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        seconds = time.perf_counter() - start
    row = {
        "pairs": arguments.pairs,
        "features": 3 * arguments.pairs,
        "width": arguments.width,
        "seconds": seconds,
        **json.loads(done.stdout.splitlines()[-1]),
    }
    record.save("evaluation_cpu", [row])


if __name__ == "__main__":
    main()
