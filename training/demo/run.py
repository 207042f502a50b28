"""The demo from beginning to end."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

from .config import BAG, LABELS, DemoConfig, claim_folder
from .material import prepare
from .plots import draw_curves
from .report import INTRODUCTION, markdown_report, terminal_report
from .results import STAGES, Results, gather_results
from .shares import measure_shares
from .sheet import draw_choices
from .train import train_seed


def run_demo(
    config: DemoConfig, out_dir: Path, *, fresh: bool = False, progress: bool = True
) -> Results:
    """Train, compare and report; everything is written under `out_dir`.

    What an earlier call with the same settings finished there is not repeated, and what was
    interrupted is continued; `fresh` deletes it first.

    Raises ConfigMismatchError if `out_dir` holds a demo with other settings, ValueError if it
    holds other things, TrainingInterrupted on Ctrl-C, with the state saved.
    """
    claim_folder(config, out_dir, fresh=fresh)
    print(INTRODUCTION, flush=True)
    begin = time.perf_counter()
    material = prepare(config, out_dir, say=_say)
    seconds = {"scenes and mining": time.perf_counter() - begin}
    trained = [
        train_seed(config, material, seed=seed, out_dir=out_dir, progress=progress)
        for seed in range(config.seeds)
    ]
    for stage in STAGES:
        seconds[LABELS[stage]] = sum(models[stage].run.seconds for models in trained)
    seconds["tests"] = sum(models[stage].test_seconds for models in trained for stage in STAGES)
    begin = time.perf_counter()
    shares = measure_shares(trained[0][BAG].model, config, material)
    results = gather_results(config, trained, shares, seconds=seconds, mining=material.mining)
    draw_curves(out_dir / "curves.png", results, trained)
    draw_choices(out_dir / "sheet.png", material, trained[0])
    seconds = {**seconds, "shares and figures": time.perf_counter() - begin}
    results = replace(results, seconds=seconds)
    write_text(out_dir / "results.json", json.dumps(results.to_dict(), indent=2) + "\n")
    write_text(out_dir / "report.md", markdown_report(results))
    print("\n" + terminal_report(results, folder=str(out_dir)), flush=True)
    return results


def _say(line: str) -> None:
    print(line, flush=True)


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader finds the old or the new one, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
