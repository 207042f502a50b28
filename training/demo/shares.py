"""Where the gradient goes: the demo's measurement of arXiv 2604.13313, section 2."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from slipform_kernels import CementLoss, GradientShares, NegClipLoss, gradient_shares
from slipform_training.finetune import Batch, encode

from .config import DemoConfig
from .material import Material


@dataclass(frozen=True)
class ShareRow:
    """Means over the anchors that have hard negatives, for one batch size and margin.

    pull: 1 - p_+, the gradient on the positive's logit. hard, easy: the parts of the pull that
    come from the anchor's own hard negatives and from the rest of the batch; they add up to 1.
    """

    batch_size: int
    margin: float
    pull: float
    hard: float
    easy: float


def measure_shares(model: nn.Module, config: DemoConfig, material: Material) -> list[ShareRow]:
    """Gradient shares without and with Cement's margin at each of config.share_batches.

    The same training scenes are used throughout, cut into batches of each size, so the rows differ
    in nothing but the batch and the margin. The model must be in eval mode.
    """
    samples = max(config.share_batches)
    batch = material.branch_gather()(torch.arange(samples).numpy(), 0)
    with torch.no_grad():
        features = encode(model, batch, hard_texts=True)
        scale = model.logit_scale.exp()  # type: ignore[operator]
    rows = []
    for size in config.share_batches:
        for margin in (0.0, config.margin):
            parts = [
                _shares(features, batch, scale, slice(at, at + size), margin)
                for at in range(0, samples - size + 1, size)
            ]
            pull, hard, easy = (torch.cat(column) for column in zip(*parts, strict=True))
            anchors = batch.hard_mask[: len(pull)].any(1)  # type: ignore[index]
            total = pull[anchors].sum()
            rows.append(
                ShareRow(
                    batch_size=size,
                    margin=margin,
                    pull=pull[anchors].mean().item(),
                    hard=(hard[anchors].sum() / total).item(),
                    easy=(easy[anchors].sum() / total).item(),
                )
            )
    return rows


def _shares(
    features: dict[str, torch.Tensor],
    batch: Batch,
    scale: torch.Tensor,
    part: slice,
    margin: float,
) -> GradientShares:
    inputs = {name: value[part] for name, value in features.items()}
    image, text = inputs.pop("image_features"), inputs.pop("text_features")
    inputs["hard_mask"] = batch.hard_mask[part]  # type: ignore[index]
    if margin == 0.0:
        return gradient_shares(**NegClipLoss().layout(image, text, scale, **inputs))
    inputs["concreteness"] = batch.concreteness[part]  # type: ignore[index]
    loss = CementLoss(margin=margin)
    return gradient_shares(**loss.layout(image, text, scale, **inputs))
