"""Hard images: pictures of hard captions, made from the caption's own picture."""

from slipform_training.hard_images.report import ImageReport
from slipform_training.hard_images.run import make_hard_images
from slipform_training.hard_images.settings import HardImageSettings

__all__ = ["HardImageSettings", "ImageReport", "make_hard_images"]
