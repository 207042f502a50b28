"""Runs a function on several ranks (gloo, one process each) and brings back what each returned."""

from __future__ import annotations

import datetime
import multiprocessing as mp
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def run_ranks(size: int, function: Callable[..., Any], *args: Any, timeout_s: float = 60) -> list:
    """`function(*args)` on ranks 0 to size - 1; their results in order.

    A rank that raises has a `Failed` as its result, which tests may look at; everything else that
    can go wrong is raised here.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("fork" if not torch.cuda.is_available() else "spawn")
        arguments = (size, folder, function, args, timeout_s)
        processes = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(size)]
        for process in processes:
            process.start()
        deadline = time.monotonic() + 4 * timeout_s + 60
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
        return [
            torch.load(path, weights_only=False) if path.exists() else Failed("died", "")
            for path in (Path(folder, f"{rank}.pt") for rank in range(size))
        ]


class Failed:
    """What a rank raised."""

    def __init__(self, kind: str, text: str):
        self.kind, self.text = kind, text

    def __repr__(self) -> str:
        return f"{self.kind}: {self.text}"


def succeeded(results: list) -> list:
    """The results, once none of them is a failure."""
    failures = [f"rank {rank}: {r}" for rank, r in enumerate(results) if isinstance(r, Failed)]
    assert not failures, "\n".join(failures)
    return results


def _rank(
    rank: int, size: int, folder: str, function: Callable[..., Any], args: tuple, timeout_s: float
) -> None:
    torch.set_num_threads(1)
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(size)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=timeout_s),
    )
    # A rank that is done and gone before another has connected to it would fail that one.
    dist.barrier()
    try:
        result = function(*args)
    except Exception as error:
        result = Failed(type(error).__name__, f"{error}\n{traceback.format_exc()}")
    torch.save(result, f"{folder}/{rank}.partial")
    os.replace(f"{folder}/{rank}.partial", f"{folder}/{rank}.pt")
    if isinstance(result, Failed):
        os._exit(0)  # a broken process group may hang when it is taken down
    dist.destroy_process_group()
