"""Where the gradient goes, for the log: to the anchors' own hard negatives, or to the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from slipform_kernels import CementLoss, ClipLoss, NegClipLoss, gradient_shares

from .ranks import joined

# Given to a loss once for all samples.
_SHARED = ("logit_scale", "logit_bias")


@torch.no_grad()
def measured_shares(loss: nn.Module, features: Mapping[str, Tensor]) -> dict[str, float]:
    """Gradient shares of a batch, as means over its image anchors (arXiv 2604.13313, section 2).

    share_pull: 1 - p_+, the pull on the positive. With hard captions also share_hard and
    share_easy, its parts from the anchor's own hard captions and from the rest of the batch, which
    add up to 1; then only anchors that have hard captions count, and without any the result is
    empty. So it is for losses that have no such shares (all but ClipLoss, NegClipLoss, CementLoss).

    features: arguments of the loss by name. Where the loss is over ranks, so are the shares, and
    every rank must call this, with as many samples.
    """
    if type(loss) not in (ClipLoss, NegClipLoss, CementLoss):
        return {}
    group = loss.ranks()  # type: ignore[operator]
    named: dict[str, Any] = {
        name: value.detach() if name in _SHARED else joined(value.detach(), group)
        for name, value in features.items()
    }
    # Autocast leaves towers in the dtypes of their last layers, which may differ.
    towers = [name for name in named if name.endswith("_features")]
    if len({named[name].dtype for name in towers}) > 1:
        named.update({name: named[name].float() for name in towers})
    layout = loss.layout(  # type: ignore[operator]
        named.pop("image_features"), named.pop("text_features"), named.pop("logit_scale"), **named
    )
    shares = gradient_shares(**layout, precision=loss.precision, backend=loss.backend)  # type: ignore[arg-type]
    if isinstance(loss, ClipLoss):
        return {"share_pull": shares.positive.mean().item()}
    anchors = torch.ones_like(shares.positive, dtype=torch.bool)
    if "hard_mask" in named:
        # Paired, hard images follow the images as anchors: those that there are.
        mask = named["hard_mask"].reshape(len(named["hard_mask"]), -1).any(1)
        anchors[: len(mask)] = mask
    pull = shares.positive[anchors]
    if not len(pull) or pull.sum() <= 0:
        return {}
    return {
        "share_pull": pull.mean().item(),
        "share_hard": (shares.hard[anchors].sum() / pull.sum()).item(),
        "share_easy": (shares.easy[anchors].sum() / pull.sum()).item(),
    }
