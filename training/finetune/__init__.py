"""Fine-tuning of CLIP models: one training loop, shared by the commands and usable without them.

``finetune(model, loss, batches, config, out_dir=...)`` trains, logs, writes checkpoints and
resumes from them; see ``loop.py``.
"""

from .batch import Batch, BatchSource, MappedBatches
from .checkpoint import load_checkpoint, save_checkpoint
from .config import ConfigMismatchError, FinetuneConfig
from .gradient_cache import GradientCache
from .loop import FinetuneResult, TrainingInterrupted, finetune
from .objective import AddedParts, Encoder, encode, loss_terms
from .optimizer import build_optimizer, parameter_groups
from .shares import measured_shares
from .update import NonFiniteLossError

__all__ = [
    "AddedParts",
    "Batch",
    "BatchSource",
    "ConfigMismatchError",
    "Encoder",
    "FinetuneConfig",
    "FinetuneResult",
    "GradientCache",
    "MappedBatches",
    "NonFiniteLossError",
    "TrainingInterrupted",
    "build_optimizer",
    "encode",
    "finetune",
    "load_checkpoint",
    "loss_terms",
    "measured_shares",
    "parameter_groups",
    "save_checkpoint",
]
