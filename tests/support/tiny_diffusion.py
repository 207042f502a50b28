"""A diffusion pipeline of random weights that is made in a second, without a network."""

from __future__ import annotations

import json
import string
from pathlib import Path

import torch


def tiny_pipeline(folder: Path) -> str:
    """Saves a StableDiffusionImg2ImgPipeline; returns its folder."""
    from diffusers import (
        AutoencoderKL,
        EulerAncestralDiscreteScheduler,
        StableDiffusionImg2ImgPipeline,
        UNet2DConditionModel,
    )
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(0)
    letters = string.ascii_lowercase + string.digits
    pieces = [*letters, *(f"{one}</w>" for one in letters), "<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True)
    (folder / "vocab.json").write_text(json.dumps({one: at for at, one in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    first, last = len(pieces) - 2, len(pieces) - 1
    text = CLIPTextConfig(
        vocab_size=len(pieces), hidden_size=32, intermediate_size=37, num_hidden_layers=1,
        num_attention_heads=4, bos_token_id=first, eos_token_id=last, pad_token_id=last,
    )  # fmt: skip
    pipeline = StableDiffusionImg2ImgPipeline(
        vae=AutoencoderKL(
            block_out_channels=(16, 32),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            norm_num_groups=8,
        ),
        text_encoder=CLIPTextModel(text),
        tokenizer=CLIPTokenizer.from_pretrained(folder, model_max_length=77),
        unet=UNet2DConditionModel(
            sample_size=16,
            layers_per_block=1,
            block_out_channels=(16, 32),
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=32,
            norm_num_groups=8,
        ),
        # As of sdxl-turbo: every step draws noise.
        scheduler=EulerAncestralDiscreteScheduler(
            beta_schedule="scaled_linear",
            beta_start=0.00085,
            beta_end=0.012,
            steps_offset=1,
            timestep_spacing="trailing",
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(folder / "pipeline")
    return str(folder / "pipeline")
