"""The losses by the names of settings, and in place of open_clip's create_loss."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from slipform_training.train import TrainConfig


def open_clip_loss(args: Any) -> nn.Module:
    """In place of ``open_clip.create_loss(args)``: the same choice, with slipform_kernels' losses.

    args: as open_clip_train has them, of which siglip, local_loss, gather_with_grad, rank,
    world_size, horovod and loss_dist_impl are read. Distillation and CoCa have terms of their own,
    so for these the loss is open_clip's, with a warning.

    Raises ValueError or NotImplementedError for flags that the losses refuse (see ClipLoss).
    """
    from slipform_kernels import ClipLoss, SigLipLoss

    if args.distill or "coca" in args.model.lower():
        import open_clip

        kind = "distillation" if args.distill else "CoCa"
        warnings.warn(f"slipform has no loss for {kind}; this run uses open_clip's", stacklevel=2)
        return open_clip.create_loss(args)
    if args.siglip:
        return SigLipLoss(rank=args.rank, world_size=args.world_size, dist_impl=args.loss_dist_impl)
    return ClipLoss(
        local_loss=args.local_loss,
        gather_with_grad=args.gather_with_grad,
        rank=args.rank,
        world_size=args.world_size,
        use_horovod=args.horovod,
    )


def configured_loss(config: TrainConfig, *, rank: int, ranks: int) -> nn.Module:
    """The loss that `config`, with its margin filled in, asks for, over all ranks' samples."""
    from slipform_kernels import CementLoss, ClipLoss, NegClipLoss, SigLipLoss, TripletClipLoss

    exchange = config.exchange
    if config.loss == "negclip":
        return NegClipLoss(exchange=exchange)
    if config.loss == "cement":
        return CementLoss(
            margin=config.margin or 0.0,
            direction=config.margin_direction,
            unit=config.margin_unit,
            static=config.margin_static,
            layout="paired" if config.hard_images else "captions",
            exchange=exchange,
        )
    if config.loss == "triplet":
        return TripletClipLoss(margin=config.margin or 0.0, exchange=exchange)
    if config.loss == "siglip":
        return SigLipLoss(rank=rank, world_size=ranks, exchange=exchange)
    # local_loss changes the value that is logged, not the gradients; the mean over all is shown.
    return ClipLoss(gather_with_grad=True, rank=rank, world_size=ranks, exchange=exchange)
