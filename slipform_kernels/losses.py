"""The losses: nn.Modules that only lay out rows, columns, targets and margins for the primitive."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from . import agreement
from .exchange import MODES
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
from .reduction import mean, mean_over_ranks, scaled_gradient
from .validation import check_options

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class _Loss(nn.Module):
    """Options that every loss has, and the reduction of both directions to a scalar.

    Where torch.distributed runs with several ranks, the loss is that of all ranks' samples together
    (distributed.py): every rank must call it, and its gradients are right once averaged over ranks,
    which DDP and FSDP do.

    Args:
        precision, backend: as in `two_way_cross_entropy`.
        group: the ranks; None is the default group.
        exchange: "gather" or "ring", as in `two_way_cross_entropy`; "none": each rank by itself.
    """

    key: str

    def __init__(
        self,
        *,
        precision: str | None = None,
        backend: str | None = None,
        group: ProcessGroup | None = None,
        exchange: str = "gather",
    ):
        super().__init__()
        check_options(precision, backend)
        if exchange not in (*MODES, "none"):
            expected = ", ".join((*MODES, "none"))
            raise ValueError(f"exchange: got {exchange!r}; expected one of {expected}")
        self.precision = precision
        self.backend = backend
        self.group = group
        self.exchange = exchange

    def ranks(self) -> ProcessGroup | None:
        """The process group that shares the loss, or None where this process is alone."""
        if self.exchange == "none" or not (dist.is_available() and dist.is_initialized()):
            return None
        group = self.group or dist.group.WORLD
        return group if dist.get_world_size(group) > 1 else None

    def _laid_out(self, *args: Any, **kwargs: Any) -> Any:
        """`layout`, telling other ranks where it raises an error."""
        with agreement.refusing(self.ranks(), agreement.device_of(*args)):
            return self.layout(*args, **kwargs)

    def layout(self, *args: Any, **kwargs: Any) -> Any:
        """Arguments for `two_way_cross_entropy`."""
        raise NotImplementedError

    def _reduced(self, layout: Layout, output_dict: bool) -> Any:
        loss = self._mean(layout)
        return {self.key: loss} if output_dict else loss

    def _mean(self, layout: Layout, *, local: bool = False) -> Tensor:
        group = self.ranks()
        exchange = self.exchange if group is not None else MODES[0]
        row_loss, col_loss = two_way_cross_entropy(
            **layout,
            precision=self.precision,
            backend=self.backend,
            group=group,
            exchange=exchange,
        )
        targets = layout.get("row_target"), layout.get("col_target")
        if group is None:
            return mean(row_loss, targets[0], col_loss, targets[1])
        return mean_over_ranks(row_loss, targets[0], col_loss, targets[1], group=group, local=local)


def check_rank(rank: int, world_size: int) -> None:
    """A loss with open_clip's constructor was told a rank that there is."""
    if not 0 <= rank < world_size:
        raise ValueError(
            f"rank: got {rank} with world_size {world_size}; expected 0 to {world_size - 1}"
        )


def check_ranks(group: ProcessGroup | None, rank: int, world_size: int) -> None:
    """A loss with open_clip's constructor was told what torch.distributed says."""
    actual = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    if actual != (rank, world_size):
        raise ValueError(
            f"world_size: got rank {rank} of {world_size}; expected those of "
            f"torch.distributed, here rank {actual[0]} of {actual[1]}"
            + ("" if group is not None else " (init_process_group was not called)")
        )


class ClipLoss(_Loss):
    """CLIP's symmetric InfoNCE (Radford et al. 2021, figure 3), in place of open_clip's ClipLoss.

    The constructor and `forward` are those of open_clip 3.3; its positional flags are accepted and
    mean what they mean there, with half of its similarity products. With several ranks:

    - `gather_with_grad=True`: parameter gradients, averaged by DDP, are those of one process on all
      samples. The value is that of the rank's own samples with `local_loss`, else of all. Unlike
      there, ranks may have different numbers of samples.
    - neither flag, open_clip's default: the value of all samples, and features' gradients of 1 / W
      of that, since there every rank holds the others' features constant. Adam hardly notices;
      weight decay, gradient clipping and SGD do. A warning says so once.

    Args:
        local_loss, gather_with_grad: see above.
        cache_labels: without effect: there are no labels to keep.
        rank, world_size: of this process; must be those of torch.distributed.
        use_horovod: must be False.
        precision, backend, group, exchange: see `two_way_cross_entropy`.

    Raises:
        ValueError: `local_loss` without `gather_with_grad`, whose gradients lack a direction; a
            rank or world_size that is not torch.distributed's.
        NotImplementedError: `use_horovod`.
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
        group: ProcessGroup | None = None,
        exchange: str = "gather",
    ):
        super().__init__(precision=precision, backend=backend, group=group, exchange=exchange)
        if use_horovod:
            raise NotImplementedError(
                "use_horovod: got True; expected False: ranks are those of torch.distributed"
            )
        check_rank(rank, world_size)
        if world_size > 1 and local_loss and not gather_with_grad:
            raise ValueError(
                "local_loss: got True with gather_with_grad=False, where half of the features' "
                "gradient is missing; expected ClipLoss(local_loss=True, gather_with_grad=True)"
            )
        self.local_loss = local_loss
        self.gather_with_grad = gather_with_grad
        self.cache_labels = cache_labels
        self.rank = rank
        self.world_size = world_size
        self.use_horovod = use_horovod

    def ranks(self) -> ProcessGroup | None:
        """The process group of `world_size` ranks, or None for a world_size of 1."""
        if self.world_size == 1 or self.exchange == "none":
            return None
        group = super().ranks()
        check_ranks(group, self.rank, self.world_size)
        return group

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
            RuntimeError: another rank refused its arguments, died, or did not answer in time.
        """
        layout = self._laid_out(image_features, text_features, logit_scale, logit_bias)
        if self.ranks() is not None and not self.gather_with_grad:
            _warn_of_open_clips_default(self.world_size)
            for name in ("rows", "cols"):
                layout[name] = scaled_gradient(layout[name], 1 / self.world_size)
        loss = self._mean(layout, local=self.local_loss)
        return {self.key: loss} if output_dict else loss


@functools.cache
def _warn_of_open_clips_default(world_size: int) -> None:
    warnings.warn(
        f"ClipLoss: gather_with_grad=False, open_clip's default, gives the encoders 1/{world_size} "
        "of the gradient; gather_with_grad=True gives all of it",
        stacklevel=3,
    )


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
        layout = self._laid_out(
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


class TripletClipLoss(_Loss):
    """TripletCLIP (Patel et al. 2024, arXiv 2411.02545): NegCLIP of the images, plus NegCLIP of the
    hard images with the roles of captions and hard captions exchanged.

    Args:
        margin: constant margin on the hard negatives, in cosine units.
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
