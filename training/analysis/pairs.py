"""A model's features of images, captions and hard captions: encoded once, measured many times."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from slipform_training.finetune import Batch, encode


@dataclass(frozen=True)
class HardPairs:
    """N images with a caption and up to K hard captions each, as a model sees them.

    label: what figures call the model. images, texts: fp32 [N, D], unit norm. hard: fp32 [N, K, D].
    mask: bool [N, K], false where there is no hard caption. concreteness: fp32 [N, K], 1 to 5, or
    None where the data have no ratings. scale: the model's logit scale.
    """

    label: str
    images: Tensor
    texts: Tensor
    hard: Tensor
    mask: Tensor
    concreteness: Tensor | None
    scale: float

    def __len__(self) -> int:
        return len(self.images)

    def features(self, numbers: Tensor) -> dict[str, Tensor]:
        """The samples of int64 `numbers` as arguments of a loss, by name, without concreteness."""
        return {
            "image_features": self.images[numbers],
            "text_features": self.texts[numbers],
            "hard_text_features": self.hard[numbers],
            "hard_mask": self.mask[numbers],
            "logit_scale": torch.tensor(self.scale),
        }


@torch.no_grad()
def encode_pairs(
    label: str,
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    rated: bool,
    device: str = "cpu",
    progress: Callable[[int], None] = lambda samples: None,
) -> HardPairs:
    """The features of all batches, which have hard_texts and hard_mask; the model goes to `device`.

    rated: whether the batches' concreteness is of the data, and not made up.
    """
    model.eval().to(device)
    columns: dict[str, list[Tensor]] = {}
    for batch in batches:
        features = encode(model, batch.to(torch.device(device)), hard_texts=True)
        found = {**features, "mask": batch.hard_mask, "concreteness": batch.concreteness}
        for name, value in found.items():
            if value is not None:
                columns.setdefault(name, []).append(value.cpu())
        progress(len(batch))
    joined = {name: torch.cat(parts) for name, parts in columns.items()}
    return HardPairs(
        label=label,
        images=joined["image_features"].float(),
        texts=joined["text_features"].float(),
        hard=joined["hard_text_features"].float(),
        mask=joined["mask"],
        concreteness=joined["concreteness"].float() if rated else None,
        scale=float(model.logit_scale.exp()),  # type: ignore[operator]
    )
