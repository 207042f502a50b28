"""Measured configurations in place of the table's, where the user asked for them.

    from slipform_kernels.backends.triton import tuning
    tuning.tune(32768, 32768, 512)  # minutes, on the current GPU

Nothing else tunes: a training step looks its configuration up here, and takes the table's where
there is none. What was found is kept in `SLIPFORM_CACHE` or ~/.cache/slipform.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import triton  # type: ignore[import-untyped]

from ...engine import GradientBlock, blocks
from ...problem import Problem, Weights
from . import configs, launch, tuned
from .configs import Config

Timer = Callable[[Callable[[], Any]], float]

_CANDIDATES = {
    80: (
        Config(128, 128, 32, 8, 4, parts=2),
        Config(128, 128, 32, 8, 3, parts=4),
        Config(128, 64, 32, 4, 4, parts=2),
        Config(64, 128, 32, 4, 4, parts=4),
        Config(128, 256, 32, 8, 3, parts=8),
    ),
    90: (
        Config(128, 128, 64, 8, 4, parts=4, tma=True),
        Config(128, 256, 64, 8, 3, parts=8, tma=True),
        Config(128, 256, 64, 8, 4, parts=8, tma=True),
        Config(64, 128, 64, 4, 3, parts=4, tma=True),
        Config(128, 128, 64, 8, 3, parts=2),
    ),
}


def candidates(kernel: str, architecture: int, kind: str) -> list[Config]:
    """The table's configuration and others worth measuring beside it."""
    first = configs.TABLE[kernel, architecture, kind]
    if kind == "ieee":
        others = [replace(first, warps=4), replace(first, rows=128), replace(first, cols=32)]
    else:
        others = list(_CANDIDATES[min(architecture, 90)])
        if kind == "tf32":
            others = [replace(config, depth=config.depth // 2) for config in others]
    return [first, *(config for config in others if config != first)]


def tune(
    R: int,
    C: int,
    D: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    K: int = 0,
    precision: str = "ieee",
    device: str | torch.device = "cuda",
    timer: Timer | None = None,
) -> dict[str, Config]:
    """Time every candidate on random features [R, D] and [C, D], and keep the fastest.

    `K` is the number of hard columns with margins, `timer` gives a function's milliseconds
    (`triton.testing.do_bench`). A candidate that does not fit the device is left out. Returns the
    configuration of each kernel, "statistics" and "gradient"; raises RuntimeError where none runs.
    """
    problem = _problem(R, C, D, dtype, K, precision, torch.device(device))
    kind = configs.product_kind(dtype, precision)
    measure = timer or triton.testing.do_bench
    best = {}
    for kernel in configs.KERNELS:
        times, refused = {}, {}
        for config in candidates(kernel, launch.architecture(problem.rows.device), kind):
            try:
                times[config] = measure(_call(kernel, problem, config))
            except (triton.OutOfResources, triton.CompilationError) as error:
                refused[config] = str(error)
        if not times:
            raise RuntimeError(f"tune: no configuration of the {kernel} kernel runs: {refused}")
        best[kernel] = min(times, key=lambda config: times[config])
    tuned.save({tuned.key_of(kernel, problem): config for kernel, config in best.items()})
    return best


def _problem(
    R: int, C: int, D: int, dtype: torch.dtype, K: int, precision: str, device: torch.device
) -> Problem:
    generator = torch.Generator(device).manual_seed(0)

    def features(n: int) -> torch.Tensor:
        x = torch.randn(n, D, device=device, generator=generator)
        return torch.nn.functional.normalize(x, dim=1).to(dtype)

    def diagonal(n: int, other: int) -> torch.Tensor:
        index = torch.arange(n, device=device)
        return torch.where(index < other, index, -1)

    hard = margin = None
    if K:
        hard = torch.randint(0, C, (R, K), device=device, generator=generator)
        margin = torch.full((R, K), 0.05, device=device)
    return Problem(
        features(R), features(C), torch.tensor(20.0, device=device), None,
        diagonal(R, C), diagonal(C, R), hard, margin, precision=precision,
    )  # fmt: skip


def _call(kernel: str, problem: Problem, config: Config) -> Callable[[], Any]:
    """One run of the kernel, of the gradient over a block as large as the driver makes it."""
    problem = replace(problem)  # tiles are marked anew for every configuration
    if kernel == "statistics":
        return lambda: launch.statistics(problem, config)
    R, C = problem.shape
    rows, cols = next(blocks(R, C, problem.rows.device, problem.rows.element_size()))
    new = problem.rows.new_zeros
    weights = Weights(*(new(n, dtype=torch.float32) for n in (R, R, R, C, C, C)))
    logits = launch.workspace(problem, (rows.stop, cols.stop))
    needed = {"scale": True, "bias": False, "margin": tuned.hard_count(problem) > 0}
    out = GradientBlock(rows, cols, logits, None, problem, needed)
    return lambda: launch.gradient(problem, weights, out, config)
