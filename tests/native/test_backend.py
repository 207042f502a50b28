"""When the GPU part of the native backend serves, and what it says where it does not."""

from __future__ import annotations

import types

import pytest
import torch

from slipform_kernels import dispatch, ops
from slipform_kernels.backends import native, native_cuda
from support.cases import Spec, build


class Card(native_cuda.Hardware):
    def __init__(self, *capability: int):
        self.of_card = capability

    def capability(self, device: torch.device) -> tuple[int, int]:
        major, minor = self.of_card
        return major, minor


def problem(**spec):
    case = build(Spec(20, 30, **{"dim": 16, "targets": "random", **spec}))
    names = ("rows", "cols", "scale", "bias", "row_target", "col_target", "hard_cols", "margin")
    values = [getattr(case, n) for n in (*names, "row_group", "col_group")]
    return ops.problem_of(*values, precision="ieee")


@pytest.fixture
def extension(monkeypatch):
    """A GPU that the tests' CPU tensors are on, and an extension built for it."""
    kernels = types.SimpleNamespace(ARCHITECTURES="80;90;120+PTX")
    module = types.SimpleNamespace(cuda=kernels, level=lambda: "baseline")
    monkeypatch.setattr(native_cuda, "device_type", "cpu")
    monkeypatch.setattr(native_cuda, "hardware", Card(9, 0))
    monkeypatch.setattr(native, "_native", module)
    return module


def test_it_serves(extension):
    for dtype in ("float32", "bfloat16", "float16"):
        assert native_cuda.supports(problem(dtype=dtype)) is None


def test_tensors_on_a_cpu():
    reason = native_cuda.supports(problem())
    assert reason == "it computes on a CUDA device; the features are on cpu"


def test_float64(extension):
    assert "float64" in native_cuda.supports(problem(dtype="float64"))


def test_no_extension(extension, monkeypatch):
    monkeypatch.setattr(native, "_native", None)
    assert "the extension is not installed" in native_cuda.supports(problem())


def test_an_extension_without_cuda(extension):
    del extension.cuda
    assert native_cuda.supports(problem()) == "the extension is built without CUDA"


@pytest.mark.parametrize(
    ("capability", "reason"),
    [((6, 1), "below 7.0"), ((7, 5), "7.5; the extension is compiled for 80;90;120")],
)
def test_a_card_that_is_too_old(extension, capability, reason, monkeypatch):
    monkeypatch.setattr(native_cuda, "hardware", Card(*capability))
    assert reason in native_cuda.supports(problem())


@pytest.mark.parametrize(
    ("architectures", "capability", "runs"),
    [
        ("80", (8, 0), True),
        ("80", (8, 9), True),
        ("86", (8, 0), False),
        ("80", (9, 0), False),
        ("80+PTX", (9, 0), True),
        ("80;90+PTX", (12, 0), True),
        ("90;100+PTX", (8, 0), False),
        ("120", (12, 0), True),
        ("", (9, 0), True),
    ],
)
def test_what_compiled_code_runs_on(architectures, capability, runs):
    assert native_cuda.runs_on(architectures, capability) is runs


@pytest.mark.parametrize(
    ("spec", "precision", "capability", "fused"),
    [
        ({"dtype": "bfloat16", "dim": 16}, "ieee", (8, 0), True),
        ({"dtype": "float16", "dim": 24}, "ieee", (12, 0), True),
        ({"dtype": "bfloat16", "dim": 16}, "ieee", (7, 5), False),
        ({"dtype": "bfloat16", "dim": 12}, "ieee", (9, 0), False),
        ({"dtype": "float32", "dim": 16}, "ieee", (9, 0), False),
        ({"dtype": "float32", "dim": 12}, "tf32", (9, 0), True),
        ({"dtype": "float32", "dim": 10}, "tf32", (9, 0), False),
    ],
)
def test_which_form_serves(spec, precision, capability, fused, monkeypatch):
    monkeypatch.setattr(native_cuda, "hardware", Card(*capability))
    asked = problem(**spec)
    object.__setattr__(asked, "precision", precision)
    assert native_cuda.fused(asked) is fused


def test_a_named_backend_is_the_one_of_the_device(extension, monkeypatch):
    assert dispatch.choose(problem(), "native") is native_cuda
    monkeypatch.setattr(native_cuda, "device_type", "cuda")
    assert dispatch.choose(problem(), "native") is native


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 64), (300, 1000)])
def test_rows_of_a_workspace_start_at_multiples_of_128_bytes(dtype, shape):
    made = native_cuda.workspace(problem(dtype=dtype), shape)
    assert made.shape == shape
    assert made.stride(0) * made.element_size() % 128 == 0
    assert not made.is_contiguous() or shape[0] == 1


@pytest.mark.parametrize(
    ("R", "C", "entries"), [(1, 1, 10), (100, 3000, 4096), (3000, 100, 50_000), (700, 900, 10**9)]
)
def test_rectangles_cover_the_matrix_once(R, C, entries):
    covered = torch.zeros(R, C)
    for rows, cols in native_cuda._rectangles(R, C, entries, (32, 64)):
        covered[rows, cols] += 1
        assert rows.start % 32 == cols.start % 64 == 0
    assert (covered == 1).all()
