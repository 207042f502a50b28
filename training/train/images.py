"""Files of images into RGB, upright; anything that cannot be read is a SampleError."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from .samples import SampleError
from .shards import read_span


def load_image(path: Path, span: Sequence[int] = ()) -> Image.Image:
    """The image in `path` as RGB of 8 bits, turned as its EXIF orientation says.

    span: place and size of the image in the file, if it is an archive.

    Grey-scale, palette and CMYK images are converted, 16 bits are reduced to 8, transparent parts
    become white, and of several frames the first is taken.

    Raises SampleError "missing file" or "unreadable image" that names the file.
    """
    try:
        if not path.is_file():
            raise SampleError("missing file", str(path), "no such file")
        source = io.BytesIO(read_span(path, (span[0], span[1]))) if span else path
        with Image.open(source) as image:
            image.load()
            return _rgb(ImageOps.exif_transpose(image))
    except (SampleError, MemoryError):
        raise
    except Exception as error:  # Pillow's readers raise whatever a broken file leads them to.
        raise SampleError(
            "unreadable image", str(path), f"{error} ({type(error).__name__})"
        ) from error


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("grey values outside 16 bits")
        return Image.fromarray((values.astype(np.int64) // 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("grey values as floating point have no fixed range")
    if "transparency" in image.info or "A" in image.getbands() or "a" in image.getbands():
        coloured = image.convert("RGBA")
        white = Image.new("RGBA", coloured.size, "white")
        return Image.alpha_composite(white, coloured).convert("RGB")
    return image.convert("RGB")
