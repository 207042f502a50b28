"""What the launch code asks of Triton, without a GPU: every launch is caught before it compiles.

A stand-in for Triton's driver names an architecture, and a hook that Triton calls before it
compiles a kernel takes down what would be compiled and says that it was done elsewhere.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.static_compile import KERNELS, Variant, signature_of
from slipform_kernels import dispatch, engine, ops
from slipform_kernels.backends import triton as backend
from slipform_kernels.backends.triton import backward, configs, forward, launch, prepare
from slipform_kernels.problem import Problem
from support.backends import run
from support.cases import Case, Spec, build

FUNCTIONS = {
    function.fn.__qualname__: function
    for module in (forward, backward, prepare)
    for function in vars(module).values()
    if isinstance(function, triton.runtime.JITFunction)
}


class Driver:
    """What Triton asks of a driver until it would load a kernel."""

    def __init__(self, architecture: int) -> None:
        self.target = GPUTarget("cuda", architecture, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        # Triton keeps what it knows of a kernel by device.
        return self.target.arch

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture(params=[80, 90])
def launches(request, monkeypatch):
    """(kernel, specialisation key, signature, constants, attributes) of every launch."""
    seen: list[tuple[str, str, dict[str, Any]]] = []

    def hook(*, key, fn, compile, **_):
        seen.append((fn.name, key, compile))
        return True

    monkeypatch.setattr(triton.runtime.driver, "_active", Driver(request.param))
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", hook)
    monkeypatch.setattr(launch, "architecture", lambda device: request.param)
    monkeypatch.setattr(backend, "supports", lambda problem: None)
    monkeypatch.setattr(engine, "CACHE_BYTES", 0)
    monkeypatch.setattr(engine, "WORKSPACE_BYTES", 64 << 10)
    return seen


FULL = Spec(
    256, 256, 64, "bfloat16", "random", hard=2, margin="random", bias="vector", groups="rare"
)
PLAIN = Spec(256, 256, 512, "bfloat16")


@pytest.mark.parametrize("spec", [FULL, PLAIN, replace(FULL, dtype="float32", bias="0d")])
def test_ragged_batches_compile_nothing_new(launches, spec):
    """Sizes that are 1, odd, or multiples of 16 and of the tiles; several blocks, some narrow."""
    run(build(spec), "triton")
    known = {key for _, key, _ in launches}
    assert len(known) == 6  # statistics, merge, gradient, and three that prepare
    for n_rows, n_cols in ((1, 2), (255, 256), (17, 400), (128, 16), (333, 3)):
        run(build(replace(spec, rows=n_rows, cols=n_cols)), "triton")
    assert {key for _, key, _ in launches} == known


def test_features_at_odd_addresses_compile_nothing_new(launches):
    """A slice of a batch need not start at a multiple of 16 bytes; its kernels are the same."""
    case = build(replace(PLAIN, rows=64, cols=64, dim=40))
    run(case, "triton")
    known = {key for _, key, _ in launches}
    moved = vars(case).copy()
    for name in ("rows", "cols", "scale", "g", "h"):
        whole = torch.zeros(moved[name].numel() + 1, dtype=moved[name].dtype)
        moved[name] = whole[1:].view(moved[name].shape).copy_(moved[name])
        assert moved[name].data_ptr() % 16
    moved["row_target"] = torch.zeros(65, dtype=torch.int64)[1:].copy_(torch.arange(64))
    moved["col_target"] = torch.zeros(65, dtype=torch.int64)[1:].copy_(torch.arange(64))
    run(Case(**moved), "triton")
    assert {key for _, key, _ in launches} == known


@pytest.mark.parametrize(
    ("dim", "dtype", "padded"), [(511, "bfloat16", 512), (510, "float32", 512), (9, "float16", 16)]
)
def test_rows_are_padded_to_16_bytes(launches, dim, dtype, padded):
    """Narrower loads of other widths would spill: the static report is about padded ones."""
    run(build(replace(PLAIN, rows=64, cols=64, dim=dim, dtype=dtype)), "triton")
    for function in KERNELS.values():
        caught = next(made for name, _, made in launches if name == function.fn.__qualname__)
        assert caught["constants"][(function.arg_names.index("D"),)] == padded


@pytest.mark.parametrize("K", [0, 2])
def test_the_static_report_compiles_what_is_launched(launches, K):
    """The same types, constants, alignments and options, for both kernels."""
    architecture = triton.runtime.driver.active.target.arch
    spec = replace(PLAIN, hard=K or None, margin="random" if K else None, bias="vector")
    run(build(replace(spec, groups="rare")), "triton")
    for kernel, function in KERNELS.items():
        grads = ("scale", "bias", "margin") if K else ("scale", "bias")
        variant = Variant(kernel, architecture, D=512, K=K, bias="vector", groups=True, grads=grads)
        signature, constants, attributes = signature_of(variant, variant.config)
        caught = next(made for name, _, made in launches if name == function.fn.__qualname__)
        unread = {"hard_ptr", "margin_ptr", "margin_grad_ptr"} if K == 0 else set()
        assert {n: t for n, t in caught["signature"].items() if n not in unread} == {
            n: t for n, t in signature.items() if n not in unread
        }
        assert {function.arg_names[at]: v for (at,), v in caught["constants"].items()} == constants
        assert {k: v for k, v in caught["configs"][0].items() if v} == attributes
        options = configs.compiler_options(kernel, variant.config, bias="vector", groups=True)
        assert caught["num_warps"] == options["num_warps"]
        assert caught["num_stages"] == options["num_stages"]


def test_every_launched_kernel_compiles(launches):
    """The interpreter is Python and accepts what the compiler does not, in the small ones too."""
    architecture = triton.runtime.driver.active.target.arch
    run(build(FULL), "triton")
    made = {name: compile for name, _, compile in launches}
    assert len(made) == 6
    for name, found in made.items():
        source = ASTSource(
            FUNCTIONS[name], found["signature"], found["constants"], found["configs"][0]
        )
        options = {"num_warps": found["num_warps"], "num_stages": found["num_stages"]}
        target = GPUTarget("cuda", architecture, 32)
        assert triton.compile(source, target=target, options=options).asm["cubin"], name


class NoWaiting(TorchDispatchMode):
    """Refuses whatever makes the host wait for the device."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        name = func.overloadpacket.__name__
        assert not any(name.startswith(wait) for wait in self.WAITS), f"{name} waits for the GPU"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("spec", [FULL, replace(FULL, dtype="float16", bias="1d"), PLAIN])
