"""Options: what is refused says what came and what was expected."""

from __future__ import annotations

import argparse

import pytest
import torch

from benchmarks import options
from benchmarks.options import Options

DEFAULTS = {
    **dict.fromkeys(options.LISTS),
    "device": "cpu",
    "rounds": 5,
    "threads": 2,
    "model": "M",
    "captions": None,
    "seconds": None,
}


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    for name, settings in options.OPTIONS.items():
        parser.add_argument(name, **settings)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "256", "0"], "got '0', expected an integer of at least 1"),
        (["--sizes", "-5.5"], "got '-5.5', expected an integer of at least 1"),
        (["--dims", "wide"], "got 'wide', expected an integer of at least 1"),
        (["--rounds", "0"], "got '0', expected an integer of at least 1"),
        (["--dtypes", "fp23"], "did you mean fp32?"),
        (["--peers", "nativ"], "did you mean native?"),
        (["--passes", "sideways"], "expected one of forward, backward, both"),
        (["--seconds", "-3"], "expected seconds, more than 0"),
        (["--captions", "no/such/file"], "got 'no/such/file', expected a file"),
    ],
)
def test_a_value_that_is_none_is_refused(arguments, message):
    with pytest.raises(argparse.ArgumentError, match=r"argument --") as error:
        parsed(*arguments)
    assert message in str(error.value)


def test_lists_are_read_in_their_order():
    found = parsed("--sizes", "8192", "256", "--dtypes", "bf16", "--peers", "torch", "liger")
    assert (found.sizes, found.dtypes, found.peers) == ([8192, 256], ["bf16"], ["torch", "liger"])


@pytest.mark.parametrize("name", options.LISTS)
def test_an_entry_twice_would_make_two_rows_of_one_key(name):
    with pytest.raises(ValueError, match=f"--{name}: got b twice, expected each once"):
        Options.of((DEFAULTS | {name: ["a", "b", "b"]}).get)


def test_a_device_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Options.of((DEFAULTS | {"device": "auto"}).get).device == torch.device("cpu")
    with pytest.raises(ValueError, match="--device: got cuda, expected cpu or auto"):
        Options.of((DEFAULTS | {"device": "cuda"}).get)


@pytest.mark.parametrize(("N", "rounds"), [(16, 100), (256, 40), (1024, 10), (2048, 5), (8192, 5)])
def test_small_cases_have_more_rounds(N, rounds):
    assert options.rounds_at(N, 5) == rounds
