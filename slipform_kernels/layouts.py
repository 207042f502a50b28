"""How losses with hard negatives lay out rows, columns, targets and margins."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .validation import check_matrix, scalar

Layout = dict[str, Any]


def pairs_layout(
    images: Tensor, texts: Tensor, scale: Tensor | float, bias: Tensor | float | None
) -> Layout:
    """N images against their N captions, both [N, D]; the diagonal holds the positives.

    Raises TypeError or ValueError in the names of the losses' arguments.
    """
    check_features(images, scale, bias, text_features=texts)
    return {"rows": images, "cols": texts, "scale": scale, "bias": bias}


def captions_layout(
    images: Tensor,
    texts: Tensor,
    scale: Tensor | float,
    hard_texts: Tensor,
    hard_mask: Tensor | None,
    bias: Tensor | float | None,
    margin: Tensor | None = None,
) -> Layout:
    """N images against N captions and N K hard captions; caption j's row is image j.

    Args:
        images, texts: [N, D].
        hard_texts: [N, K, D] or [N, D]; column N + i K + k is the hard caption k of image i.
        hard_mask: bool [N, K] or [N]; a missing one's column is taken out by a bias of -inf.
        margin: [N, K], cosine units, or None for 0.
    """
    check_features(images, scale, bias, text_features=texts)
    hard_texts = check_hard_texts(hard_texts, texts)
    N, K, D = hard_texts.shape
    mask = check_mask(hard_mask, N, K, images.device)
    device = images.device
    hard_cols = N + torch.arange(N * K, device=device).view(N, K)
    anchors = torch.arange(N, device=device)
    if mask is not None:
        hard_cols = torch.where(mask, hard_cols, -1)
        present = torch.cat([mask.new_ones(N), mask.flatten()])
        bias = torch.where(present, 0.0 if bias is None else bias, -torch.inf)
    return {
        "rows": images,
        "cols": torch.cat([texts, hard_texts.reshape(N * K, D)]),
        "scale": scale,
        "bias": bias,
        "row_target": anchors,
        "col_target": torch.cat([anchors, anchors.new_full((N * K,), -1)]),
        "hard_cols": hard_cols,
        "margin": margin,
    }


def paired_layout(
    images: Tensor,
    texts: Tensor,
    scale: Tensor | float,
    hard_texts: Tensor,
    hard_images: Tensor | None,
    hard_mask: Tensor | None,
    bias: Tensor | float | None,
    margin: Tensor,
) -> Layout:
    """[images; hard images] against [captions; hard captions]; each has its twin as hard negative.

    With a mask, only the M samples that have a hard negative add rows and columns; finding them
    synchronises with the device.

    Args:
        images, texts, hard_images: [N, D].
        hard_texts: [N, 1, D] or [N, D].
        hard_mask: bool [N, 1] or [N].
        margin: [N, 1], cosine units.
    """
    if hard_images is None:
        raise ValueError(
            'hard_image_features: got None with layout="paired"; expected [N, D], or '
            'CementLoss(layout="captions")'
        )
    check_features(images, scale, bias, text_features=texts, hard_image_features=hard_images)
    hard_texts = check_hard_texts(hard_texts, texts)
    N, K, _ = hard_texts.shape
    if K != 1:
        raise ValueError(
            f'hard_text_features: got K = {K} with layout="paired"; expected K = 1, one hard '
            "caption for each hard image"
        )
    mask = check_mask(hard_mask, N, K, images.device)
    twin_texts = hard_texts[:, 0]
    anchors = torch.arange(N, device=images.device)
    partner = N + anchors
    if mask is not None:
        kept = mask[:, 0].nonzero()[:, 0]
        twins = N + torch.arange(len(kept), device=kept.device)
        partner = torch.full_like(anchors, -1).scatter(0, kept, twins)
        anchors, hard_images, twin_texts = kept, hard_images[kept], twin_texts[kept]
    return {
        "rows": torch.cat([images, hard_images]),
        "cols": torch.cat([texts, twin_texts]),
        "scale": scale,
        "bias": bias,
        "row_target": None,
        "col_target": None,
        "hard_cols": torch.cat([partner, anchors])[:, None],
        "margin": torch.cat([margin, margin[anchors]]),
    }


def check_features(
    images: Tensor, scale: Tensor | float, bias: Tensor | float | None, **others: Tensor
) -> None:
    """All features [N, D] of one dtype and device, row by row; scale and bias scalars.

    Errors name the losses' arguments, which the primitive knows as rows, cols, scale and bias.
    """
    check_matrix("image_features", images, "[N, D]")
    for name, value in others.items():
        check_matrix(name, value, "[N, D]")
        if value.shape != images.shape:
            raise ValueError(
                f"{name}: got shape {list(value.shape)}; expected that of image_features, "
                f"{list(images.shape)}"
            )
        _check_kind(name, value, images)
    scalar("logit_scale", scale, images.device, torch.float32)
    if bias is not None:
        scalar("logit_bias", bias, images.device, torch.float32)


def _check_kind(name: str, value: Tensor, images: Tensor) -> None:
    """Device and dtype of the image features; under autocast the dtype may differ."""
    if value.device != images.device:
        raise ValueError(
            f"{name}: got device {value.device}; expected {images.device}, that of image_features"
        )
    device_type = images.device.type
    autocast = device_type != "meta" and torch.is_autocast_enabled(device_type)
    if value.dtype != images.dtype and not autocast:
        raise TypeError(
            f"{name}: got dtype {value.dtype}; expected {images.dtype}, that of image_features"
        )


def check_hard_texts(hard_texts: Tensor, texts: Tensor) -> Tensor:
    """Hard captions as [N, K, D]."""
    if not isinstance(hard_texts, Tensor):
        raise TypeError(
            f"hard_text_features: got {type(hard_texts).__name__}; expected a tensor [N, K, D]"
        )
    N, D = texts.shape
    shape = hard_texts.shape
    if not (hard_texts.ndim in (2, 3) and shape[0] == N and shape[-1] == D and shape[1] > 0):
        raise ValueError(
            f"hard_text_features: got shape {list(shape)}; expected [N, K, D] or [N, D] with "
            f"N = {N}, D = {D}, K >= 1"
        )
    _check_kind("hard_text_features", hard_texts, texts)
    return hard_texts[:, None] if hard_texts.ndim == 2 else hard_texts


def check_mask(mask: Tensor | None, N: int, K: int, device: torch.device) -> Tensor | None:
    """A mask [N, K] from [N, K], or from [N] where K = 1."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"hard_mask: got {got}; expected a bool tensor")
    return _per_hard("hard_mask", mask, N, K, device)


def check_concreteness(concreteness: Tensor, N: int, K: int, device: torch.device) -> Tensor:
    """Ratings [N, K] from [N, K], or from [N] where K = 1."""
    if not isinstance(concreteness, Tensor):
        raise TypeError(f"concreteness: got {type(concreteness).__name__}; expected a tensor")
    return _per_hard("concreteness", concreteness, N, K, device)


def _per_hard(name: str, value: Tensor, N: int, K: int, device: torch.device) -> Tensor:
    if value.device != device:
        raise ValueError(
            f"{name}: got device {value.device}; expected {device}, that of image_features"
        )
    if value.shape == (N,) and K == 1:
        return value[:, None]
    if value.shape != (N, K):
        raise ValueError(
            f"{name}: got shape {list(value.shape)}; expected [N, K] = [{N}, {K}]"
            + (f" or [{N}]" if K == 1 else "")
        )
    return value
