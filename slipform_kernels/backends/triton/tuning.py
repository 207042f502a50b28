"""Measured configurations in place of the table's, where the user asked for them.

    from slipform_kernels.backends.triton import tuning
    tuning.tune(32768, 32768, 512)  # minutes, on the current GPU

Nothing else tunes: a training step looks its configuration up here, and takes the table's where
there is none. What was found is kept in `SLIPFORM_CACHE` or ~/.cache/slipform.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from triton.runtime.errors import PTXASError  # type: ignore[import-untyped]

from ...engine import GradientBlock, blocks
from ...problem import Problem, Weights
from . import MAX_DEPTH, configs, interpreted, launch, tuned
from .configs import Config

Timer = Callable[[Callable[[], Any]], float]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PRECISIONS = ("ieee", "tf32")
BIASES = ("none", "scalar", "vector")

_CANDIDATES = {
    80: (
        Config(128, 128, 32, 8, 4, parts=2),
        Config(128, 128, 32, 8, 3, parts=4),
        Config(128, 64, 32, 4, 4, parts=2),
        Config(64, 128, 32, 4, 4, parts=4),
    ),
    90: (
        Config(128, 128, 64, 8, 4, parts=4, tma=True),
        Config(128, 256, 64, 8, 3, parts=8, tma=True),
        Config(128, 256, 64, 8, 4, parts=8, tma=True),
        Config(64, 128, 64, 4, 3, parts=4, tma=True),
        Config(128, 128, 64, 8, 3, parts=2),
    ),
}


@dataclass(frozen=True)
class Sample:
    """What to measure on: a random problem like those of the training step; see `tune`."""

    R: int
    C: int
    D: int
    dtype: torch.dtype
    K: int
    bias: str
    groups: bool
    precision: str

    def __post_init__(self) -> None:
        _check_int("R", self.R, 1, 2**31 - 1)
        _check_int("C", self.C, 1, 2**31 - 1)
        _check_int("D", self.D, 1, MAX_DEPTH)
        _check_int("K", self.K, 0, 2**31 - 1)
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("bias", self.bias, BIASES)
        _check_choice("groups", self.groups, (True, False))
        _check_choice("precision", self.precision, PRECISIONS)

    def problem(self, device: torch.device) -> Problem:
        """Unit rows and columns, positives on the diagonal, contents that are all different."""
        R, C, K = self.R, self.C, self.K
        generator = torch.Generator(device).manual_seed(0)
        row, col = torch.arange(R, device=device), torch.arange(C, device=device)
        hard = margin = bias = None
        if K:
            # As NegCLIP has them: behind the positives, row by row. Anywhere, they would mark most
            # tiles, and the slow branch decide.
            hard = (R + row[:, None] * K + torch.arange(K, device=device)) % C
            margin = torch.full((R, K), 0.05, device=device)
        if self.bias != "none":
            bias = torch.zeros((C,) if self.bias == "vector" else (), device=device)
        return Problem(
            self._features(R, generator), self._features(C, generator),
            torch.tensor(20.0, device=device), bias,
            torch.where(row < C, row, -1), torch.where(col < R, col, -1), hard, margin,
            row if self.groups else None, R + col if self.groups else None, self.precision,
        )  # fmt: skip

    def _features(self, n: int, generator: torch.Generator) -> torch.Tensor:
        x = torch.randn(n, self.D, device=generator.device, generator=generator)
        return torch.nn.functional.normalize(x, dim=1).to(self.dtype)


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
    bias: str = "none",
    groups: bool = False,
    precision: str = "ieee",
    device: str | torch.device = "cuda",
    timer: Timer | None = None,
) -> dict[str, Config]:
    """Time every candidate on random features [R, D] and [C, D], and keep the fastest.

    What is kept serves losses of the same kind of dtype, D, K, bias and groups on such a device.

    Args:
        R, C: rows and columns, as in the training step.
        D: width of the features, up to 2048.
        dtype: torch.float32, torch.bfloat16 or torch.float16; the latter two share their results.
        K: number of hard columns with margins.
        bias: "none", "scalar", or "vector": one a column.
        groups: whether there are `row_group` and `col_group`.
        precision: "ieee" or "tf32", of fp32 products.
        device: a CUDA device of compute capability 8.0 or newer.
        timer: gives a function's milliseconds; default `triton.testing.do_bench`.

    Returns:
        The configuration of each kernel, "statistics" and "gradient". Candidates that do not fit
        the device are left out; one that spills registers is kept only where all do.

    Raises:
        TypeError, ValueError: an argument that is none of the above.
        RuntimeError: no such device, or none of the candidates runs.
        OSError: the folder of results cannot be written. As the errors above, before anything runs.
    """
    sample = Sample(R, C, D, dtype, K, bias, groups, precision)
    device = _checked_device(device, timer)
    tuned.check_writable()
    problem = sample.problem(device)
    best = {}
    for kernel in configs.KERNELS:
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            best[kernel] = _fastest(kernel, problem, timer or triton.testing.do_bench)
        # At once: what comes after may be interrupted.
        tuned.save({tuned.key_of(kernel, problem): best[kernel]})
    return best


def _fastest(kernel: str, problem: Problem, measure: Timer) -> Config:
    times: dict[Config, tuple[bool, float]] = {}
    refused = {}
    kind = configs.product_kind(problem.rows.dtype, problem.precision)
    for config in candidates(kernel, launch.architecture(problem.rows.device), kind):
        try:
            spills = _spills(kernel, problem, config)
            times[config] = spills, measure(_call(kernel, problem, config))
        except (triton.OutOfResources, triton.CompilationError, PTXASError) as error:
            refused[config] = str(error)
    if not times:
        raise RuntimeError(f"tune: no configuration of the {kernel} kernel runs: {refused}")
    return min(times, key=lambda config: times[config])


def _check_int(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name}: got {value!r}; expected an int")
    if not least <= value <= most:
        raise ValueError(f"{name}: got {value}; expected an int from {least} to {most}")


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    # 1 == True, but it says nothing of groups.
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise ValueError(f"{name}: got {value!r}; expected one of {', '.join(map(repr, choices))}")


def _checked_device(device: str | torch.device, timer: Timer | None) -> torch.device:
    """The device, once it is one that kernels can be timed on."""
    if timer is not None and not callable(timer):
        raise TypeError(f"timer: got {timer!r}; expected a function, or None")
    try:
        made = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device: got {device!r}; expected a CUDA device") from error
    if made.type == "cpu" and timer is not None:
        return made  # kernels may be interpreted, and the timer know what to do with them
    if made.type != "cuda":
        raise ValueError(f"device: got {str(made)!r}; expected a CUDA device")
    reason = _unfit(made)
    if reason is not None:
        raise RuntimeError(f"device: got {str(made)!r}; expected a CUDA device, but {reason}")
    return made


def _unfit(device: torch.device) -> str | None:
    """Why the kernels cannot be timed on a CUDA device, or None."""
    if interpreted():
        return "TRITON_INTERPRET is set: kernels run on the CPU"
    if not torch.cuda.is_available():
        return "torch finds none (torch.cuda.is_available() is False)"
    if device.index is not None and device.index >= torch.cuda.device_count():
        return f"there are {torch.cuda.device_count()}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "this one's compute capability is below 8.0"
    return None


def _call(kernel: str, problem: Problem, config: Config) -> Callable[[], Any]:
    """One run of the kernel, of the gradient over a block as large as the driver makes it."""
    if kernel == "statistics":
        return lambda: launch.statistics(problem, config)
    R, C = problem.shape
    rows, cols = next(blocks(R, C, problem.rows.device, problem.rows.element_size()))
    new = problem.rows.new_zeros
    weights = Weights(*(new(n, dtype=torch.float32) for n in (R, R, R, C, C, C)))
    logits = launch.workspace(problem, (rows.stop, cols.stop))
    needed = {
        "scale": True,
        "bias": problem.bias is not None,
        "margin": tuned.hard_count(problem) > 0,
    }
    out = GradientBlock(rows, cols, logits, None, problem, needed)
    return lambda: launch.gradient(problem, weights, out, config)


def _spills(kernel: str, problem: Problem, config: Config) -> bool:
    """Whether the compiled kernel keeps registers in memory; nothing is compiled for a CPU."""
    if problem.rows.device.type != "cuda":
        return False
    if kernel == "statistics":
        rows, cols = slice(0, min(problem.shape[0], launch.BAND)), slice(0, problem.shape[1])
        compiled, *_ = launch.partial_statistics(problem.block(rows, cols), config)
    else:
        compiled = _call(kernel, problem, config)()
    return compiled.n_spills > 0
