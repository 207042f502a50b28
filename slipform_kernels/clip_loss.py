"""ClipLoss: CLIP's InfoNCE, as open_clip calls it."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .base_loss import RankedLoss
from .layouts import Layout, pairs_layout
from .reduction import scaled_gradient

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class ClipLoss(RankedLoss):
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
        self.set_ranks(rank, world_size)
        if world_size > 1 and local_loss and not gather_with_grad:
            raise ValueError(
                "local_loss: got True with gather_with_grad=False, where half of the features' "
                "gradient is missing; expected ClipLoss(local_loss=True, gather_with_grad=True)"
            )
        self.local_loss = local_loss
        self.gather_with_grad = gather_with_grad
        self.cache_labels = cache_labels
        self.use_horovod = use_horovod

    def _asks_for_ranks(self) -> bool:
        return super()._asks_for_ranks() or self.local_loss or self.gather_with_grad

    def layout(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None = None,
    ) -> Layout:
        """Arguments for `two_way_cross_entropy`: images as rows, texts as columns, the diagonal."""
        return pairs_layout(image_features, text_features, logit_scale, logit_bias)

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

        Returns:
            fp32 [] (fp64 for fp64 features), or the dictionary.

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
