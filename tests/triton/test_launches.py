"""What the launch code asks of Triton, without a GPU: every launch is caught before it compiles.

A stand-in for Triton's driver names an architecture, and a hook that Triton calls before it
compiles a kernel takes down what would be compiled and says that it was done elsewhere.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from benchmarks.static_compile import KERNELS, Variant, options_of, signature_of
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


@pytest.fixture(params=configs.ARCHITECTURES)
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


# The options of a loss, and what the kernels are compiled for.
OPTIONS = {
    "none": ({}, {}),
    "scalar bias": ({"bias": "0d"}, {"bias": "scalar"}),
    "bias": ({"bias": "vector"}, {"bias": "vector"}),
    "groups": ({"groups": "rare"}, {"groups": True}),
    "all": ({"bias": "vector", "groups": "rare"}, {"bias": "vector", "groups": True}),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("K", [0, 2])
def test_the_static_report_compiles_what_is_launched(launches, K, options, dtype):
    """The same types, constants, alignments and options of the compiler, for both kernels."""
    architecture = triton.runtime.driver.active.target.arch
    of_loss, of_kernel = OPTIONS[options]
    hard = {"hard": K, "margin": "random"} if K else {}
    run(build(replace(PLAIN, dtype=dtype, **of_loss, **hard)), "triton")
    grads = ("scale", *(["bias"] if "bias" in of_kernel else []), *(["margin"] if K else []))
    short = {"bfloat16": "bf16", "float32": "fp32"}[dtype]
    for kernel, function in KERNELS.items():
        variant = Variant(kernel, architecture, short, D=512, K=K, grads=grads, **of_kernel)
        signature, constants, attributes = signature_of(variant, variant.config)
        caught = next(made for name, _, made in launches if name == function.fn.__qualname__)
        unread = unread_by(variant)
        assert without(unread, caught["signature"]) == without(unread, signature)
        assert {function.arg_names[at]: v for (at,), v in caught["constants"].items()} == constants
        assert {k: v for k, v in caught["configs"][0].items() if v} == attributes
        assert launched_options(caught) == all_options(architecture, variant)


def unread_by(variant: Variant) -> set[str]:
    """Arguments that the kernel never reads, for which any tensor stands in."""
    unread = set() if variant.K else {"hard_ptr", "margin_ptr", "margin_grad_ptr"}
    return unread | (set() if variant.groups else {"row_group_ptr", "col_group_ptr"})


def without(names: set[str], signature: dict[str, str]) -> dict[str, str]:
    return {name: kind for name, kind in signature.items() if name not in names}


def launched_options(caught: dict[str, Any]) -> dict[str, Any]:
    """Every option that the compiler would have had."""
    return json.loads(caught["specialization_data"])["options"]


def all_options(architecture: int, variant: Variant) -> dict[str, Any]:
    """The static report's, with the defaults of what it does not set."""
    compiler = make_backend(GPUTarget("cuda", architecture, 32))
    options = compiler.parse_options(options_of(variant, variant.config))
    return json.loads(json.dumps(vars(options)))


@pytest.mark.parametrize("architecture", [90, 100])
def test_registers_are_limited_but_where_more_vectors_are_held(architecture):
    """What the comparison above would not tell, were it wrong on both sides."""
    limits = {}
    for kernel, (bias, groups) in itertools.product(
        KERNELS, [("none", False), ("scalar", False), ("vector", False), ("none", True)]
    ):
        config = configs.TABLE[kernel, architecture, "half"]
        options = configs.compiler_options(kernel, config, bias=bias, groups=groups)
        assert (options["num_warps"], options["num_stages"]) == (config.warps, config.stages)
        limits[kernel, bias, groups] = options["maxnreg"]
    crowded = {("gradient", "vector", False), ("gradient", "none", True)}
    assert limits == {key: 255 if key in crowded else 128 for key in limits}


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
        options = {n: launched_options(found)[n] for n in ("num_warps", "num_stages", "maxnreg")}
        target = GPUTarget("cuda", architecture, 32)
        assert triton.compile(source, target=target, options=options).asm["cubin"], name


class _NoWaiting(TorchDispatchMode):
    """Refuses operators whose result the host waits for: values, and sizes that depend on them."""

    WAITS = ("_local_scalar_dense", "is_nonzero", "equal", "allclose", "nonzero", "masked_select")
    WAITS += ("unique", "_unique", "bincount", "repeat_interleave")
    INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        name = func.overloadpacket.__name__
        assert not name.startswith(self.WAITS), f"{name} waits for the GPU"
        if name in self.INDEXING:
            masks = [index for index in args[1] if index is not None and index.dtype == torch.bool]
            assert not masks, f"{name} with a mask waits for the GPU"
        return func(*args, **(kwargs or {}))


