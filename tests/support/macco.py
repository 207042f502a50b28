"""A tiny CLIP with a rectangular grid, and batches with masks for it."""

from __future__ import annotations

from typing import Any

import torch
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

from slipform_training.finetune import Batch

GRID, PATCH = (2, 3), 8
PATCHES, CONTEXT, VOCABULARY, WIDTH = 6, 10, 50, 16


def tiny_clip(
    *,
    seed: int = 0,
    quick_gelu: bool = True,
    vision: dict[str, Any] | None = None,
    text: dict[str, Any] | None = None,
) -> CLIP:
    """Random weights, images of 16 x 24 pixels, captions of 10 of 50 tokens, 49 the last one."""
    torch.manual_seed(seed)
    vision_cfg = {"image_size": (16, 24), "patch_size": PATCH, "layers": 2, "width": 24}
    text_cfg = {"context_length": CONTEXT, "vocab_size": VOCABULARY, "width": 20, "heads": 2}
    clip = CLIP(
        WIDTH,
        CLIPVisionCfg(**vision_cfg, head_width=12, **(vision or {})),
        CLIPTextCfg(**text_cfg, layers=2, **(text or {})),
        quick_gelu=quick_gelu,
    )
    # open_clip leaves gains at 1 and biases at 0, where some mistakes would not show.
    with torch.no_grad():
        for parameter in clip.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return clip


def tiny_batch(
    count: int,
    *,
    seed: int = 0,
    words: float = 0.3,
    patches: float = 0.4,
    hard: int = 0,
) -> Batch:
    """Random samples; each token before the last and each patch is masked with that probability."""
    generator = torch.Generator().manual_seed(seed)
    texts = torch.randint(1, VOCABULARY - 1, (count, CONTEXT), generator=generator)
    texts[:, 7], texts[:, 8:] = VOCABULARY - 1, 0
    word_mask = torch.rand(count, CONTEXT, generator=generator) < words
    word_mask[:, 0], word_mask[:, 7:] = False, False
    more = {}
    if hard:
        hard_texts = torch.randint(1, VOCABULARY - 1, (count, hard, CONTEXT), generator=generator)
        hard_texts[..., 7] = VOCABULARY - 1
        more = {
            "hard_texts": hard_texts,
            "concreteness": torch.rand(count, hard, generator=generator) * 4 + 1,
            "hard_mask": torch.rand(count, hard, generator=generator) < 0.7,
        }
    return Batch(
        images=torch.randn(count, 3, 16, 24, generator=generator),
        texts=texts,
        word_mask=word_mask,
        patch_mask=torch.rand(count, PATCHES, generator=generator) < patches,
        **more,
    )
