"""The settings of the MACCO objective."""

from __future__ import annotations

import math
from dataclasses import dataclass

TERMS = ("mca", "mir", "mlm", "mim")


@dataclass(frozen=True, kw_only=True)
class MaccoConfig:
    """Settings of MACCO (arXiv 2606.13288); the defaults are the paper's for ViT-B/32.

    mca, mir, mlm, mim: weights of masked cross-modal alignment, masked intra-modal regularisation,
    masked words and masked patches. 0 switches a term off, and nothing is computed for it; without
    mca, the alignment of full images and captions stays, with weight 1.
    text_layers, image_layers: cross blocks of the predictors of words and of patches; the paper has
    2 and 3, and 4 and 6 for ViT-B/16 and ViT-L/14. heads: of their attention.
    predictor_lr: peak learning rate of predictors and mask tokens. predictor_weight_decay: AdamW's
    for them, gains and biases excepted.

    Raises ValueError for a setting out of range; the message has its name, value and range.
    """

    mca: float = 1.0
    mir: float = 0.1
    mlm: float = 20.0
    mim: float = 250.0
    text_layers: int = 2
    image_layers: int = 3
    heads: int = 8
    predictor_lr: float = 1e-3
    predictor_weight_decay: float = 0.01

    def __post_init__(self) -> None:
        decay = self.predictor_weight_decay
        rules = (
            *((name, 0 <= getattr(self, name) < math.inf, "finite, at least 0") for name in TERMS),
            ("text_layers", self.text_layers >= 1, "at least 1"),
            ("image_layers", self.image_layers >= 1, "at least 1"),
            ("heads", self.heads >= 1, "at least 1"),
            ("predictor_lr", 0 < self.predictor_lr < math.inf, "a finite number above 0"),
            ("predictor_weight_decay", 0 <= decay < math.inf, "finite and at least 0"),
        )
        for name, valid, expected in rules:
            if not valid:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected {expected}")
        if not any(getattr(self, name) for name in TERMS):
            raise ValueError(f"{', '.join(TERMS)}: got 0 for all, expected one above 0")

    @property
    def aligns(self) -> bool:
        """Whether masked images and captions are aligned: MCA or MIR."""
        return self.mca > 0 or self.mir > 0

    @property
    def masks_words(self) -> bool:
        """Whether masked captions are encoded."""
        return self.aligns or self.mlm > 0

    @property
    def masks_patches(self) -> bool:
        """Whether masked images are encoded."""
        return self.aligns or self.mim > 0
