"""What ranks tell each other before they exchange features, so that no rank waits for another.

One small message a loss, on the CPU where the process group has a CPU backend, so that a GPU is not
waited for. What must be equal and is not, or an argument that one rank refused, ends in an error on
every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .exchange import MODES, Exchange, all_gather, explained
from .problem import Problem
from .validation import FLOATS

LOSSES = ("two_way_cross_entropy", "sigmoid_cross_entropy", "sum of sigmoid_cross_entropy")
_REFUSED = -1
_BIAS = ("none", "one number", "one a column")


class Terms(NamedTuple):
    """One rank's part in a loss: its sizes, and what all ranks must have alike."""

    columns: int
    width: int
    dtype: int
    bias: int
    groups: int
    mode: int
    backward: int  # whether there will be one, and through which of columns and bias
    loss: int

    def text(self) -> dict[str, str]:
        """What must be equal, in the words of the arguments."""
        through = "".join(
            f" {name}" for bit, name in ((2, "cols"), (4, "bias")) if self.backward & bit
        )
        return {
            "loss": LOSSES[self.loss],
            "D, the width of the features": str(self.width),
            "dtype of the features": str(FLOATS[self.dtype]),
            "bias": _BIAS[self.bias],
            "row_group and col_group": "given" if self.groups else "not given",
            "exchange": MODES[self.mode],
            "gradients wanted": f"yes{through}" if self.backward else "no",
        }


def terms_of(problem: Problem, mode: str, needs: list[bool], loss: str = LOSSES[0]) -> Terms:
    """`needs`: whether rows, cols, scale, bias and margin need gradients; `loss`: of LOSSES."""
    _, cols, _, bias, _ = needs
    ndim = None if problem.bias is None else problem.bias.ndim
    return Terms(
        problem.cols.shape[0],
        problem.cols.shape[1],
        FLOATS.index(problem.rows.dtype),
        0 if ndim is None else 1 + ndim,
        problem.row_group is not None,
        MODES.index(mode),
        any(needs) + 2 * cols + 4 * (bias and ndim == 1),
        LOSSES.index(loss),
    )


def agree(group: dist.ProcessGroup, terms: Terms, device: torch.device) -> Exchange:
    """The exchange that all ranks enter.

    Raises ValueError on every rank where terms differ, and RuntimeError where a rank has refused.
    """
    everyones = _told(group, list(terms), device)
    refused = [rank for rank, told in enumerate(everyones) if told[0] == _REFUSED]
    if refused:
        raise RuntimeError(
            f"{_ranks(refused)} refused the arguments; the error is raised there, and nothing was "
            "exchanged"
        )
    texts = [Terms(*told).text() for told in everyones]
    for name, own in terms.text().items():
        by_value: dict[str, list[int]] = {}
        for rank, text in enumerate(texts):
            by_value.setdefault(text[name], []).append(rank)
        if len(by_value) > 1:
            got = ", ".join(f"{value} on {_ranks(ranks)}" for value, ranks in by_value.items())
            if name == "bias" and "one a column" in by_value:
                got += " (a hard_mask makes one a column)"
            raise ValueError(f"{name}: got {got}; expected the same on all ranks, here {own}")
    return Exchange(group, [told[0] for told in everyones], MODES[terms.mode])


def refusing(group: dist.ProcessGroup | None, device: torch.device) -> AbstractContextManager[None]:
    """Tell the ranks that wait in `agree` where this one has an error to raise instead."""
    return nullcontext() if group is None else _refusing(group, device)


@contextmanager
def _refusing(group: dist.ProcessGroup, device: torch.device) -> Iterator[None]:
    try:
        yield
    except Exception:
        _told(group, [_REFUSED] * len(Terms._fields), device)
        raise


def _told(group: dist.ProcessGroup, message: list[int], device: torch.device) -> list[list[int]]:
    if "cpu" in dist.get_backend_config(group):
        device = torch.device("cpu")
    own = torch.tensor(message, device=device)
    everyones = own.new_empty(dist.get_world_size(group) * len(message))
    with explained("agreeing on shapes"):
        all_gather(everyones, own, group=group)
    return everyones.view(-1, len(message)).tolist()


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def device_of(*arguments: object) -> torch.device:
    """That of the first tensor among them."""
    for one in arguments:  # not next(): the compiler of torch 2.8 takes no generator with a default
        if isinstance(one, Tensor):
            return one.device
    return torch.device("cpu")
