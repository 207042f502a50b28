"""ConcretePlant: hard captions by replacing concrete words (arXiv 2604.13313)."""

from slipform_training.concreteplant.anchors import Candidate, load_pipeline
from slipform_training.concreteplant.corpus import CorpusRewriter
from slipform_training.concreteplant.inventory import Inventory
from slipform_training.concreteplant.lexicon import Lexicon, load_lexicon, read_lexicon
from slipform_training.concreteplant.llm import LlmOptions, LlmRewriter
from slipform_training.concreteplant.miner import ConcretePlant, MinerOptions, Mining
from slipform_training.concreteplant.rewrite import HardCaption, WordInventory
from slipform_training.concreteplant.rewriters import Job, Refusal, Rewriter
from slipform_training.concreteplant.wordnet import WordNet, WordNetRewriter

__all__ = [
    "Candidate",
    "ConcretePlant",
    "CorpusRewriter",
    "HardCaption",
    "Inventory",
    "Job",
    "Lexicon",
    "LlmOptions",
    "LlmRewriter",
    "MinerOptions",
    "Mining",
    "Refusal",
    "Rewriter",
    "WordInventory",
    "WordNet",
    "WordNetRewriter",
    "load_lexicon",
    "load_pipeline",
    "read_lexicon",
]