def test_nothing_waits_for_the_device(launches, spec, monkeypatch):
    """The whole step: operators, driver, launches. Ranges are checked for CPU tensors only."""
    monkeypatch.setattr(ops, "check_ranges", lambda *args: None)
    case = build(spec)
    watch = NoWaiting()
    with watch:
        run(case, "triton")
    assert watch.calls > 30
    assert len(launches) > 6


def test_waiting_is_noticed():
    with NoWaiting(), pytest.raises(AssertionError, match="waits"):
        float(torch.ones(()))


def problem(device: str = "cpu", D: int = 8, dtype: torch.dtype = torch.float32) -> Problem:
    features, index = torch.zeros(4, D, dtype=dtype), torch.arange(4)
    return Problem(features, features, torch.tensor(1.0), None, index, index)


class OnGpu:
    """Stands for a problem's features on a GPU."""

    def __init__(self, features: torch.Tensor) -> None:
        self.shape, self.dtype = features.shape, features.dtype
        self.device = torch.device("cuda", 0)


def on_gpu(made: Problem) -> Problem:
    features = OnGpu(made.rows)
    return replace(made, rows=features, cols=features)


@pytest.fixture
def gpu(monkeypatch):
    """As if there were an H100."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))


def test_supported_problems(gpu):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert backend.supports(on_gpu(problem(dtype=dtype))) is None
    assert backend.supports(on_gpu(problem(D=2048))) is None


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: problem(), "features are on cpu"),
        (lambda: on_gpu(problem(D=2049)), "D = 2049"),
        (lambda: on_gpu(problem(dtype=torch.float64)), "float64"),
    ],
)
def test_refusals_give_a_reason(gpu, made, reason):
    assert reason in backend.supports(made())


def test_old_gpus_are_refused(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    assert "compute capability is below 8.0" in backend.supports(on_gpu(problem()))


def test_no_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in backend.supports(on_gpu(problem()))


def test_the_next_backend_serves_with_one_warning(gpu, monkeypatch):
    monkeypatch.delenv(dispatch.OVERRIDE, raising=False)
    monkeypatch.setattr(dispatch, "_warned", set())
    others = tuple(other for other in dispatch.BACKENDS if other.name != "native")
    monkeypatch.setattr(dispatch, "BACKENDS", others)  # whether it is built with CUDA or not
    deep = on_gpu(problem(D=2049))
    with pytest.warns(UserWarning, match="triton backend does not serve here .*D = 2049"):
        assert dispatch.choose(deep, "auto").name == "torch"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dispatch.choose(deep, "auto").name == "torch"
        assert dispatch.choose(on_gpu(problem()), "auto").name == "triton"
    with pytest.raises(RuntimeError, match="D = 2049"):
        dispatch.choose(deep, "triton")
