"""MACCO's four terms (arXiv 2606.13288): masked words, masked patches, and two alignments.

    MLM = mean over samples of (mean over its masked tokens of -log p(word | masked caption, image))
    MIM = mean over samples of (mean over its masked patches of |predicted - target|^2 / (3 p^2))
    MCA = cross-entropy of [I; Im] against [T; Tm], where masked rows and columns target the full
          counterpart; mean over rows, mean over columns, and the mean of both
    MIR = (two-way cross-entropy of T against Tm + that of I against Im) / 2

A sample without a masked word (patch) has none to reconstruct, and its masked caption (image) would
be the full one again, a false negative of its own image: such samples are left out of MLM (MIM), of
the masked columns (rows) of MCA and of MIR's masked side.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slipform_kernels import CementLoss, ClipLoss, NegClipLoss, two_way_cross_entropy
from slipform_training.finetune.ranks import mean_over_ranks

from .config import MaccoConfig
from .predictors import MaskedTokens

Layout = dict[str, Any]


def masked_word_loss(
    states: Tensor, vocabulary: nn.Linear, texts: Tensor, masked: MaskedTokens
) -> Tensor:
    """MLM of each sample, fp32 [N], 0 for one without masked words.

    states: [n, D] of the masked tokens. vocabulary: weight [V, D] and bias [V]. texts: the ids,
    int64 [N, L]. The words' logits [n, V] are a similarity matrix of states and vocabulary, so the
    fused cross-entropy makes them in pieces, in fp32.
    """
    words = torch.where(masked.is_real, masked.taken(texts), -1)
    nll, _ = two_way_cross_entropy(
        states,
        vocabulary.weight,
        1.0,
        bias=vocabulary.bias,
        row_target=words,
        col_target=words.new_full((vocabulary.out_features,), -1),
    )
    return masked.mean_of_samples(nll)


def patch_targets(images: Tensor, masked: MaskedTokens, *, patch: tuple[int, int]) -> Tensor:
    """What masked patches should show, fp32 [n, 3 p^2], in the order row, column, channel.

    images: [N, 3, H, W], normalised as CLIP's inputs. patch: its height and width in pixels. Each
    patch is normalised by its own mean and unbiased variance:
    (t - mean) / sqrt(variance + 1e-6), as in MAE (arXiv 2111.06377, section 4).
    """
    height, width = patch
    rows, columns = images.shape[2] // height, images.shape[3] // width
    cells = images[:, :, : rows * height, : columns * width]
    cells = cells.unflatten(3, (columns, width)).unflatten(2, (rows, height))
    row, column = masked.position // columns, masked.position % columns
    # The index takes masked patches out of a view, so the others are never copied.
    shown = cells.permute(0, 2, 4, 3, 5, 1)[masked.sample, row, column].flatten(1).float()
    variance, mean = torch.var_mean(shown, dim=1, keepdim=True)
    return (shown - mean) / (variance + 1e-6).sqrt()


def masked_patch_loss(predicted: Tensor, targets: Tensor, masked: MaskedTokens) -> Tensor:
    """MIM of each sample, fp32 [N], 0 for one without masked patches; both inputs [n, 3 p^2]."""
    return masked.mean_of_samples((predicted.float() - targets).square().mean(1))


def cross_modal_layout(
    layout: Layout,
    masked_images: Tensor,
    masked_texts: Tensor,
    *,
    has_patch: Tensor,
    has_word: Tensor,
    logit_bias: Tensor | float | None = None,
) -> Layout:
    """MCA's matrix: a loss's own, with masked images as further rows, masked captions as columns.

    layout: arguments for two_way_cross_entropy of N images against N captions and maybe hard
    captions, as ClipLoss, NegClipLoss and CementLoss lay them out; hard captions are negatives of
    masked images too, but without a margin, since what tells them apart may be masked.
    masked_images, masked_texts: [N, D]. has_patch, has_word: bool [N], which of them are masked;
    finding them synchronises with the device.
    """
    images, texts = has_patch.nonzero()[:, 0], has_word.nonzero()[:, 0]
    anchors = torch.arange(len(has_word), device=has_word.device)
    own_cols = layout.get("col_target")
    wider = {
        **layout,
        "rows": torch.cat([layout["rows"], masked_images[images]]),
        "cols": torch.cat([layout["cols"], masked_texts[texts]]),
        "row_target": torch.cat([anchors, images]),
        "col_target": torch.cat([anchors if own_cols is None else own_cols, texts]),
    }
    if layout.get("hard_cols") is not None:
        wider["hard_cols"] = F.pad(layout["hard_cols"], (0, 0, 0, len(images)), value=-1)
    if layout.get("margin") is not None:
        wider["margin"] = F.pad(layout["margin"], (0, 0, 0, len(images)))
    bias = layout.get("bias")
    if isinstance(bias, Tensor) and bias.shape == (len(layout["cols"]),):
        of_masked = torch.as_tensor(0.0 if logit_bias is None else logit_bias).to(bias)
        wider["bias"] = torch.cat([bias, of_masked.expand(len(texts))])
    return wider


def intra_modal_layout(full: Tensor, masked: Tensor, scale: Tensor, *, has_mask: Tensor) -> Layout:
    """One modality of MIR: full features as rows, masked ones as columns, both [N, D].

    The columns of samples without a mask are taken out by a bias of -inf.
    """
    target = torch.where(has_mask, torch.arange(len(full), device=full.device), -1)
    bias = torch.where(has_mask, 0.0, -torch.inf)
    return {
        "rows": full, "cols": masked, "scale": scale, "bias": bias,
        "row_target": target, "col_target": target,
    }  # fmt: skip


class MaccoLoss(nn.Module):
    """The weighted terms of MACCO, over all ranks' samples, or each rank's own, as `base` is.

    base: ClipLoss, NegClipLoss or CementLoss. Its matrix is the part of MCA's that is full images
    and captions, with its hard captions and margins, so full pairs are aligned once. Where MCA is
    switched off it is a term of its own, as the paper's ablations need it.

    Raises TypeError for another loss.
    """

    def __init__(self, base: nn.Module, config: MaccoConfig) -> None:
        super().__init__()
        if type(base) not in (ClipLoss, NegClipLoss, CementLoss):
            raise TypeError(
                f"base: got {type(base).__name__}, expected ClipLoss, NegClipLoss or CementLoss"
            )
        self.base = base
        self.config = config

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor,
        *,
        word_mask: Tensor,
        patch_mask: Tensor,
        masked_image_features: Tensor | None = None,
        masked_text_features: Tensor | None = None,
        word_loss: Tensor | None = None,
        patch_loss: Tensor | None = None,
        hard_text_features: Tensor | None = None,
        hard_mask: Tensor | None = None,
        concreteness: Tensor | None = None,
        logit_bias: Tensor | None = None,
        output_dict: bool = False,
    ) -> Any:
        """The sum of weighted terms.

        Args:
            image_features, text_features, logit_scale, logit_bias: as in ClipLoss.
            word_mask: bool [N, L]. patch_mask: bool [N, P]. As in Batch.
            masked_image_features, masked_text_features: [N, D]; for MCA and MIR.
            word_loss, patch_loss: [N], masked_word_loss and masked_patch_loss; for MLM and MIM.
            hard_text_features, hard_mask, concreteness: as in CementLoss, for a base that has them.
            output_dict: return the weighted terms by name: "mca_loss" (or base's own), "mir_loss",
                "mlm_loss", "mim_loss", without those whose weight is 0.

        Raises ValueError for an input that a weight above 0 asks for and is None.
        """
        config, terms = self.config, {}
        has_word, has_patch = word_mask.any(1), patch_mask.any(1)
        hard = self._used_by_base(
            hard_text_features=hard_text_features, hard_mask=hard_mask, concreteness=concreteness
        )
        full = image_features, text_features, logit_scale
        if config.mca:
            layout = cross_modal_layout(
                self.base.layout(*full, **hard, logit_bias=logit_bias),  # type: ignore[operator]
                _needed("masked_image_features", masked_image_features),
                _needed("masked_text_features", masked_text_features),
                has_patch=has_patch,
                has_word=has_word,
                logit_bias=logit_bias,
            )
            terms["mca_loss"] = config.mca * self._two_way_mean(layout)
        else:
            terms.update(self.base(*full, **hard, logit_bias=logit_bias, output_dict=True))
        if config.mir:
            masked_texts = _needed("masked_text_features", masked_text_features)
            masked_images = _needed("masked_image_features", masked_image_features)
            of_texts = self._intra_modal(text_features, masked_texts, logit_scale, has_word)
            of_images = self._intra_modal(image_features, masked_images, logit_scale, has_patch)
            terms["mir_loss"] = config.mir * (of_texts + of_images) / 2
        if config.mlm:
            mlm = self._sample_mean(_needed("word_loss", word_loss), has_word)
            terms["mlm_loss"] = config.mlm * mlm
        if config.mim:
            mim = self._sample_mean(_needed("patch_loss", patch_loss), has_patch)
            terms["mim_loss"] = config.mim * mim
        return terms if output_dict else sum(terms.values())

    def _used_by_base(self, **inputs: Tensor | None) -> dict[str, Tensor | None]:
        known = inspect.signature(self.base.layout).parameters  # type: ignore[arg-type]
        return {name: value for name, value in inputs.items() if name in known}

    def _intra_modal(self, full: Tensor, masked: Tensor, scale: Tensor, has_mask: Tensor) -> Tensor:
        return self._two_way_mean(intra_modal_layout(full, masked, scale, has_mask=has_mask))

    def _two_way_mean(self, layout: Layout) -> Tensor:
        """Mean of the means over anchors among the rows and among the columns, of all ranks."""
        base: Any = self.base
        group = base.ranks()
        row, col = two_way_cross_entropy(
            **layout, precision=base.precision, backend=base.backend, group=group,
            exchange=base.exchange if group is not None else "gather",
        )  # fmt: skip
        counts = [(layout[name] >= 0).sum() for name in ("row_target", "col_target")]
        sums = torch.stack([row.sum(), col.sum()])
        return mean_over_ranks(sums, torch.stack(counts), group=group).mean()

    def _sample_mean(self, values: Tensor, has_mask: Tensor) -> Tensor:
        """Mean over all ranks' samples that have a mask; values [N] are 0 for the others."""
        group = self.base.ranks()  # type: ignore[operator]
        return mean_over_ranks(values.sum()[None], has_mask.sum()[None], group=group)[0]


def _needed(name: str, value: Tensor | None) -> Tensor:
    if value is None:
        raise ValueError(f"{name}: got None, expected a tensor, since a weight asks for it")
    return value
