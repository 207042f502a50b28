"""A CLIP with what MACCO adds to it for training."""

from __future__ import annotations

import torch
from open_clip.model import CLIP
from torch import Tensor, nn
from torch.nn.functional import normalize

from slipform_training.finetune import AddedParts, Encoder

from .config import MaccoConfig
from .features import Masking, TokenFeatures, check_clip, image_features, text_features
from .losses import masked_patch_loss, masked_word_loss, patch_targets
from .predictors import ImagePredictor, MaskedTokens, TextPredictor


class MaccoParts(AddedParts):
    """Mask tokens, N(0, 0.02), and predictors, as far as a term of `config` needs them."""

    def __init__(self, clip: CLIP, config: MaccoConfig) -> None:
        super().__init__(lr=config.predictor_lr, weight_decay=config.predictor_weight_decay)
        visual = clip.visual
        width = visual.output_dim
        height_of_patch, width_of_patch = visual.patch_size
        if config.masks_words:
            self.word_token = _mask_token(clip.token_embedding.embedding_dim)
        if config.masks_patches:
            self.patch_token = _mask_token(visual.class_embedding.shape[0])
            # MIM alone does not reach it, and DDP expects a gradient of what is trained.
            self.patch_token.requires_grad_(config.aligns)
        if config.mlm:
            self.text_predictor = TextPredictor(
                width,
                layers=config.text_layers,
                heads=config.heads,
                vocabulary=clip.vocab_size,
            )
        if config.mim:
            self.image_predictor = ImagePredictor(
                width,
                layers=config.image_layers,
                heads=config.heads,
                grid=visual.grid_size,
                pixels=3 * height_of_patch * width_of_patch,
            )


def _mask_token(width: int) -> nn.Parameter:
    return nn.Parameter(0.02 * torch.randn(1, 1, width))


class Macco(Encoder):
    """CLIP with MACCO's mask tokens and predictors (arXiv 2606.13288); for MaccoLoss.

    `clip` is the plain CLIP, which training leaves; `added` is dropped then. Full and masked
    sequences go through a tower together. Gradients reach:

    | of | text tower | word token | image tower | patch token |
    |---|---|---|---|---|
    | MLM | yes | yes | no | no |
    | MIM | yes (keys, values) | no | no | no |
    | MCA, MIR | yes | yes | yes | yes |

    Raises TypeError or ValueError for a model whose tokens cannot be masked (see check_clip) or
    whose width the heads do not divide.
    """

    added: MaccoParts

    def __init__(self, clip: nn.Module, config: MaccoConfig) -> None:
        super().__init__(check_clip(clip))
        self.config = config
        self.added = MaccoParts(self.clip, config)

    @property
    def clip(self) -> CLIP:
        """The plain CLIP."""
        return self.model

    def forward(  # type: ignore[override]
        self,
        images: Tensor,
        texts: Tensor,
        word_mask: Tensor,
        patch_mask: Tensor,
        hard_texts: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """What MaccoLoss takes, by name; the arguments are those of Batch."""
        images_of = self._images(images, patch_mask)
        texts_of = self._texts(texts, word_mask, hard_texts)
        features = {
            "image_features": normalize(images_of["full"].pooled, dim=-1),
            "text_features": normalize(texts_of["full"].pooled, dim=-1),
            **self.scales(),
        }
        if hard_texts is not None:
            hard = normalize(texts_of["hard"].pooled, dim=-1)
            features["hard_text_features"] = hard.unflatten(0, hard_texts.shape[:2])
        if self.config.aligns:
            features["masked_image_features"] = normalize(images_of["masked"].pooled, dim=-1)
            features["masked_text_features"] = normalize(texts_of["masked"].pooled, dim=-1)
        if self.config.mlm:
            masked = MaskedTokens(word_mask)
            predictor = self.added.text_predictor
            queries, memory = texts_of["masked"].with_global(), images_of["full"].with_global()
            states = predictor(queries, memory.detach(), masked)
            features["word_loss"] = masked_word_loss(states, predictor.vocabulary, texts, masked)
        if self.config.mim:
            masked = MaskedTokens(patch_mask)
            queries, memory = images_of["masked"].with_global(), texts_of["full"].with_global()
            shown = self.added.image_predictor(queries.detach(), memory, masked)
            targets = patch_targets(images, masked, patch=self.clip.visual.patch_size)
            features["patch_loss"] = masked_patch_loss(shown, targets, masked)
        return features

    def _images(self, images: Tensor, mask: Tensor) -> dict[str, TokenFeatures]:
        """Features of full and, where needed, masked images, in one pass of the tower."""
        if not self.config.masks_patches:
            return {"full": image_features(self.clip, images)}
        masking = Masking(torch.cat([torch.zeros_like(mask), mask]), self.added.patch_token)
        found = image_features(self.clip, torch.cat([images, images]), masking)
        return dict(zip(("full", "masked"), found.split([len(images)] * 2), strict=True))

    def _texts(self, texts: Tensor, mask: Tensor, hard: Tensor | None) -> dict[str, TokenFeatures]:
        """Features of full, where needed masked, and hard captions, in one pass of the tower."""
        parts = {"full": (texts, torch.zeros_like(mask))}
        if self.config.masks_words:
            parts["masked"] = (texts, mask)
        if hard is not None:
            flat = hard.flatten(0, 1)
            parts["hard"] = (flat, torch.zeros_like(flat, dtype=torch.bool))
        captions, masks = (torch.cat(values) for values in zip(*parts.values(), strict=True))
        masking = Masking(masks, self.added.word_token) if self.config.masks_words else None
        found = text_features(self.clip, captions, masking)
        sizes = [len(value) for value, _ in parts.values()]
        return dict(zip(parts, found.split(sizes), strict=True))
