"""The training loop: updates, log, checkpoints, resuming, interruption."""

from __future__ import annotations

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
from .config import FinetuneConfig, require_same_values
from .log import EventLog, Progress, RunLog, read_log
from .ranks import of_all_ranks, on_any_rank, world
from .update import Updater

Evaluate = Callable[[nn.Module, int], Mapping[str, Any]]


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
    """What a finished run leaves: its checkpoint, its log's records (on rank 0), the seconds of
    training (evaluation and earlier sessions included), and how many records of this session
    TensorBoard lacks since it is not installed."""

    checkpoint: Path
    records: list[dict[str, Any]]
    seconds: float
    events_missing: int = 0


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
    tensorboard: bool = False,
    info: Mapping[str, Any] | None = None,
    on_start: Callable[[], None] | None = None,
) -> FinetuneResult:
    """Train `model` with `loss` for config.steps updates, in place.

    model: an open_clip CLIP or alike, or an Encoder of one, as Macco is; it is moved to `device`.
    batches: the stream of this rank's batches, of config.batch_size samples each.
    evaluate(model, step): called on rank 0 with the plain model in eval mode every
    config.eval_interval updates and after the last; the values it returns join the log. It cannot
    disturb the training's random numbers.
    tensorboard: write the log into out_dir/tensorboard too, if TensorBoard is installed.
    info: plain values on the model that are kept in the checkpoint and must be the same to resume.
    on_start: called when it is clear that the run can begin or resume, before anything is written.

    Writes out_dir/log.jsonl and out_dir/checkpoint.pt, whose "state_dict" open_clip loads. If the
    latter exists and `resume` is true, the run continues from it; on a CPU a resumed run ends with
    the same bits as an undisturbed one. A finished run returns at once, with the model as it was at
    the end. Under torch.distributed every rank calls this, and rank 0 writes.

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
    run.info = dict(info or {})
    run.start(resume=resume)
    if on_start is not None:
        on_start()
    logs = run.open_logs(tensorboard)
    bar = Progress(label=label, steps=config.steps, done=run.step, shown=progress and run.rank == 0)
    try:
        run.train(logs, bar, evaluate)
    finally:
        bar.close()
        for log in logs:
            log.close()
    model.eval()
    records = read_log(run.log_path) if run.rank == 0 else []
    missing = sum(log.missing for log in logs if isinstance(log, EventLog))
    return FinetuneResult(run.checkpoint_path, records, run.seconds, missing)


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
        self.batches = batches
        self.config = config
        self.device = device
        self.rank, self.ranks = world()
        self.checkpoint_path = out_dir / "checkpoint.pt"
        self.log_path = out_dir / "log.jsonl"
        self.events_path = out_dir / "tensorboard"
        self.updater = Updater(model, loss, config, device)
        self.model = self.updater.model
        self.info: dict[str, Any] = {}
        self.step = 0
        self.seconds = 0.0

    def start(self, *, resume: bool) -> None:
        """Take up the checkpoint if there is one and it is wanted; else begin at step 0."""
        if not (resume and self.checkpoint_path.exists()):
            seed_everything((self.config.seed + self.rank) % 2**32)
            return
        state = load_checkpoint(self.checkpoint_path, map_location=self.device)
        where = str(self.checkpoint_path)
        self.config.require_same(state["config"], where=where)
        require_same_values(
            {"ranks": len(state["batches"]), **state["info"]},
            {"ranks": self.ranks, **self.info},
            where=where,
        )
        self.model.load_state_dict(state["state_dict"])
        self.updater.load_state_dict(state)
        self.batches.load_state_dict(state["batches"][self.rank])
        self.step = state["step"]
        self.seconds = state["seconds"]
        restore_random_state(state["random"][self.rank])

    def save(self) -> None:
        """Write the checkpoint: rank 0 writes, every rank gives its random state and position."""
        own = of_all_ranks((self.batches.state_dict(), random_state()))
        if self.rank > 0:
            return
        save_checkpoint(
            self.checkpoint_path,
            {
                "config": self.config.to_dict(),
                "info": self.info,
                "step": self.step,
                "seconds": self.seconds,
                "state_dict": self.model.state_dict(),
                **self.updater.state_dict(),
                "batches": [batches for batches, _ in own],
                "random": [random for _, random in own],
            },
        )

    def open_logs(self, tensorboard: bool) -> list[RunLog | EventLog]:
        """Where records go: nowhere on ranks other than 0."""
        if self.rank > 0:
            return []
        logs: list[RunLog | EventLog] = [RunLog(self.log_path, keep_until=self.step)]
        if tensorboard:
            logs.append(EventLog(self.events_path, keep_until=self.step))
        return logs

    def train(
        self, logs: list[RunLog | EventLog], bar: Progress, evaluate: Evaluate | None
    ) -> None:
        """All updates that are left; TrainingInterrupted, after saving, on a signal to any rank."""
        with _deferred_signals() as stop_requested:
            while self.step < self.config.steps:
                measured = self.update()
                bar.update(measured)
                self.after_update(measured, logs, evaluate)
                if on_any_rank(stop_requested(), self.device):
                    self.save()
                    raise TrainingInterrupted(
                        step=self.step, steps=self.config.steps, checkpoint=self.checkpoint_path
                    )

    def update(self) -> dict[str, float]:
        """One update; returns what was measured of it."""
        begin = time.perf_counter()
        measured = self.updater.update(
            self._next_batch, step=self.step, shares=self._is_logged(self.step + 1)
        )
        self.step += 1
        elapsed = time.perf_counter() - begin
        self.seconds += elapsed
        samples = self.config.batch_size * self.config.accumulation * self.ranks
        measured["samples_per_second"] = samples / elapsed
        return measured

    def _next_batch(self) -> Batch:
        batch = next(self.batches)
        if len(batch) != self.config.batch_size:
            raise ValueError(
                f"batches: got a batch of {len(batch)} samples at step {self.step + 1}, expected "
                f"{self.config.batch_size}"
            )
        return batch

    def _is_logged(self, step: int) -> bool:
        return step == self.config.steps or step % self.config.log_interval == 0

    def after_update(
        self,
        measured: dict[str, float],
        logs: list[RunLog | EventLog],
        evaluate: Evaluate | None,
    ) -> None:
        """Evaluate, log and save where this update is due for it."""
        config = self.config
        is_last = self.step == config.steps
        record: dict[str, Any] = {"step": self.step, **measured}
        evaluated = evaluate is not None and (is_last or _is_due(self.step, config.eval_interval))
        if evaluate is not None and evaluated and self.rank == 0:
            begin = time.perf_counter()
            generators = random_state()
            self.model.eval()
            with torch.no_grad():
                record.update(evaluate(self.model, self.step))
            restore_random_state(generators)
            self.seconds += time.perf_counter() - begin
        if evaluated or self._is_logged(self.step):
            for log in logs:
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
