"""Features of all tokens of open_clip's CLIP, with learnt vectors in place of masked ones.

They come from the model's own public forward_intermediates; masking is a forward hook on the module
that makes the embeddings, before the positional embedding is added.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from typing import NamedTuple

import torch
from open_clip.model import CLIP
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn


class Masking(NamedTuple):
    """mask: bool [N, S], true at masked tokens. token: [1, 1, width], what their embeddings are."""

    mask: Tensor
    token: Tensor


class TokenFeatures(NamedTuple):
    """Last-layer features in the common space, not normalised.

    pooled: [N, D], what encode_image or encode_text returns (of CLS, of EOT). tokens: [N, S, D], of
    the S patches (without CLS) or of all S text positions.
    """

    pooled: Tensor
    tokens: Tensor

    def with_global(self) -> Tensor:
        """Global-to-local injection, [N, S, D]: the mean of each token and its sequence's g."""
        return (self.tokens + self.pooled[:, None]) / 2

    def split(self, sizes: list[int]) -> list[TokenFeatures]:
        """The features of consecutive parts of the batch."""
        parts = zip(self.pooled.split(sizes), self.tokens.split(sizes), strict=True)
        return [TokenFeatures(*part) for part in parts]


def check_clip(clip: nn.Module) -> CLIP:
    """The same model, if its tokens can be masked and read.

    Raises TypeError for a model other than open_clip's CLIP with a VisionTransformer, and
    ValueError for one with attentional pooling, patch dropout or without projections.
    """
    if not isinstance(clip, CLIP):
        raise TypeError(
            f"clip: got {type(clip).__name__}, expected open_clip's CLIP (its CustomTextCLIP and "
            "others keep their tokens elsewhere)"
        )
    if not isinstance(clip.visual, VisionTransformer):
        raise TypeError(
            f"clip.visual: got {type(clip.visual).__name__}, expected open_clip's VisionTransformer"
        )
    rules = (
        ("visual.attn_pool", clip.visual.attn_pool is None, "None: no attentional pooling"),
        ("visual.patch_dropout", type(clip.visual.patch_dropout) is nn.Identity, "none"),
        ("visual.proj", clip.visual.proj is not None, "a projection"),
        ("text_projection", clip.text_projection is not None, "a projection"),
        ("visual.pool_type", clip.visual.pool_type != "none", "one vector an image"),
        ("text_pool_type", clip.text_pool_type != "none", "one vector a caption"),
    )
    for name, valid, expected in rules:
        if not valid:
            raise ValueError(f"clip.{name}: got {attrgetter(name)(clip)}, expected {expected}")
    return clip


def image_features(clip: CLIP, images: Tensor, masking: Masking | None = None) -> TokenFeatures:
    """Features of images [N, 3, H, W] and of their P patches, row by row of the grid.

    Raises ValueError for a mask other than bool [N, P].
    """
    visual = clip.visual
    rows, columns = visual.grid_size
    masked: AbstractContextManager[None] = nullcontext()
    if masking is not None:
        mask, token = masking
        _check_mask("patch_mask", mask, (len(images), rows * columns))
        # The convolution's output is [N, width, rows, columns].
        masked = _masked(visual.conv1, mask.view(-1, 1, rows, columns), token.view(1, -1, 1, 1))
    with masked:
        out = clip.forward_intermediates(
            image=images,
            image_indices=1,
            normalize=False,
            normalize_intermediates=True,
            image_output_fmt="NLC",
        )
    (patches,) = out["image_intermediates"]
    return TokenFeatures(out["image_features"], patches @ visual.proj)


def text_features(clip: CLIP, texts: Tensor, masking: Masking | None = None) -> TokenFeatures:
    """Features of captions, int64 [N, L], and of all their L positions.

    Raises ValueError for a mask other than bool [N, L].
    """
    masked: AbstractContextManager[None] = nullcontext()
    if masking is not None:
        mask, token = masking
        _check_mask("word_mask", mask, tuple(texts.shape))
        masked = _masked(clip.token_embedding, mask[..., None], token)
    with masked:
        out = clip.forward_intermediates(
            text=texts, text_indices=1, normalize=False, normalize_intermediates=True
        )
    (tokens,) = out["text_intermediates"]
    projection = clip.text_projection
    projected = projection(tokens) if isinstance(projection, nn.Linear) else tokens @ projection
    return TokenFeatures(out["text_features"], projected)


def _check_mask(name: str, mask: Tensor, shape: tuple[int, ...]) -> None:
    if mask.dtype != torch.bool or tuple(mask.shape) != shape:
        raise ValueError(
            f"{name}: got {mask.dtype} of shape {list(mask.shape)}, expected torch.bool of shape "
            f"{list(shape)}"
        )


@contextmanager
def _masked(module: nn.Module, mask: Tensor, token: Tensor) -> Iterator[None]:
    """While inside, `module` returns `token` where `mask` is true; both are broadcast."""

    def hook(_module: nn.Module, _arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return torch.where(mask, token.to(output.dtype), output)

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
