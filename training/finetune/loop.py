"""The training loop: updates, log, checkpoints, resuming, interruption."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .batch import Batch, BatchSource
from .checkpoint import (
    load_checkpoint,
    random_state,
    restore_random_state,
    save_checkpoint,
    seed_everything,
)
from .config import FinetuneConfig
from .log import Progress, RunLog, read_log
from .objective import loss_terms
from .optimizer import build_optimizer, build_schedule

Evaluate = Callable[[nn.Module, int], Mapping[str, Any]]


class NonFiniteLossError(ArithmeticError):
    """The loss became nan or infinite; the weights before that update are in the checkpoint."""


class TrainingInterrupted(Exception):
    """Training stopped on request (Ctrl-C or SIGTERM) with its state saved."""

    def __init__(self, *, step: int, steps: int, checkpoint: Path) -> None:
        super().__init__(
            f"interrupted after step {step} of {steps}; the state is saved in {checkpoint}, "
            "run the same command again to continue from there"
        )
        self.step = step
        self.checkpoint = checkpoint


@dataclass(frozen=True)
class FinetuneResult:
    """What a finished run leaves: its checkpoint, its log's records, and the seconds of training
    (evaluation and earlier sessions included)."""

    checkpoint: Path
    records: list[dict[str, Any]]
    seconds: float


def finetune(
    model: nn.Module,
    loss: nn.Module,
    batches: BatchSource,
    config: FinetuneConfig,
    *,
    out_dir: Path,
    device: torch.device | str = "cpu",
    label: str = "training",
    evaluate: Evaluate | None = None,
    progress: bool = True,
    resume: bool = True,
) -> FinetuneResult:
    """Train `model` with `loss` for config.steps updates, in place.

    model: an open_clip CLIP or alike (see loss_terms); it is moved to `device`.
    batches: the stream of batches, of config.batch_size samples each.
    evaluate(model, step): called with the model in eval mode every config.eval_interval updates
    and after the last; the values it returns join the log. It cannot disturb the training's random
    numbers.

    Writes out_dir/log.jsonl and out_dir/checkpoint.pt. If the latter exists and `resume` is true,
    the run continues from it; on a CPU a resumed run ends with the same bits as an undisturbed
    one. A finished run returns at once, with the model as it was at the end.

    Raises ConfigMismatchError if the checkpoint was written with other settings, ValueError for
    batches that do not fit, NonFiniteLossError naming the update, and TrainingInterrupted, after
    saving, on Ctrl-C or SIGTERM.
    """
    if batches.batch_size != config.batch_size:
        raise ValueError(
            f"batches: got batches of {batches.batch_size}, expected config.batch_size "
            f"= {config.batch_size}"
        )
    run = _Run(model.to(device), loss, batches, config, Path(out_dir), torch.device(device))
    run.start(resume=resume)
    log = RunLog(run.log_path, keep_until=run.step)
    bar = Progress(label=label, steps=config.steps, done=run.step, shown=progress)
    try:
        with _deferred_signals() as stop_requested:
            while run.step < config.steps:
                measured = run.update()
                bar.update(**{name: measured[name] for name in Progress.SHOWN})
                run.after_update(measured, log, evaluate)
                if stop_requested():
                    run.save()
                    raise TrainingInterrupted(
                        step=run.step, steps=config.steps, checkpoint=run.checkpoint_path
                    )
    finally:
        bar.close()
        log.close()
    model.eval()
    return FinetuneResult(run.checkpoint_path, read_log(run.log_path), run.seconds)


class _Run:
    """The state of a run: all that a checkpoint holds, and the steps that change it."""

    def __init__(
        self,
        model: nn.Module,
        loss: nn.Module,
        batches: BatchSource,
        config: FinetuneConfig,
        out_dir: Path,
        device: torch.device,
    ) -> None:
        self.model = model
        self.loss = loss
        self.batches = batches
        self.config = config
        self.device = device
        self.checkpoint_path = out_dir / "checkpoint.pt"
        self.log_path = out_dir / "log.jsonl"
        self.optimizer = build_optimizer(model, config)
        self.set_lr = build_schedule(self.optimizer, config)
        self.step = 0
        self.seconds = 0.0

    def start(self, *, resume: bool) -> None:
        """Take up the checkpoint if there is one and it is wanted; else begin at step 0."""
        if not (resume and self.checkpoint_path.exists()):
            seed_everything(self.config.seed)
            return
        state = load_checkpoint(self.checkpoint_path, map_location=self.device)
        self.config.require_same(state["config"], where=str(self.checkpoint_path))
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.batches.load_state_dict(state["batches"])
        self.step = state["step"]
        self.seconds = state["seconds"]
        restore_random_state(state["random"])

    def save(self) -> None:
        """Write the checkpoint; the schedule needs none, as a function of the step."""
        save_checkpoint(
            self.checkpoint_path,
            {
                "config": self.config.to_dict(),
                "step": self.step,
                "seconds": self.seconds,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "batches": self.batches.state_dict(),
                "random": random_state(),
            },
        )

    def update(self) -> dict[str, float]:
        """One update; returns what was measured of it."""
        begin = time.perf_counter()
        self.model.train()
        lr = self.set_lr(self.step)
        batch = next(self.batches)
        if len(batch) != self.config.batch_size:
            raise ValueError(
                f"batches: got a batch of {len(batch)} samples at step {self.step + 1}, expected "
                f"{self.config.batch_size}"
            )
        losses = self._backward(batch.to(self.device))
        measured = dict(losses)
        if self.config.grad_clip_norm is not None:
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip_norm)
            measured["grad_norm"] = norm.item()
        self.optimizer.step()
        self._clamp_logit_scale()
        self.step += 1
        elapsed = time.perf_counter() - begin
        self.seconds += elapsed
        measured["lr"] = lr
        measured["logit_scale"] = self.model.logit_scale.exp().item()  # type: ignore[operator]
        measured["samples_per_second"] = len(batch) / elapsed
        return measured

    def _backward(self, batch: Batch) -> dict[str, float]:
        self.optimizer.zero_grad(set_to_none=True)
        is_bf16 = self.config.precision == "bf16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=is_bf16):
            terms = loss_terms(self.model, self.loss, batch)
        total = torch.stack([term.float() for term in terms.values()]).sum()
        values = {name: term.item() for name, term in terms.items()}
        if not math.isfinite(total.item()):
            raise NonFiniteLossError(
                f"the loss is not finite at step {self.step + 1} of {self.config.steps}: {values}; "
                "no update was made from it. A lower lr, more warmup_steps or a grad_clip_norm may "
                "help"
            )
        total.backward()
        return {"loss": total.item(), **values}

    def _clamp_logit_scale(self) -> None:
        with torch.no_grad():
            scale: torch.Tensor = self.model.logit_scale  # type: ignore[assignment]
            scale.clamp_(0.0, math.log(self.config.logit_scale_max))

    def after_update(
        self, measured: dict[str, float], log: RunLog, evaluate: Evaluate | None
    ) -> None:
        """Evaluate, log and save where this update is due for it."""
        config = self.config
        is_last = self.step == config.steps
        record: dict[str, Any] = {"step": self.step, **measured}
        evaluated = evaluate is not None and (is_last or _is_due(self.step, config.eval_interval))
        if evaluate is not None and evaluated:
            begin = time.perf_counter()
            generators = random_state()
            self.model.eval()
            with torch.no_grad():
                record.update(evaluate(self.model, self.step))
            restore_random_state(generators)
            self.seconds += time.perf_counter() - begin
        if is_last or evaluated or self.step % config.log_interval == 0:
            log.write({**record, "seconds": self.seconds})
        if is_last or _is_due(self.step, config.checkpoint_interval):
            self.save()


def _is_due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


@contextmanager
def _deferred_signals() -> Iterator[Callable[[], bool]]:
    """Collect SIGINT and SIGTERM while inside, so that an update is never cut in half.

    Yields a function that says whether one came. A second SIGINT acts at once, as usual.
    Signal handlers exist in the main thread only; in another thread nothing is collected.
    """
    requested = False

    def request(signum: int, _frame: Any) -> None:
        nonlocal requested
        if requested and signum == signal.SIGINT:
            raise KeyboardInterrupt
        requested = True

    is_main = threading.current_thread() is threading.main_thread()
    handled = [signal.SIGINT, signal.SIGTERM] if is_main else []
    previous = {number: signal.signal(number, request) for number in handled}
    try:
        yield lambda: requested
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
