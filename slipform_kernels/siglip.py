"""SigLipLoss: the sigmoid loss of images and texts, as open_clip calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from .base_loss import RankedLoss
from .exchange import MODES
from .layouts import Layout, pairs_layout
from .reduction import own_mean_over_ranks
from .sigmoid import sigmoid_cross_entropy

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_EXCHANGES = {"bidir": "ring", "shift": "ring", "reduce": "gather", "gather": "gather"}


class SigLipLoss(RankedLoss):
    """SigLIP's loss (Zhai et al. 2023, arXiv 2303.15343), in place of open_clip's SigLipLoss.

    The constructor and `forward` are those of open_clip 3.3. With several ranks the value is, as
    there, the sum over the rank's own images and all texts, divided by the rank's number of images,
    and parameter gradients, averaged by DDP, are those of one process on all samples. Unlike there,
    ranks may have different numbers of samples.

    Args:
        cache_labels: without effect: there are no labels to keep.
        rank, world_size: of this process; must be those of torch.distributed.
        dist_impl: how texts reach the other ranks; the numbers are the same. "bidir" and "shift":
            exchange="ring"; "reduce", "gather" and None: exchange="gather".
        precision, backend, group: see `sigmoid_cross_entropy`.
        exchange: "gather" or "ring" (as in `two_way_cross_entropy`) or "none" (each rank by
            itself), whatever `dist_impl` says.

    Raises:
        ValueError: an unknown option; a rank or world_size that is not torch.distributed's.
    """

    key = "contrastive_loss"

    def __init__(
        self,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        dist_impl: str | None = None,
        *,
        precision: str | None = None,
        backend: str | None = None,
        group: ProcessGroup | None = None,
        exchange: str | None = None,
    ):
        if dist_impl not in (None, *_EXCHANGES):
            expected = ", ".join(_EXCHANGES)
            raise ValueError(f"dist_impl: got {dist_impl!r}; expected one of {expected}")
        if exchange is None:
            exchange = _EXCHANGES[dist_impl or "gather"]
        super().__init__(precision=precision, backend=backend, group=group, exchange=exchange)
        self.set_ranks(rank, world_size)
        self.cache_labels = cache_labels
        self.dist_impl = dist_impl

    def _asks_for_ranks(self) -> bool:
        return super()._asks_for_ranks() or self.dist_impl is not None

    def layout(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None,
    ) -> Layout:
        """Arguments for `sigmoid_cross_entropy`: images as rows, texts as columns."""
        return pairs_layout(image_features, text_features, logit_scale, logit_bias)

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None,
        output_dict: bool = False,
    ) -> Any:
        """Sum over all pairs, divided by the number of images.

        Args:
            image_features, text_features: [N, D] of one dtype, row i of each a pair.
            logit_scale: float or tensor [] or [1], exponentiated, as open_clip hands it over.
            logit_bias: float or tensor [] or [1], added to all logits, or None.
            output_dict: return {"contrastive_loss": loss}.

        Returns:
            fp32 [] (fp64 for fp64 features), or the dictionary.

        Raises:
            TypeError, ValueError: as `sigmoid_cross_entropy`.
            RuntimeError: another rank refused its arguments, died, or did not answer in time.
        """
        layout = self._laid_out(image_features, text_features, logit_scale, logit_bias)
        group = self.ranks()
        total = sigmoid_cross_entropy(
            **layout,
            reduction="sum",
            precision=self.precision,
            backend=self.backend,
            group=group,
            exchange=MODES[0] if group is None else self.exchange,
        )
        count = image_features.shape[0]
        loss = total / count if group is None else own_mean_over_ranks(total, count, group=group)
        return {self.key: loss} if output_dict else loss
