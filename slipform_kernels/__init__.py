"""Fused contrastive losses: the image-text similarity matrix is used, and never stored."""

from importlib.metadata import PackageNotFoundError, version

from .clip_loss import ClipLoss
from .diagnostics import GradientShares, gradient_shares
from .functional import two_way_cross_entropy
from .losses import CementLoss, NegClipLoss, TripletClipLoss
from .margin import concreteness_margin
from .siglip import SigLipLoss

try:
    __version__ = version("slipform-kernels")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0+unknown"

__all__ = [
    "CementLoss",
    "ClipLoss",
    "GradientShares",
    "NegClipLoss",
    "SigLipLoss",
    "TripletClipLoss",
    "__version__",
    "concreteness_margin",
    "gradient_shares",
    "two_way_cross_entropy",
]
