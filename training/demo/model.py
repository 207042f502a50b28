"""The demo's models: open_clip's CLIP class, at sizes that a laptop trains in minutes."""

from __future__ import annotations

from itertools import pairwise

import torch
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg
from torch import nn

VIT_PATCH = 16
_VIT_WIDTH = 128


def build_model(
    image_tower: str = "resnet",
    *,
    vocab_size: int,
    context_length: int,
    resolution: int,
    seed: int,
) -> CLIP:
    """A CLIP of about 2 million parameters with weights drawn from `seed`.

    Image tower "resnet": a ModifiedResNet with layers (1, 1, 1, 1), width 16, attention pooling;
    "vit": a vision transformer of 2 layers and width 128 over patches of 16 pixels, with average
    pooling, whose patch embedding is a stack of convolutions (Xiao et al. 2021, arXiv 2106.14881):
    from so few pictures a plain one learned colours and no shapes. Text tower: 2 layers, width 128.
    Both into 64 dimensions; the logit scale starts at 1 / 0.07.
    """
    torch.manual_seed(seed)
    if image_tower == "vit":
        vision = CLIPVisionCfg(
            image_size=resolution,
            layers=2,
            width=_VIT_WIDTH,
            head_width=32,
            patch_size=VIT_PATCH,
            pool_type="avg",
        )
    else:
        vision = CLIPVisionCfg(image_size=resolution, layers=(1, 1, 1, 1), width=16, head_width=64)
    text = CLIPTextCfg(
        context_length=context_length, vocab_size=vocab_size, width=128, heads=4, layers=2
    )
    model = CLIP(64, vision, text)
    if image_tower == "vit":
        model.visual.conv1 = _patch_embedding()
    # Convolutions of this size run about 1.3 times as fast on CPUs in this layout.
    return model.to(memory_format=torch.channels_last)


def _patch_embedding() -> nn.Sequential:
    """[N, 3, H, W] -> [N, _VIT_WIDTH, H / 16, W / 16], in place of the one product of a ViT."""
    channels = (3, 24, 48, 96, 192)
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [
            nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers, nn.Conv2d(channels[-1], _VIT_WIDTH, 1, bias=False))
