"""Training of open_clip models on files of images and captions: what ``slipform train`` does.

``run_training(TrainConfig(...))`` is the whole command; ``load_model(path)`` opens what it wrote.
The loop itself is ``slipform_training.finetune``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import TrainConfig

if TYPE_CHECKING:
    from .model import load_model
    from .run import run_training

__all__ = ["TrainConfig", "load_model", "run_training"]


def __getattr__(name: str) -> Any:
    """Import torch when it is needed, not where the command line only lists its options."""
    if name == "run_training":
        from .run import run_training

        return run_training
    if name == "load_model":
        from .model import load_model

        return load_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
