"""Contrastive batches larger than the encoders' memory: gradient caching.

The loss needs all features at once, but not the encoders' activations. So the batch is encoded in
chunks without a graph, the loss gives the gradient of every feature, and each chunk is encoded once
more, with a graph, to carry its features' gradients into the parameters (Gao et al. 2021, "Scaling
Deep Contrastive Learning Batch Size under Memory Limited Setup", arXiv 2101.06983, section 3.2).
One more forward of the encoders buys activations of one chunk at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Features = dict[str, Tensor]


class GradientCache:
    """Backward of a loss over a whole batch, with the encoders' memory of `chunk_size` samples.

    Gradients are those of the loss on all samples at once, to rounding, also with dropout: random
    numbers are the same in both encodings of a chunk. Layers that mix samples (batch norm) see
    chunks, and update their running statistics twice.

    Under DDP and FSDP2 gradients are reduced once, in the last chunk's backward; losses over ranks
    exchange features once. FSDP2 gathers parameters in every chunk, so there all ranks need the
    same number of chunks.

    Args:
        encode: one chunk of the batch -> features by name, [n, ...] each, for the n samples of the
            chunk; usually the model itself or a function around it. `shared` ones are not per
            sample: they are taken from the first chunk, and their gradient goes into the last.
        loss: features by name -> scalar.
        chunk_size: samples that are encoded at a time, at least 1.
        model: the module that `encode` runs, the one that DDP or FSDP2 made and not one inside it:
            it holds back their reductions. Default: `encode`, if it is a module; must be given
            where torch.distributed has several ranks and `encode` is none. DDP's static_graph is
            not supported.
        shared: names of outputs that belong to no sample, such as open_clip's logit scale.
        autocast: makes the context that encoding and loss run in, such as
            `lambda: torch.autocast("cuda", torch.bfloat16)`.

    Raises:
        TypeError: a batch of other than tensors; an encode or a loss that returns something else.
        ValueError: chunk_size below 1; no model over several ranks; a batch of tensors of
            different lengths; an output that is neither shared nor one entry a sample.
    """

    def __init__(
        self,
        encode: Callable[..., Mapping[str, Tensor]],
        loss: Callable[..., Tensor],
        *,
        chunk_size: int,
        model: nn.Module | None = None,
        shared: Sequence[str] = ("logit_scale", "logit_bias"),
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ):
        if not isinstance(chunk_size, int) or chunk_size < 1:
            raise ValueError(f"chunk_size: got {chunk_size!r}; expected an integer of at least 1")
        self.encode = encode
        self.loss = loss
        self.chunk_size = chunk_size
        self.model = model or (encode if isinstance(encode, nn.Module) else None)
        if self.model is None and _many_ranks():
            raise ValueError(
                "model: got None and an encode that is no module, where torch.distributed has "
                "several ranks; expected the DDP or FSDP2 module that encode runs"
            )
        self.shared = tuple(shared)
        self.autocast = autocast

    def backward(
        self,
        batch: Mapping[str, Tensor],
        *,
        scaler: torch.amp.GradScaler | None = None,
        sync: bool = True,
    ) -> Tensor:
        """Add the gradients of the batch's loss to the parameters' `.grad`; returns the loss.

        Args:
            batch: keyword arguments of `encode`, tensors [N, ...] that are cut into chunks.
            scaler: scales the loss; its gradients are unscaled by `scaler.step`, as usual.
            sync: whether ranks reduce their gradients now; False for all but the last batch of an
                accumulation.
        """
        if not torch.is_grad_enabled():
            raise RuntimeError("backward: called under no_grad; expected gradients to be enabled")
        chunks = self._chunks(batch)
        states: list[_RandomState] = []
        encoded: list[Features] = []
        with self._synchronised(False), torch.no_grad():
            for chunk in chunks:
                states.append(_RandomState.now(chunk))
                encoded.append(self._encoded(chunk))
        features = self._joined(encoded)
        del encoded
        with self.autocast():
            loss = self.loss(**features)
        if not isinstance(loss, Tensor) or loss.ndim != 0:
            got = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"loss: returned {got}; expected a tensor of shape []")
        (loss if scaler is None else scaler.scale(loss)).backward()
        after = _RandomState.now(chunks[0])
        start = 0
        for index, (chunk, state) in enumerate(zip(chunks, states, strict=True)):
            last = index == len(chunks) - 1
            with self._synchronised(sync and last):
                state.restore()
                start = self._carry_on(chunk, features, start, last)
        after.restore()
        return loss.detach()

    def _chunks(self, batch: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        for name, value in batch.items():
            if not isinstance(value, Tensor) or value.ndim == 0:
                raise TypeError(
                    f"batch: got {type(value).__name__} for {name!r}; expected a tensor [N, ...]"
                )
        lengths = {name: len(value) for name, value in batch.items()}
        if len(set(lengths.values())) != 1 or not next(iter(lengths.values())):
            raise ValueError(f"batch: got lengths {lengths}; expected one length, at least 1")
        split = {name: value.split(self.chunk_size) for name, value in batch.items()}
        count = len(next(iter(split.values())))
        return [{name: parts[i] for name, parts in split.items()} for i in range(count)]

    def _encoded(self, chunk: dict[str, Tensor]) -> Features:
        with self.autocast():
            features = self.encode(**chunk)
        if not isinstance(features, Mapping):
            raise TypeError(
                f"encode: returned {type(features).__name__}; expected features by name, as "
                "open_clip's models with output_dict=True return them"
            )
        features = dict(features)
        samples = len(next(iter(chunk.values())))
        for name, value in features.items():
            if name not in self.shared and (value.ndim == 0 or len(value) != samples):
                raise ValueError(
                    f"encode: got {name} of shape {list(value.shape)} for {samples} samples; "
                    f"expected [{samples}, ...], or its name in shared {self.shared}"
                )
        return features

    def _joined(self, encoded: list[Features]) -> Features:
        """All samples' features, as leaves that collect gradients."""
        joined = {
            name: value if name in self.shared else torch.cat([part[name] for part in encoded])
            for name, value in encoded[0].items()
        }
        return {
            name: value.detach().requires_grad_(value.is_floating_point())
            for name, value in joined.items()
        }

    def _carry_on(
        self, chunk: dict[str, Tensor], features: Features, start: int, last: bool
    ) -> int:
        """Encode with a graph, and continue the backward with the chunk's part of the gradients."""
        outputs, grads = [], []
        stop = start + len(next(iter(chunk.values())))
        for name, value in self._encoded(chunk).items():
            grad = features[name].grad
            if not value.requires_grad or (name in self.shared and not last):
                continue
            if grad is None:  # the loss did not use it; DDP expects its parameters all the same
                grad = torch.zeros_like(features[name])
            outputs.append(value)
            grads.append(grad if name in self.shared else grad[start:stop])
        if outputs:
            torch.autograd.backward(outputs, grads)
        return stop

    @contextmanager
    def _synchronised(self, wanted: bool) -> Iterator[None]:
        """Reductions over ranks in the backwards within, or none."""
        no_sync = getattr(self.model, "no_sync", None)  # DDP
        switch = getattr(self.model, "set_requires_gradient_sync", None)  # FSDP2
        if wanted or (no_sync is None and switch is None):
            yield
        elif no_sync is not None:
            with no_sync():
                yield
        elif switch is not None:
            switch(False)
            try:
                yield
            finally:
                switch(True)


def _many_ranks() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class _RandomState:
    """Torch's random numbers: of the CPU, the current GPU, and those that a chunk lies on."""

    def __init__(self, cpu: Tensor, devices: dict[torch.device, Tensor]):
        self.cpu, self.devices = cpu, devices

    @classmethod
    def now(cls, chunk: Mapping[str, Tensor]) -> _RandomState:
        devices = {value.device for value in chunk.values() if value.device.type == "cuda"}
        if torch.cuda.is_available():
            devices.add(torch.device("cuda", torch.cuda.current_device()))
        states = {device: torch.cuda.get_rng_state(device) for device in devices}
        return cls(torch.get_rng_state(), states)

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        for device, state in self.devices.items():
            torch.cuda.set_rng_state(state, device)
