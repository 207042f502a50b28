"""A study from beginning to end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slipform_training.demo import DemoConfig
from slipform_training.demo.config import BAG, claim_folder
from slipform_training.demo.material import Material, prepare
from slipform_training.demo.model import VIT_PATCH
from slipform_training.demo.run import write_text
from slipform_training.demo.train import accuracies, train_bag, train_branch
from slipform_training.macco import Macco

from .branches import Branch, Study
from .masks import masked_gather
from .plot import draw_contrasts
from .report import Outcome, markdown_report, terminal_report


def run_study(
    study: Study,
    config: DemoConfig,
    out_dir: Path,
    *,
    progress: bool = True,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Train every branch for every seed and compare; everything is written under `out_dir`.

    The folder may be a demo's with the same settings: what either finished there is not repeated,
    and what was interrupted is continued. The branches of a seed start from the same weights and
    see the same scenes in the same order, so their differences are taken seed by seed.

    Raises ConfigMismatchError if `out_dir` holds runs with other settings, ValueError if it holds
    other things, TrainingInterrupted on Ctrl-C, with the state saved.
    """
    claim_folder(config, out_dir)
    material = prepare(config, out_dir, say=say)
    accuracy: dict[str, dict[str, list[float]]] = {}
    for seed in range(config.seeds):
        start = train_bag(config, material, seed=seed, out_dir=out_dir, progress=progress)
        _add(accuracy, BAG, accuracies(start.evaluation))
        for branch in study.branches:
            own = _material_of(branch, material, out_dir, say=say)
            trained = train_branch(
                config,
                own,
                branch.full_loss(config),
                name=branch.name,
                label=branch.label,
                seed=seed,
                start=start.run.checkpoint,
                out_dir=out_dir,
                progress=progress,
                **masking(branch, own, seed),
            )
            _add(accuracy, branch.name, accuracies(trained.evaluation))
    outcome = Outcome(study=study, config=config, accuracy=accuracy)
    stem = f"study_{study.name}"
    draw_contrasts(out_dir / f"{stem}.png", outcome)
    write_text(out_dir / f"{stem}.json", json.dumps(outcome.to_dict(), indent=2) + "\n")
    write_text(out_dir / f"{stem}.md", markdown_report(outcome, picture=f"{stem}.png"))
    say(terminal_report(outcome))
    say(f"Written to {out_dir}: {stem}.md, {stem}.json, {stem}.png")
    return outcome


def _add(accuracy: dict[str, dict[str, list[float]]], stage: str, found: dict[str, float]) -> None:
    columns = accuracy.setdefault(stage, {})
    for category, value in found.items():
        columns.setdefault(category, []).append(value)


def masking(branch: Branch, material: Material, seed: int) -> dict[str, Any]:
    """What train_branch needs for a branch with MACCO's terms."""
    macco = branch.macco
    if macco is None:
        return {}
    return {
        "gather": masked_gather(
            material, seed=seed, patch=VIT_PATCH, random_masks=branch.random_masks
        ),
        "encoder": lambda model: Macco(model, macco),
    }


def _material_of(
    branch: Branch, material: Material, out_dir: Path, *, say: Callable[[str], None]
) -> Material:
    """The scenes with the hard captions that this branch sees; mined once, then read."""
    if branch.mining is None:
        return material
    path = out_dir / f"study_{branch.name}_hard_captions.json"
    return material.mined(branch.mining, path, say=lambda line: say(f"{branch.label}: {line}"))
