"""The losses: nn.Modules that only lay out rows, columns, targets and margins for the primitive."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .functional import two_way_cross_entropy
from .layouts import (
    Layout,
    captions_layout,
    check_concreteness,
    check_features,
    check_hard_texts,
    check_mask,
    paired_layout,
)
from .margin import DIRECTIONS, check_margin, concreteness_margin
from .validation import check_options


class _Loss(nn.Module):
    """Options that every loss has, and the reduction of both directions to a scalar."""

    key: str

    def __init__(self, *, precision: str | None = None, backend: str | None = None):
        super().__init__()
        check_options(precision, backend)
        self.precision = precision
        self.backend = backend

    def _reduced(self, layout: Layout, output_dict: bool) -> Any:
        loss = self._mean(layout)
        return {self.key: loss} if output_dict else loss

    def _mean(self, layout: Layout) -> Tensor:
        """Mean of the means over the anchors among the rows and over those among the columns."""
        row_loss, col_loss = two_way_cross_entropy(
            **layout, precision=self.precision, backend=self.backend
        )
        row_mean = _anchor_mean(row_loss, layout.get("row_target"))
        col_mean = _anchor_mean(col_loss, layout.get("col_target"))
        return (row_mean + col_mean) / 2


def _anchor_mean(loss: Tensor, target: Tensor | None) -> Tensor:
    if target is None:
        return loss.mean()
    return loss.sum() / (target >= 0).sum().clamp(min=1)


class ClipLoss(_Loss):
    """CLIP's symmetric InfoNCE (Radford et al. 2021, figure 3), in place of open_clip's ClipLoss.

    The constructor and `forward` are those of open_clip 3.3; its positional flags are accepted.
    `precision` and `backend` are those of `two_way_cross_entropy`.

    Raises:
        NotImplementedError: world_size > 1, which this version does not serve.
    """

    key = "contrastive_loss"

    def __init__(
        self,
        local_loss: bool = False,
        gather_with_grad: bool = False,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        use_horovod: bool = False,
        *,
        precision: str | None = None,
        backend: str | None = None,
    ):
        super().__init__(precision=precision, backend=backend)
        if world_size != 1:
            raise NotImplementedError(
                f"world_size: got {world_size}; expected 1: gathering features over several "
                "processes is not in this version; keep open_clip's ClipLoss there"
            )
        if rank != 0:
            raise ValueError(f"rank: got {rank} with world_size 1; expected 0")
        self.local_loss = local_loss
        self.gather_with_grad = gather_with_grad
        self.cache_labels = cache_labels
        self.rank = rank
        self.world_size = world_size
        self.use_horovod = use_horovod

    def layout(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None = None,
    ) -> Layout:
        """Arguments for `two_way_cross_entropy`: images as rows, texts as columns, the diagonal."""
        check_features(image_features, logit_scale, logit_bias, text_features=text_features)
        return {
            "rows": image_features,
            "cols": text_features,
            "scale": logit_scale,
            "bias": logit_bias,
        }

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None = None,
        output_dict: bool = False,
    ) -> Any:
        """Mean of both directions.

        Args:
            image_features, text_features: [N, D] of one dtype, row i of each a pair.
            logit_scale: float or tensor [] or [1], exponentiated, as open_clip hands it over.
            logit_bias: float or tensor [] or [1], added to all logits.
            output_dict: return {"contrastive_loss": loss}.

        Raises:
            TypeError, ValueError: as `two_way_cross_entropy`.
        """
        layout = self.layout(image_features, text_features, logit_scale, logit_bias)
        return self._reduced(layout, output_dict)


class NegClipLoss(_Loss):
    """InfoNCE with hard captions in the image-to-text direction (NegCLIP, Yuksekgonul et al. 2023).

    Every image's softmax runs over all N captions and all N K hard captions; the captions' softmax
    over the N images.
    """

    key = "negclip_loss"

    def layout(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        *,
        hard_text_features: Tensor,
        hard_mask: Tensor | None = None,
        logit_bias: Tensor | float | None = None,
    ) -> Layout:
        """Arguments for `two_way_cross_entropy`: columns are the captions, then the hard ones."""
        return captions_layout(
            image_features, text_features, logit_scale, hard_text_features, hard_mask, logit_bias
        )

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        *,
        hard_text_features: Tensor,
        hard_mask: Tensor | None = None,
        logit_bias: Tensor | float | None = None,
        output_dict: bool = False,
    ) -> Any:
        """Mean over images and over captions, averaged.

        Args:
            image_features, text_features, logit_scale, logit_bias: as in `ClipLoss`.
            hard_text_features: [N, K, D] or [N, D], hard captions of each image.
            hard_mask: bool [N, K] or [N], False where a hard caption is missing; such a one is no
                column for any image.
            output_dict: return {"negclip_loss": loss}.

        Raises:
            TypeError, ValueError: the argument, what came, what was expected.
        """
        layout = self.layout(
            image_features,
            text_features,
            logit_scale,
            hard_text_features=hard_text_features,
            hard_mask=hard_mask,
            logit_bias=logit_bias,
        )
        return self._reduced(layout, output_dict)


class CementLoss(_Loss):
    """InfoNCE with a concreteness-weighted margin on hard negatives (Cement, arXiv 2604.13313).

    The image's own hard captions enter its softmax as exp((s_hard + m) / tau), where m grows with
    the concreteness of the replaced word: the more visible the change, the wider the gap asked for.

    Args:
        margin: margin of a word of concreteness 5, in `unit`.
        direction: "increasing" or "decreasing" in the concreteness.
        unit: "cosine": added to the similarity, before the scale. "logit": added to the logit.
        static: every hard negative gets the mean margin (for ablation).
        layout: "captions": hard captions only, as in NegCLIP. "paired": hard images too, each the
            positive of its hard caption; 2N x 2N, both directions (K = 1).

    Raises:
        ValueError: an unknown option.
    """

    key = "cement_loss"

    def __init__(
        self,
        margin: float = 0.05,
        direction: str = "increasing",
        unit: str = "cosine",
        static: bool = False,
        layout: str = "captions",
        *,
        precision: str | None = None,
        backend: str | None = None,
    ):
        super().__init__(precision=precision, backend=backend)
        for name, value, choices in (
            ("direction", direction, DIRECTIONS),
            ("unit", unit, ("cosine", "logit")),
            ("layout", layout, ("captions", "paired")),
        ):
            if value not in choices:
                raise ValueError(f"{name}: got {value!r}; expected one of {', '.join(choices)}")
        check_margin(margin)
        if not isinstance(static, bool):
            raise TypeError(f"static: got {type(static).__name__}; expected True or False")
        self.margin = margin
        self.direction = direction
        self.unit = unit
        self.static = static
        self.arrangement = layout

    def extra_repr(self) -> str:
        return (
            f"margin={self.margin}, direction={self.direction!r}, unit={self.unit!r}, "
            f"static={self.static}, layout={self.arrangement!r}"
        )

    def layout(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        *,
        hard_text_features: Tensor,
        concreteness: Tensor,
        hard_image_features: Tensor | None = None,
        hard_mask: Tensor | None = None,
        logit_bias: Tensor | float | None = None,
    ) -> Layout:
        """Arguments for `two_way_cross_entropy`, margins included."""
        check_features(image_features, logit_scale, logit_bias, text_features=text_features)
        N = image_features.shape[0]
        hard_text_features = check_hard_texts(hard_text_features, text_features)
        K = hard_text_features.shape[1]
        hard_mask = check_mask(hard_mask, N, K, image_features.device)
        concreteness = check_concreteness(concreteness, N, K, image_features.device)
        margin = concreteness_margin(
            concreteness,
            margin=self.margin,
            direction=self.direction,
            static=self.static,
            mask=hard_mask,
        )
        if self.unit == "logit":
            # Differentiable, so that the scale's gradient has no part through the margin.
            margin = margin / logit_scale
        if self.arrangement == "captions":
            if hard_image_features is not None:
                raise ValueError(
                    'hard_image_features: got a tensor with layout="captions"; expected None, or '
                    'CementLoss(layout="paired")'
                )
            return captions_layout(
                image_features, text_features, logit_scale, hard_text_features, hard_mask,
                logit_bias, margin,
            )  # fmt: skip
        return paired_layout(
            image_features, text_features, logit_scale, hard_text_features, hard_image_features,
            hard_mask, logit_bias, margin,
        )  # fmt: skip

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        *,
        hard_text_features: Tensor,
        concreteness: Tensor,
        hard_image_features: Tensor | None = None,
        hard_mask: Tensor | None = None,
        logit_bias: Tensor | float | None = None,
        output_dict: bool = False,
    ) -> Any:
        """Mean over image anchors and over caption anchors, averaged.

        Args:
            image_features, text_features, logit_scale, logit_bias: as in `ClipLoss`.
            hard_text_features: [N, K, D] or [N, D].
            concreteness: [N, K] or [N], rating 1 to 5 of the replaced words.
            hard_image_features: [N, D], for layout "paired".
            hard_mask: bool [N, K] or [N], False where there is no hard negative.
            output_dict: return {"cement_loss": loss}.

        Raises:
            TypeError, ValueError: the argument, what came, what was expected.
        """
        layout = self.layout(
            image_features,
            text_features,
            logit_scale,
            hard_text_features=hard_text_features,
            concreteness=concreteness,
            hard_image_features=hard_image_features,
            hard_mask=hard_mask,
            logit_bias=logit_bias,
        )
        return self._reduced(layout, output_dict)


class TripletClipLoss(_Loss):
    """TripletCLIP (Patel et al. 2024, arXiv 2411.02545): NegCLIP of the images, plus NegCLIP of the
    hard images with the roles of captions and hard captions exchanged.

    Args:
        margin: constant margin on the hard negatives, in cosine units.
    """

    key = "triplet_loss"

    def __init__(
        self, *, margin: float = 0.0, precision: str | None = None, backend: str | None = None
    ):
        super().__init__(precision=precision, backend=backend)
        check_margin(margin)
        self.margin = margin

    def layout(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        *,
        hard_text_features: Tensor,
        hard_image_features: Tensor,
        logit_bias: Tensor | float | None = None,
    ) -> tuple[Layout, Layout]:
        """Two sets of arguments for `two_way_cross_entropy`; the loss is the sum over both."""
        check_features(
            image_features,
            logit_scale,
            logit_bias,
            text_features=text_features,
            hard_text_features=hard_text_features,
            hard_image_features=hard_image_features,
        )
        N = image_features.shape[0]
        margin = None
        if self.margin:
            margin = torch.full((N, 1), self.margin, device=image_features.device)
        first, second = (
            captions_layout(images, texts, logit_scale, hard, None, logit_bias, margin)
            for images, texts, hard in (
                (image_features, text_features, hard_text_features),
                (hard_image_features, hard_text_features, text_features),
            )
        )
        return first, second

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        *,
        hard_text_features: Tensor,
        hard_image_features: Tensor,
        logit_bias: Tensor | float | None = None,
        output_dict: bool = False,
    ) -> Any:
        """The sum of both NegCLIP losses.

        Args:
            image_features, text_features, hard_text_features, hard_image_features: [N, D].
            logit_scale, logit_bias: as in `ClipLoss`.
            output_dict: return {"triplet_loss": loss}.

        Raises:
            TypeError, ValueError: the argument, what came, what was expected.
        """
        first, second = self.layout(
            image_features,
            text_features,
            logit_scale,
            hard_text_features=hard_text_features,
            hard_image_features=hard_image_features,
            logit_bias=logit_bias,
        )
        loss = self._mean(first) + self._mean(second)
        return {self.key: loss} if output_dict else loss
