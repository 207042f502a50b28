"""Tests of compositional understanding: which of two captions does an image fit?"""

from slipform_training.evaluation.evaluator import (
    CategoryScore,
    Evaluation,
    PairScore,
    evaluate_pairs,
    open_image_folder,
)
from slipform_training.evaluation.sugarcrepe import (
    CATEGORIES,
    SUGARCREPE_SIZES,
    Pair,
    load_pairs,
    save_pairs,
    verify_sizes,
)

__all__ = [
    "CATEGORIES",
    "SUGARCREPE_SIZES",
    "CategoryScore",
    "Evaluation",
    "Pair",
    "PairScore",
    "evaluate_pairs",
    "load_pairs",
    "open_image_folder",
    "save_pairs",
    "verify_sizes",
]
