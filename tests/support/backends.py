"""Running a case on a backend, and which backends there are."""

from __future__ import annotations

import functools
import importlib
import json
from pathlib import Path

import pytest
import torch

import slipform_kernels
from slipform_kernels import two_way_cross_entropy
from slipform_kernels.backends import native
from support import cpu_module, emulation, interpreter
from support.cases import Case
from support.oracle import Outcome


def run(case: Case, backend: str | None, *, precision: str | None = None) -> Outcome:
    """Losses and all gradients of the case, with its g and h as upstream gradients."""
    case = case.leaves()
    losses = two_way_cross_entropy(
        case.rows, case.cols, case.scale, **case.options(), precision=precision, backend=backend
    )
    names = [n for n in Outcome.GRADIENTS if isinstance(getattr(case, n), torch.Tensor)]
    leaves = [getattr(case, n) for n in names]
    upstream = [case.g.to(losses[0].dtype), case.h.to(losses[1].dtype)]
    grads = torch.autograd.grad(losses, leaves, upstream)
    for leaf, grad in zip(leaves, grads, strict=True):
        assert grad.dtype == leaf.dtype
        assert grad.shape == leaf.shape
    return Outcome(*(loss.detach() for loss in losses), **dict(zip(names, grads, strict=True)))


@functools.cache
def native_missing() -> str | None:
    """Why the native backend cannot be tested here, or None.

    An extension that was built and does not load is a failure, not a reason to skip.
    """
    if emulation.ON or cpu_module.ON:
        return None
    try:
        importlib.import_module("slipform_kernels._native")
    except ImportError as error:
        info = Path(slipform_kernels.__file__).parent / "_build_info.json"
        if not info.exists():
            return f"the extension is not built: {error}"
        record = json.loads(info.read_text())
        if record["native"]:
            raise AssertionError("the extension was built and does not load") from error
        return f"the extension is not built: {record['reason']}"
    return None


def without_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native backend computes block by block on a CPU, over the library's products."""
    monkeypatch.setattr(native, "whole", lambda problem: None)


def every_backend(*extra: str) -> pytest.MarkDecorator:
    """Parametrises a test's `backend` over `torch`, `native` and what else is named.

    In a process for Triton's interpreter (tests/triton/test_interpreter.py) it is `triton` alone,
    in one for emulated GPU kernels (tests/native/test_kernels.py) `native` alone.
    """
    if emulation.ON:
        return pytest.mark.parametrize("backend", ["native"])
    if interpreter.ON:
        return pytest.mark.parametrize("backend", ["triton"])
    reason = native_missing()
    native = pytest.param(
        "native", marks=pytest.mark.skipif(reason is not None, reason=reason or "")
    )
    return pytest.mark.parametrize("backend", ["torch", native, *extra])
