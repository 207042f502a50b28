"""diffusers' image-to-image pipelines, batched, with noise that belongs to the sample."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from slipform_training.hard_images.settings import HardImageSettings
from slipform_training.train.model import select_device

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class HardImagePipeline:
    """An image-to-image model, loaded.

    Raises:
        RuntimeError: a package is missing.
        ValueError: the model cannot be loaded, or torch has no such device.
    """

    def __init__(self, settings: HardImageSettings) -> None:
        try:
            from diffusers import AutoPipelineForImage2Image
        except ImportError as error:
            raise RuntimeError(
                "hard images need packages that are not installed; install them with: "
                f'pip install "slipform-kernels[images]" ({error})'
            ) from error
        self._settings = settings
        device = select_device(settings.device)
        precision = settings.precision
        if precision == "auto":
            precision = "fp16" if device.startswith("cuda") else "fp32"
        try:
            with warnings.catch_warnings():
                # Of torch_dtype's new name, which diffusers of two years ago do not know.
                warnings.filterwarnings("ignore", "`torch_dtype` is deprecated")
                pipeline = AutoPipelineForImage2Image.from_pretrained(
                    settings.model,
                    torch_dtype=_DTYPES[precision],
                    variant=settings.variant,
                    local_files_only=Path(settings.model).is_dir(),
                )
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"model: got {settings.model!r}, which cannot be loaded: {reason}"
            ) from error
        # It would blacken images, and marks would tell hard images from others.
        for unwanted in ("safety_checker", "watermark"):
            if getattr(pipeline, unwanted, None) is not None:
                setattr(pipeline, unwanted, None)
        pipeline.set_progress_bar_config(disable=True)
        self._pipeline: Any = pipeline.to(device)

    def make(
        self, images: Sequence[Image.Image], captions: Sequence[str], seeds: Sequence[int]
    ) -> list[Image.Image | None]:
        """An image of each caption, made from the image; None where the model gave no numbers.

        Args:
            images: RGB; the largest square in their middle is used, scaled to `size`.
            captions: as many.
            seeds: as many, of the noise; it is drawn on the CPU, alike on every device.
        """
        settings = self._settings
        side = (settings.size, settings.size)
        with warnings.catch_warnings():
            # Numbers that are not finite are found below.
            warnings.filterwarnings("ignore", "invalid value encountered in cast")
            found = self._pipeline(
                prompt=list(captions),
                image=[ImageOps.fit(image, side, Image.Resampling.LANCZOS) for image in images],
                strength=settings.strength,
                num_inference_steps=settings.steps,
                guidance_scale=settings.guidance,
                generator=[torch.Generator().manual_seed(seed) for seed in seeds],
                output_type="np",
            ).images
        return [_as_image(one) if np.isfinite(one).all() else None for one in found]


def _as_image(values: np.ndarray[Any, Any]) -> Image.Image:
    return Image.fromarray((values.clip(0, 1) * 255).round().astype(np.uint8))
