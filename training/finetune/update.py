"""One update: the batches' gradients, precision, clipping, the optimizer's step, the clamp."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .batch import Batch
from .config import FinetuneConfig
from .gradient_cache import GradientCache
from .objective import Encoder, loss_inputs, terms_of
from .optimizer import build_optimizer, build_schedule
from .ranks import on_any_rank, world
from .shares import measured_shares


class NonFiniteLossError(ArithmeticError):
    """The loss became nan or infinite; no update was made from it, and no checkpoint written."""


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """The forward pass's precision, by its name in the settings."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


class Updater:
    """A model, its optimizer and what belongs to an update; over ranks the model is wrapped in DDP.

    Its `model` is the plain one; `trained` is an Encoder, with what an objective adds to it.
    Every rank has to take every update.
    """

    def __init__(
        self, model: nn.Module, loss: nn.Module, config: FinetuneConfig, device: torch.device
    ) -> None:
        self.trained = Encoder.of(model)
        self.model = self.trained.model
        self.loss = loss
        self.config = config
        self.device = device
        self.optimizer = build_optimizer(self.trained, config)
        self.set_lr = build_schedule(self.optimizer, config)
        is_fp16 = config.precision == "fp16"
        self.scaler = torch.amp.GradScaler(device.type) if is_fp16 else None
        self.encoder: nn.Module = self.trained
        if world()[1] > 1:
            self.encoder = DistributedDataParallel(self.trained)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the model's weights; the schedule has none, as a function of the step."""
        scaler = None if self.scaler is None else self.scaler.state_dict()
        state = {"optimizer": self.optimizer.state_dict(), "scaler": scaler}
        if self.trained.added is not None:
            state["added"] = self.trained.added.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what state_dict gave."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        if self.trained.added is not None:
            self.trained.added.load_state_dict(state["added"])

    def update(
        self, next_batch: Callable[[], Batch], *, step: int, shares: bool
    ) -> dict[str, float]:
        """Update number `step`, from 0, on config.accumulation batches; what was measured of it.

        shares: measure the gradient shares of the last batch as well.
        Raises NonFiniteLossError, on every rank, before the weights are changed.
        """
        measured: dict[str, float] = {"lr": self.set_lr(step)}
        self.trained.train()
        self.optimizer.zero_grad(set_to_none=True)
        parts = self.config.accumulation
        for part in range(parts):
            last = part == parts - 1
            found = self._backward(
                next_batch().to(self.device), last=last, shares=shares and last, step=step
            )
            for name, value in found.items():
                is_term = not name.startswith("share_")
                measured[name] = measured.get(name, 0.0) + (value / parts if is_term else value)
        measured.update(self._step())
        with torch.no_grad():
            scale: Tensor = self.model.logit_scale  # type: ignore[assignment]
            scale.clamp_(0.0, math.log(self.config.logit_scale_max))
            measured["logit_scale"] = scale.exp().item()
        return measured

    def _backward(self, batch: Batch, *, last: bool, shares: bool, step: int) -> dict[str, float]:
        """Add the gradients of one contrastive batch; its loss, terms and, on request, shares."""
        towers, others = loss_inputs(self.loss, batch)
        terms: dict[str, Tensor] = {}
        used: dict[str, Tensor] = {}

        def loss_of(**features: Tensor) -> Tensor:
            used.update(features, **others)
            terms.update(terms_of(self.loss, used))
            total = torch.stack([term.float() for term in terms.values()]).sum()
            return total / self.config.accumulation

        if self.config.chunk_size is None:
            with self._synchronised(last):
                with self._autocast():
                    total = loss_of(**self.encoder(**towers))
                (total if self.scaler is None else self.scaler.scale(total)).backward()
        else:
            cache = GradientCache(
                self.encoder, loss_of, chunk_size=self.config.chunk_size, autocast=self._autocast
            )
            total = cache.backward(towers, scaler=self.scaler, sync=last)
        values = {name: term.item() for name, term in terms.items()}
        if on_any_rank(not math.isfinite(total.item()), self.device):
            raise NonFiniteLossError(
                f"the loss is not finite at step {step + 1} of {self.config.steps}: {values}; "
                "no update was made from it. A lower lr, more warmup_steps or a grad_clip_norm may "
                "help"
            )
        found = {"loss": total.item() * self.config.accumulation, **values}
        if shares:
            found.update(measured_shares(self.loss, used))
        return found

    def _step(self) -> dict[str, float]:
        measured = {}
        if self.config.grad_clip_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            norm = nn.utils.clip_grad_norm_(self.trained.parameters(), self.config.grad_clip_norm)
            measured["grad_norm"] = norm.item()
        if self.scaler is None:
            self.optimizer.step()
            return measured
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        # The scaler leaves out a step whose gradients overflowed, and lowers its scale.
        measured["left_out"] = float(self.scaler.get_scale() < scale)
        measured["gradient_scale"] = scale
        return measured

    def _autocast(self) -> AbstractContextManager[Any]:
        return autocast(self.device, self.config.precision)

    def _synchronised(self, wanted: bool) -> AbstractContextManager[Any]:
        """Ranks reduce their gradients in the backward within, or keep them."""
        if wanted or not isinstance(self.encoder, DistributedDataParallel):
            return nullcontext()
        return self.encoder.no_sync()
