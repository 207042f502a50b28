"""The losses with hard negatives: modules that only lay out rows, columns, targets and margins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .base_loss import Loss
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

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class NegClipLoss(Loss):
    """InfoNCE with hard captions in the image-to-text direction (NegCLIP, Yuksekgonul et al. 2023).

    Every image's softmax runs over all N captions and all N K hard captions; the captions' softmax
    over the N images. Without hard captions present it is `ClipLoss`.

    Args:
        precision, backend: as in `two_way_cross_entropy`.
        group: the ranks that share the loss; None is the default group, where there is one.
        exchange: "gather" or "ring", as in `two_way_cross_entropy`; "none": each rank by itself.

    Raises:
        ValueError: an unknown option.
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
        """Arguments for `two_way_cross_entropy`: columns are the captions, then the hard ones.

        Args, errors: those of `forward`.

        Returns:
            rows [N, D], cols [N + N K, D], targets, hard_cols [N, K] and, with a mask, a bias
            [N + N K] that is -inf at the missing ones.
        """
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
                column for any image. Its features must be finite.
            output_dict: return {"negclip_loss": loss}.

        Returns:
            fp32 [] (fp64 for fp64 features), or the dictionary.

        Raises:
            TypeError, ValueError: the argument, what came, what was expected.
            RuntimeError: another rank refused its arguments, died, or did not answer in time.
        """
        layout = self._laid_out(
            image_features,
            text_features,
            logit_scale,
            hard_text_features=hard_text_features,
            hard_mask=hard_mask,
            logit_bias=logit_bias,
        )
        return self._reduced(layout, output_dict)


class CementLoss(Loss):
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
        precision, backend, group, exchange: as in `NegClipLoss`.

    Raises:
        TypeError, ValueError: an unknown option, a margin that is no finite number >= 0.
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
        group: ProcessGroup | None = None,
        exchange: str = "gather",
    ):
        super().__init__(precision=precision, backend=backend, group=group, exchange=exchange)
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
        """Arguments for `two_way_cross_entropy`, margins included.

        Args, errors: those of `forward`.

        Returns:
            As `NegClipLoss.layout`, and margin [N, K]; with layout "paired" rows and cols
            [N + M, D] for the M samples that have a hard negative.
        """
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
            hard_mask: bool [N, K] or [N], False where there is no hard negative. The features of
                such a one must be finite; its concreteness may be anything.
            output_dict: return {"cement_loss": loss}.

        Returns:
            fp32 [] (fp64 for fp64 features), or the dictionary.

        Raises:
            TypeError, ValueError: the argument, what came, what was expected.
            RuntimeError: another rank refused its arguments, died, or did not answer in time.
        """
        layout = self._laid_out(
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


class TripletClipLoss(Loss):
    """TripletCLIP (Patel et al. 2024, arXiv 2411.02545): NegCLIP of the images, plus NegCLIP of the
    hard images with the roles of captions and hard captions exchanged.

    Args:
        margin: constant margin on the hard negatives, in cosine units, >= 0.
        precision, backend, group, exchange: as in `NegClipLoss`.

    Raises:
        TypeError, ValueError: an unknown option, a margin that is no finite number >= 0.
    """

    key = "triplet_loss"

    def __init__(
        self,
        *,
        margin: float = 0.0,
        precision: str | None = None,
        backend: str | None = None,
        group: ProcessGroup | None = None,
        exchange: str = "gather",
    ):
        super().__init__(precision=precision, backend=backend, group=group, exchange=exchange)
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
        """Two sets of arguments for `two_way_cross_entropy`; the loss is the sum over both.

        Args, errors: those of `forward`. Returns two layouts as those of `NegClipLoss`, K = 1.
        """
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

        Returns:
            fp32 [] (fp64 for fp64 features), or the dictionary.

        Raises:
            TypeError, ValueError: the argument, what came, what was expected.
            RuntimeError: another rank refused its arguments, died, or did not answer in time.
        """
        first, second = self._laid_out(
            image_features,
            text_features,
            logit_scale,
            hard_text_features=hard_text_features,
            hard_image_features=hard_image_features,
            logit_bias=logit_bias,
        )
        loss = self._mean(first) + self._mean(second)
        return {self.key: loss} if output_dict else loss
