"""The demo's model: open_clip's CLIP class, at a size that a laptop trains in minutes."""

from __future__ import annotations

import torch
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg


def build_model(*, vocab_size: int, context_length: int, resolution: int, seed: int) -> CLIP:
    """A CLIP of 1.8 million parameters with weights drawn from `seed`.

    Image tower: a ModifiedResNet with layers (1, 1, 1, 1), width 16, attention pooling. Text
    tower: 2 layers, width 128. Both into 64 dimensions; the logit scale starts at 1 / 0.07.
    """
    torch.manual_seed(seed)
    model = CLIP(
        64,
        CLIPVisionCfg(image_size=resolution, layers=(1, 1, 1, 1), width=16, head_width=64),
        CLIPTextCfg(
            context_length=context_length, vocab_size=vocab_size, width=128, heads=4, layers=2
        ),
    )
    # Convolutions of this size run about 1.3 times as fast on CPUs in this layout.
    return model.to(memory_format=torch.channels_last)
