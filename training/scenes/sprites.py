"""Sprites, tinted and resized once and kept ready for compositing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from slipform_training.scenes.config import SceneConfig
from slipform_training.scenes.nouns import Noun, sprite_path

# The longer side of a large sprite, as a share of the picture, where it has half of the picture.
LARGE = 0.47
SMALL_TO_LARGE = 0.65

# How far a tint goes towards black and white at the ends of the luminance range. Not all the way:
# a dark or pale part must still show its colour.
DARKEST = 0.30
PALEST = 0.72

LUMINANCE = np.array([0.299, 0.587, 0.114], dtype=np.float32)


@dataclass(frozen=True)
class Sprite:
    """A tinted sprite, cropped to what is visible.

    Attributes:
        colour: float32 [h, w, 3], 0 to 255, multiplied by the opacity.
        clear: float32 [h, w, 1], 1 minus the opacity.
    """

    colour: NDArray[np.float32]
    clear: NDArray[np.float32]

    @property
    def height(self) -> int:
        """In pixels."""
        return int(self.colour.shape[0])

    @property
    def width(self) -> int:
        """In pixels."""
        return int(self.colour.shape[1])


def longer_side(resolution: int, *, size: str, objects: int) -> int:
    """The longer side in pixels of a sprite in a picture with that many objects.

    All objects but one share a row or a column, so sprites get smaller with more of them.
    """
    side = resolution * min(LARGE, 0.94 / (objects - 1))
    return max(1, round(side if size == "large" else side * SMALL_TO_LARGE))


class SpriteBank:
    """All sprites of a configuration, made when first asked for.

    Args:
        config: names the nouns, the colours and the resolution.
    """

    def __init__(self, config: SceneConfig) -> None:
        self._resolution = config.resolution
        self._nouns = {noun.name: noun for noun in config.nouns}
        self._tints = {colour.name: colour.rgb for colour in config.colours}
        self._made: dict[tuple[str, str, str, int], Sprite] = {}

    def sprite(self, noun: str, *, colour: str, size: str, objects: int) -> Sprite:
        """The sprite for a picture with that many objects.

        Raises:
            KeyError: a noun or colour that the configuration lacks.
            RuntimeError, FileNotFoundError: the picture is missing, see sprite_path.
        """
        key = (noun, colour, size, objects)
        made = self._made.get(key)
        if made is None:
            side = longer_side(self._resolution, size=size, objects=objects)
            made = _make(self._nouns[noun], self._tints[colour], side)
            self._made[key] = made
        return made


def _make(noun: Noun, rgb: tuple[int, int, int], side: int) -> Sprite:
    picture = Image.open(sprite_path(noun)).convert("RGBA")
    box = picture.getchannel("A").point(lambda alpha: 255 * (alpha > 8)).getbbox()
    picture = picture.crop(box)
    factor = side / max(picture.size)
    # Premultiplied, so that invisible pixels' colours do not bleed into the edges.
    small = picture.convert("RGBa").resize(
        (max(1, round(picture.width * factor)), max(1, round(picture.height * factor))),
        Image.Resampling.LANCZOS,
    )
    pixels = np.asarray(small.convert("RGBA"), dtype=np.float32)
    alpha = np.asarray(pixels[..., 3:] / 255, dtype=np.float32)
    tinted = tint(pixels[..., :3], alpha=alpha[..., 0], rgb=rgb)
    return Sprite(colour=tinted * alpha, clear=np.asarray(1 - alpha, dtype=np.float32))


def tint(
    pixels: NDArray[np.float32], *, alpha: NDArray[np.float32], rgb: tuple[int, int, int]
) -> NDArray[np.float32]:
    """Colours a picture by its luminance.

    Luminances are shifted so that the visible pixels' mean is the tint itself, else a dark sprite
    would be near black in any colour; from there they run to a darker and to a paler tint.

    Args:
        pixels: float32 [h, w, 3], 0 to 255.
        alpha: float32 [h, w], 0 to 1.
        rgb: the tint, 0 to 255.

    Returns:
        float32 [h, w, 3], 0 to 255.
    """
    luminance = pixels @ LUMINANCE / 255
    mean = float((luminance * alpha).sum() / max(float(alpha.sum()), 1e-6))
    level = np.clip((luminance - mean) / 0.5, -1, 1)[..., None]
    middle = np.array(rgb, dtype=np.float32)
    dark = middle * DARKEST
    pale = 255 - (255 - middle) * (1 - PALEST)
    towards = np.where(level < 0, middle - dark, pale - middle)
    return np.asarray(middle + level * towards, dtype=np.float32)
