"""open_clip's training transform, with the crop that it took."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from torchvision.transforms import Compose, RandomResizedCrop
from torchvision.transforms import functional as F


class Crop(NamedTuple):
    """The part of an image that a transform kept: pixels of the image, turned upright.

    Attributes:
        left, top, width, height: of the part.
        image_width, image_height: of the whole.
    """

    left: int
    top: int
    width: int
    height: int
    image_width: int
    image_height: int


class RecordedCrop:
    """open_clip's training transform, whose first step is a random resized crop, which is told.

    The same draws give the same pixels as the transform itself, bit for bit.

    Args:
        transform: as open_clip.create_model_and_transforms gives it for training.

    Raises:
        ValueError: another transform, such as timm's, or that of evaluation.
    """

    def __init__(self, transform: Any) -> None:
        steps = transform.transforms if isinstance(transform, Compose) else []
        if not steps or type(steps[0]) is not RandomResizedCrop:
            raise ValueError(
                f"transform: got {transform}, expected open_clip's for training, which begins with "
                "a RandomResizedCrop"
            )
        self._crop: RandomResizedCrop = steps[0]
        self._rest = Compose(steps[1:])

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of what comes out, in pixels."""
        height, width = self._crop.size
        return int(height), int(width)

    def __call__(self, image: Any) -> tuple[Tensor, Crop]:
        """A PIL image -> float [3, H, W], and the part of the image that it shows."""
        top, left, height, width = self._crop.get_params(
            image, list(self._crop.scale), list(self._crop.ratio)
        )
        cropped = F.resized_crop(
            image,
            top,
            left,
            height,
            width,
            list(self._crop.size),
            self._crop.interpolation,
            antialias=self._crop.antialias,
        )
        return self._rest(cropped), Crop(left, top, width, height, *image.size)
