"""`slipform train --objective macco` on samples with random masks, for a process to be killed.

python -m support.macco_run SETTINGS.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from slipform_training.train import TrainConfig, run_training
from slipform_training.train.material import Material


def with_masks(row: Any) -> Any:
    """Material._row that adds masks, which follow from the epoch and the sample's number."""

    def masked(self: Material, epoch: int, number: int) -> dict[str, torch.Tensor]:
        found = row(self, epoch, number)
        generator = torch.Generator().manual_seed(1000 * epoch + number)
        found["word_mask"] = torch.rand(found["texts"].shape, generator=generator) < 0.2
        found["word_mask"] &= found["texts"] > 0
        found["patch_mask"] = torch.rand(4, generator=generator) < 0.4
        return found

    return masked


if __name__ == "__main__":
    torch.set_num_threads(1)
    Material._row = with_masks(Material._row)  # type: ignore[method-assign]
    run_training(TrainConfig(**json.loads(Path(sys.argv[1]).read_text())))
