"""ConcretePlant: hard captions by replacing concrete words (arXiv 2604.13313)."""

from slipform_training.concreteplant.anchors import Candidate, load_pipeline
from slipform_training.concreteplant.lexicon import Lexicon, load_lexicon
from slipform_training.concreteplant.miner import ConcretePlant, MinerOptions, Mining
from slipform_training.concreteplant.rewrite import HardCaption, WordInventory

__all__ = [
    "Candidate",
    "ConcretePlant",
    "HardCaption",
    "Lexicon",
    "MinerOptions",
    "Mining",
    "WordInventory",
    "load_lexicon",
    "load_pipeline",
]
