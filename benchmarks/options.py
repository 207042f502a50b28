"""The options of `python -m pytest benchmarks/...`, and what of them is refused."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers import LOSSES, SIGMOID_LOSSES
from benchmarks.peers.encoder import WAYS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PASSES = ("forward", "backward", "both")
PEERS = tuple(dict.fromkeys((*LOSSES, *SIGMOID_LOSSES, *WAYS)))
DEVICES = ("auto", "cpu", "cuda")


def count(text: str) -> int:
    """An integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected an integer of at least 1")
    return int(text)


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """A type of argparse that names the nearest choice."""

    def choice(text: str) -> str:
        if text not in choices:
            near = difflib.get_close_matches(text, choices, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise argparse.ArgumentTypeError(
                f"got {text!r}, expected one of {', '.join(choices)}{hint}"
            )
        return text

    return choice


def existing_file(text: str) -> Path:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a file")
    return Path(text)


def seconds(text: str) -> float:
    """More than 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected seconds, more than 0")
    return value


# One that a test file has a default of its own for (SIZES for --sizes, and so on) has none here.
OPTIONS: dict[str, dict[str, Any]] = {
    "--sizes": {"type": count, "nargs": "+", "help": "N, rows and columns"},
    "--dims": {"type": count, "nargs": "+", "help": "D, the width of a feature"},
    "--dtypes": {"type": one_of(tuple(DTYPES)), "nargs": "+", "help": "of the features"},
    "--passes": {"type": one_of(PASSES), "nargs": "+", "help": "what is timed"},
    "--batches": {"type": count, "nargs": "+", "help": "samples of a step or of MACCO's head"},
    "--peers": {"type": one_of(PEERS), "nargs": "+", "help": "what is measured; default: all"},
    "--model": {"default": "ViT-S-32-alt", "help": "open_clip's, of the encoders' step"},
    "--captions": {"type": existing_file, "metavar": "FILE", "help": "of the miner, its input"},
    "--rounds": {"type": count, "default": 5, "help": "pairs of runs; more where N < 2,048"},
    "--threads": {"type": count, "default": 2, "help": "of torch"},
    "--device": {"type": one_of(DEVICES), "default": "auto", "help": "auto: a GPU if there is one"},
    "--seconds": {"type": seconds, "help": "start no further case after that"},
}
LISTS = ("sizes", "dims", "dtypes", "passes", "batches", "peers")


@dataclass(frozen=True)
class Options:
    """The options that are not lists, as the benchmarks use them."""

    device: torch.device
    rounds: int
    threads: int
    model: str
    captions: Path | None
    seconds: float | None

    @classmethod
    def of(cls, get: Callable[[str], Any]) -> Options:
        """From `config.getoption`.

        Raises:
            ValueError: a list with an entry twice; cuda where there is none.
        """
        for name in LISTS:
            values = get(name) or []
            twice = [value for value in dict.fromkeys(values) if values.count(value) > 1]
            if twice:
                raise ValueError(f"--{name}: got {twice[0]} twice, expected each once")
        device = get("device")
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device: got cuda, expected cpu or auto: there is no CUDA device")
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        others = {name: get(name) for name in ("rounds", "threads", "model", "captions", "seconds")}
        return cls(torch.device(device), **others)


def rounds_at(N: int, rounds: int) -> int:
    """Small cases are cheap and noisy: more rounds."""
    return rounds * max(1, min(20, 2048 // N))