@contextmanager
def _no_copies_to_the_host():
    """Refuses methods that copy to the host: for a tensor on the CPU they are no operators."""

    def refusing(name: str) -> Callable[..., Any]:
        def method(*args, **kwargs):
            raise AssertionError(f"{name} waits for the GPU")

        return method

    def to(self, *args, **kwargs):
        named = [a for a in (*args, *kwargs.values()) if isinstance(a, (str, torch.device))]
        hosts = [name for name in named if torch.device(name).type == "cpu"]
        assert not hosts, "to waits for the GPU"
        return original(self, *args, **kwargs)

    original = torch.Tensor.to
    with pytest.MonkeyPatch.context() as patch:
        for name in ("tolist", "cpu", "numpy", "__array__", "__repr__", "__format__"):
            patch.setattr(torch.Tensor, name, refusing(name))
        patch.setattr(torch.Tensor, "to", to)
        yield


@contextmanager
def no_waiting():
    """Refuses whatever makes the host wait for the device; gives the mode that counts operators."""
    with _no_copies_to_the_host(), _NoWaiting() as operators:
        yield operators


@pytest.mark.parametrize("spec", [FULL, replace(FULL, dtype="float16", bias="1d"), PLAIN])
def test_nothing_waits_for_the_device(launches, spec, monkeypatch):
    """The whole step: operators, driver, launches. Ranges are checked for CPU tensors only."""
    monkeypatch.setattr(ops, "check_ranges", lambda *args: None)
    case = build(spec)
    with no_waiting() as operators:
        run(case, "triton")
    assert operators.calls > 30
    assert len(launches) > 6


WAITING = {
    "float": float,
    "int": int,
    "bool": bool,
    "if": lambda x: 1 if x.sum() > 0 else 0,
    "index": lambda x: range(x.long()),
    "item": lambda x: x.item(),
    "tolist": lambda x: x.repeat(3).tolist(),
    "cpu": lambda x: x.cpu(),
    "to cpu": lambda x: x.to("cpu"),
    "to a device": lambda x: x.to(torch.device("cpu"), torch.float64),
    "to device=": lambda x: x.to(device="cpu"),
    "numpy": lambda x: x.numpy(),
    "array": lambda x: np.asarray(x),
    "mask": lambda x: x.repeat(3)[torch.tensor([True, False, True])],
    "mask of rows": lambda x: x.repeat(3, 2)[torch.ones(3, dtype=torch.bool)],
    "mask of columns": lambda x: x.repeat(3, 2)[:, torch.ones(2, dtype=torch.bool)],
    "written through a mask": lambda x: x.repeat(3).index_put_((torch.ones(3) > 0,), x.repeat(3)),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "argwhere": lambda x: torch.argwhere(x),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "unique_consecutive": lambda x: torch.unique_consecutive(x),
    "bincount": lambda x: x.long().reshape(1).bincount(),
    "repeat_interleave": lambda x: x.reshape(1).repeat_interleave(x.long().reshape(1)),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "format": lambda x: f"{x:.3f}",
    "repr": repr,
}


@pytest.mark.parametrize("way", WAITING)
def test_waiting_is_noticed(way):
    x = torch.ones(())
    WAITING[way](x)  # it is no error otherwise
    with pytest.raises(AssertionError, match="waits"), no_waiting():
        WAITING[way](x)


@pytest.mark.parametrize("way", ["cpu", "tolist", "mask", "item"])
def test_waiting_in_a_backward_is_noticed(way):
    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            WAITING[way](grad)
            return grad

    x = torch.ones((), requires_grad=True)
    with pytest.raises(AssertionError, match="waits"), no_waiting():
        Waits.apply(x).backward()


def test_what_does_not_wait_is_let_through():
    x = torch.ones(3)
    with no_waiting():
        x[torch.tensor([0, 2])].to(torch.float64).sum()
        torch.where(x > 0, x, 0.0).masked_fill(x > 1, 2.0).new_zeros(x.shape)


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


def test_launches_go_to_the_device_of_the_features(gpu, monkeypatch):
    """Triton takes the current device, which may be another one."""
    current = []

    @contextmanager
    def device(index):
        current.append(index)
        yield
        current.pop()

    def launched(*_):
        assert current == [made.rows.device]
        return "launched"

    made = on_gpu(problem())
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(launch, "statistics", launched)
    monkeypatch.setattr(launch, "gradient", launched)
    assert backend.statistics(made, None) == "launched"
    backend.gradient(made, None, None)
    assert current == []


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
