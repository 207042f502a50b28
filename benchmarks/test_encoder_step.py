"""What is the loss's share of a whole fine-tuning step, and what does a faster loss save of it?

    python -m pytest benchmarks/test_encoder_step.py [--model ViT-S-32-alt] [--batches 32 128]
        [--dtypes fp32] [--peers native open_clip slipform_gradient_cache]

One step of AdamW on an open_clip model with random weights, images and captions, with each loss;
with bf16 and fp16 the encoders run under autocast. Gradients are zeroed outside of the timed part.
`loss_share` is the part of the step between the features and their gradients. `eager_ratio` is the
time of the step with open_clip's ClipLoss, in the same rounds, over the peer's. The peers that
encode in chunks (a quarter of the batch) for the memory of a chunk are beside the same step, which
encodes all at once: open_clip's accum_freq, GradCache and `slipform_training`'s GradientCache.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import options
from benchmarks.paired import WARM_UP, Pairing, median_ratio
from benchmarks.peers import BASELINE, LOSSES
from benchmarks.peers.base import Loss, Peer
from benchmarks.peers.encoder import WAYS, Autocast, Backward
from benchmarks.rows import stop_unless_run
from benchmarks.steps import finished

QUESTION = "encoder_step"
BATCHES = (16,)
DTYPES = ("fp32",)
PEERS = {**LOSSES, **WAYS}
CHUNKS = 4


class EncoderStep:
    """Forward, loss, backward and optimizer of one batch."""

    def __init__(self, model: nn.Module, batch: tuple[Tensor, Tensor], backward: Backward):
        self.model, self.batch, self.backward = model, batch, backward
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
        self.finish = finished(batch[0].device)

    def prepare(self) -> None:
        self.release()
        self.finish()

    def run(self) -> None:
        self.backward(*self.batch)
        self.optimizer.step()
        self.finish()

    def release(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)


class Plain:
    """The whole batch at once; `loss_seconds` are those of every step's loss and its backward."""

    def __init__(
        self, model: nn.Module, loss: Loss, autocast: Autocast, finish: Callable[[], None]
    ):
        self.model, self.loss, self.autocast, self.finish = model, loss, autocast, finish
        self.loss_seconds: list[float] = []

    def __call__(self, images: Tensor, texts: Tensor) -> None:
        with self.autocast():
            found = self.model(images, texts)
        outputs = [found[key] for key in ("image_features", "text_features", "logit_scale")]
        leaves = [x.detach().requires_grad_() for x in outputs]
        self.finish()
        start = time.perf_counter()
        self.loss(*leaves).backward()
        self.finish()
        self.loss_seconds.append(time.perf_counter() - start)
        # A scale that the loss holds constant gets no gradient.
        reached = [
            (x, leaf.grad) for x, leaf in zip(outputs, leaves, strict=True) if leaf.grad is not None
        ]
        torch.autograd.backward(*map(list, zip(*reached, strict=True)))


def model_and_batch(name: str, batch: int, device: torch.device) -> tuple[nn.Module, Any]:
    """The model with random weights, and random images and token ids."""
    import open_clip

    model = open_clip.create_model(name, output_dict=True, device=device)
    size = model.visual.image_size
    height, width = size if isinstance(size, tuple) else (size, size)
    images = torch.randn(batch, 3, height, width, device=device)
    texts = torch.randint(1, model.vocab_size, (batch, model.context_length), device=device)
    return model, (images, texts)


def unavailable(peer: Any, device: torch.device) -> str | None:
    return peer.unavailable(device) if isinstance(peer, Peer) else peer.unavailable()


def test_encoder_step(
    benchmark: Any, peer: Any, batch: int, dtype: str, settings: Any, save_row: Any
) -> None:
    device = settings.device
    stop_unless_run(unavailable(peer, device))
    model, inputs = model_and_batch(settings.model, batch, device)
    kind = options.DTYPES[dtype]

    def autocast() -> Any:
        return nullcontext() if dtype == "fp32" else torch.autocast(device.type, kind)

    finish = finished(device)
    eager = Plain(model, BASELINE.build(0, 1), autocast, finish)
    backward: Backward
    if isinstance(peer, Peer):
        backward = Plain(model, peer.build(0, 1), autocast, finish)
    else:
        backward = peer.build(model, eager.loss, max(1, batch // CHUNKS), autocast)
    pairing = Pairing(
        EncoderStep(model, inputs, backward), {"eager": EncoderStep(model, inputs, eager)}
    )
    seconds = pairing.measure(benchmark, settings.rounds)
    measured = {
        "step_seconds": statistics.median(seconds),
        "eager_ratio": median_ratio(pairing.times["eager"], seconds),
        "rounds": len(seconds),
    }
    if isinstance(backward, Plain):
        measured["loss_share"] = median_ratio(backward.loss_seconds[WARM_UP:], seconds)
    save_row(model=settings.model, **measured)
