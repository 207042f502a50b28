"""The operators inside torch: opcheck, compile, autocast, autograd modes, double backward."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from hypothesis import given
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

from slipform_kernels import CementLoss, ClipLoss, ops, two_way_cross_entropy
from slipform_kernels.products import matmul_settings
from support.accuracy import check, relative_error
from support.backends import every_backend, run
from support.cases import HALF, Case, Spec, build
from support.oracle import Outcome, dense_oracle
from support.strategies import specs

OPCHECKED = {
    "plain": Spec(6, 6, 4),
    "plain bf16": Spec(6, 6, 4, "bfloat16", scale_form="1d"),
    "all options": Spec(
        6, 9, 4, targets="random", bias="vector", hard=2, margin="random", groups="rare"
    ),
    "scalar bias": Spec(5, 7, 4, "float16", targets="random", bias="0d", hard=1),
    "no margins at K = 0": Spec(5, 7, 4, targets="random", hard=0, margin="random"),
    "kept by no cache": Spec(1030, 1030, 4),
}


def operands(spec: Spec, *, grad: bool) -> list[torch.Tensor | None]:
    """The operator's tensors in order, as the functional interface hands them over."""
    case = build(spec)
    case = case.leaves() if grad else case
    names = ("rows", "cols", "scale", "bias", "row_target", "col_target", "hard_cols", "margin")
    values = [getattr(case, n) for n in (*names, "row_group", "col_group")]
    if values[2].ndim:
        values[2] = values[2].detach().reshape(()).requires_grad_(grad)
    return values


@every_backend()
@pytest.mark.parametrize("name", OPCHECKED)
def test_opcheck_statistics(backend, name):
    arguments = (*operands(OPCHECKED[name], grad=True), "ieee", backend)
    torch.library.opcheck(torch.ops.slipform.statistics.default, arguments)


@every_backend()
@pytest.mark.parametrize("name", OPCHECKED)
@pytest.mark.parametrize("needed", [[True] * 5, [True, False, True, False, False], [False] * 5])
def test_opcheck_gradients(backend, name, needed):
    arguments = operands(OPCHECKED[name], grad=False)
    row_rest, _, col_rest, _, cache = torch.ops.slipform.statistics(*arguments, "ieee", backend)
    needed = [
        need and arguments[i] is not None
        for need, i in zip(needed, ops._DIFFERENTIABLE.values(), strict=True)
    ]
    rows, cols = torch.rand_like(row_rest), torch.rand_like(col_rest)
    torch.library.opcheck(
        torch.ops.slipform.gradients.default,
        (*arguments, row_rest, rows, -rows, col_rest, cols, -cols, cache, needed, "ieee", backend),
    )


class Watching(TorchDispatchMode):
    """Any mode sends a call through the operators, not through the shorter eager path."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(str(func))
        return func(*args, **(kwargs or {}))


@every_backend()
@given(spec=specs(dtypes=("float32", *HALF)))
def test_the_operators_meet_the_bar_like_the_eager_path(backend, spec):
    case = build(spec)
    with Watching() as watching:
        got = run(case, backend)
    assert {"slipform.statistics.default", "slipform.gradients.default"} <= watching.seen
    check(case, got, dense_oracle(case))


class Towers(torch.nn.Module):
    """Two linear towers and a logit scale, with the loss inside."""

    def __init__(self, loss: torch.nn.Module):
        super().__init__()
        gen = torch.Generator().manual_seed(0)
        self.image = torch.nn.Linear(12, 8, bias=False)
        self.text = torch.nn.Linear(10, 8, bias=False)
        for tower in (self.image, self.text):
            with torch.no_grad():
                tower.weight.copy_(torch.randn(tower.weight.shape, generator=gen))
        self.logit_scale = torch.nn.Parameter(torch.tensor(2.0))
        self.loss = loss

    def forward(self, images: torch.Tensor, texts: torch.Tensor, **extra) -> torch.Tensor:
        encoded = {
            k: F.normalize(self.text(v), dim=-1) if v.ndim == 3 else v for k, v in extra.items()
        }
        return self.loss(
            F.normalize(self.image(images), dim=-1),
            F.normalize(self.text(texts), dim=-1),
            self.logit_scale.exp(),
            **encoded,
        )


def batch(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    gen = torch.Generator().manual_seed(n)
    return torch.randn(n, 12, generator=gen), torch.randn(n, 10, generator=gen)


def gradients_of(model: torch.nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def capturing_backend(graphs: list[torch.fx.Graph]):
    """An AOT backend that runs the graphs as they are and keeps them."""

    def keep(module: torch.fx.GraphModule, _inputs: list):
        graphs.append(module.graph)
        return make_boxed_func(module)

    return aot_autograd(fw_compiler=keep, bw_compiler=keep)


@every_backend()
@pytest.mark.parametrize("n", [9, 1100])
def test_compiled_step_equals_eager_with_opaque_nodes(backend, n):
    model = Towers(ClipLoss(backend=backend))
    graphs: list[torch.fx.Graph] = []
    compiled = torch.compile(model, fullgraph=True, backend=capturing_backend(graphs))
    want = model(*batch(n))
    got = compiled(*batch(n))
    torch.testing.assert_close(got, want)
    for ours, eager in zip(gradients_of(model, got), gradients_of(model, want), strict=True):
        torch.testing.assert_close(ours, eager)
    targets = [str(node.target) for graph in graphs for node in graph.nodes]
    assert targets.count("slipform.statistics.default") == 1
    assert targets.count("slipform.gradients.default") == 1
    # Nothing of their insides is in a graph: the only products are the towers', forward and back.
    assert sum("mm.default" in t for t in targets) == 4
    assert not any("logsumexp" in t or "log_softmax" in t for t in targets)


@every_backend()
def test_compiled_hard_negative_loss_equals_eager(backend):
    model = Towers(CementLoss(margin=0.2, backend=backend))
    images, texts = batch(7)
    gen = torch.Generator().manual_seed(1)
    extra = {
        "hard_text_features": torch.randn(7, 2, 10, generator=gen),
        "concreteness": 1 + 4 * torch.rand(7, 2, generator=gen),
        "hard_mask": torch.rand(7, 2, generator=gen) < 0.7,
    }
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    want, got = model(images, texts, **extra), compiled(images, texts, **extra)
    torch.testing.assert_close(got, want)
    for ours, eager in zip(gradients_of(model, got), gradients_of(model, want), strict=True):
        torch.testing.assert_close(ours, eager)


@every_backend()
def test_one_graph_serves_several_batch_sizes(backend):
    model = Towers(ClipLoss(backend=backend))
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for n in (5, 8, 13):
        got = compiled(*batch(n))
        want = model(*batch(n))
        torch.testing.assert_close(got, want)
        for ours, eager in zip(gradients_of(model, got), gradients_of(model, want), strict=True):
            torch.testing.assert_close(ours, eager)
    assert counter.frame_count == 1


def test_export_sees_the_operator():
    program = torch.export.export(Towers(ClipLoss()), batch(6))
    assert "slipform.statistics" in str(program.graph)
    torch.testing.assert_close(program.module()(*batch(6)), Towers(ClipLoss())(*batch(6)))


@every_backend()
def test_fake_tensors_have_the_real_results_metadata(backend):
    from torch._subclasses.fake_tensor import FakeTensorMode

    case = build(Spec(6, 9, 4, "bfloat16", "random", bias="vector", hard=2, margin="random"))
    real = run(case, backend)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        leaf = case.leaves()
        fake = {n: mode.from_tensor(v) for n, v in vars(leaf).items() if torch.is_tensor(v)}
        features = [fake.pop(n) for n in ("rows", "cols", "scale")]
        upstream = [fake.pop("g"), fake.pop("h")]
        losses = two_way_cross_entropy(*features, **fake, backend=backend)
        wrt = [*features, fake["bias"], fake["margin"]]
        grads = torch.autograd.grad(losses, wrt, upstream)
    for got, name in zip(
        (*losses, *grads), ("row_loss", "col_loss", *Outcome.GRADIENTS), strict=True
    ):
        want = getattr(real, name)
        assert (got.shape, got.dtype) == (want.shape, want.dtype), name


@every_backend("reference")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_meta_tensors_have_the_real_results_metadata(backend, dtype):
    case = build(Spec(6, 9, 4, dtype, "random", bias="vector", hard=2, margin="random"))
    real = run(case, backend)
    meta = {n: v.to("meta") for n, v in vars(case).items() if torch.is_tensor(v)}
    got = run(Case(**meta), backend)
    for name in ("row_loss", "col_loss", *Outcome.GRADIENTS):
        value, want = getattr(got, name), getattr(real, name)
        assert value.device.type == "meta", name
        assert (value.shape, value.dtype) == (want.shape, want.dtype), name


@pytest.mark.parametrize("backend", ["auto", "triton", "native", "torch"])
def test_meta_tensors_are_computed_by_no_backend(backend):
    """Beneath the operators, where shapes alone are no help."""
    rows, scale = torch.ones(3, 4, device="meta"), torch.ones((), device="meta")
    operands = (rows, rows, scale, *[None] * 7)
    with pytest.raises(ValueError, match=r"rows: got device meta; expected .*have no values"):
        ops.run_statistics(*operands, "ieee", backend)
    stats = [torch.ones(3, device="meta")] * 6
    with pytest.raises(ValueError, match=r"rows: got device meta; expected .*have no values"):
        ops.run_gradients(*operands, *stats, rows.new_empty((0, 0)), [True] * 5, "ieee", backend)


@every_backend()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_the_features_as_matmul_would(backend, dtype):
    case = build(Spec(20, 30, 16, targets="random", scale=20.0, hard=2, margin="random"))
    with torch.autocast("cpu", dtype):
        got = run(case, backend)
    assert got.row_loss.dtype == got.col_loss.dtype == torch.float32
    assert got.rows.dtype == torch.float32
    rounded = build(Spec(20, 30, 16, targets="random", scale=20.0, hard=2, margin="random"))
    rounded.rows, rounded.cols = rounded.rows.to(dtype), rounded.cols.to(dtype)
    check(rounded, got, dense_oracle(rounded))


@every_backend()
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_a_stated_precision_keeps_fp32_under_autocast(backend, precision):
    case = build(Spec(20, 30, 16, targets="random", scale=20.0))
    with torch.autocast("cpu", torch.bfloat16):
        got = run(case, backend, precision=precision)
    check(case, got, dense_oracle(case))


def test_autocast_leaves_fp64_alone():
    case = build(Spec(20, 30, 16, "float64", targets="random", scale=20.0))
    with torch.autocast("cpu", torch.bfloat16):
        got = run(case, None)
    check(case, got, dense_oracle(case))


@every_backend()
def test_backward_outside_of_autocast_is_the_same(backend):
    case = build(Spec(20, 20, 16, scale=20.0)).leaves()
    results = []
    for inside in (True, False):
        with torch.autocast("cpu", torch.bfloat16):
            losses = two_way_cross_entropy(case.rows, case.cols, case.scale, backend=backend)
            total = sum(v.sum() for v in losses)
            if inside:
                results.append(torch.autograd.grad(total, [case.rows, case.cols]))
        if not inside:
            results.append(torch.autograd.grad(total, [case.rows, case.cols]))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@every_backend()
def test_open_clip_style_step_under_autocast(backend):
    """bf16 towers, an fp32 logit scale: what a mixed-precision train step hands over."""
    model = Towers(ClipLoss(backend=backend))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(*batch(40))
    exact = Towers(ClipLoss(backend="reference"))(*batch(40))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=2e-2)
    for got, want in zip(gradients_of(model, loss), model.parameters(), strict=True):
        assert got.dtype == want.dtype
        assert got.isfinite().all()


@every_backend()
@pytest.mark.parametrize("argument", ["rows", "scale"])
def test_double_backward_is_refused(backend, argument):
    case = build(Spec(6, 6, 4)).leaves()
    losses = two_way_cross_entropy(case.rows, case.cols, case.scale, backend=backend)
    (first,) = torch.autograd.grad(losses[0].sum(), case.rows, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(first.square().sum(), getattr(case, argument))


@every_backend()
def test_create_graph_alone_is_no_error(backend):
    case = build(Spec(6, 6, 4)).leaves()
    losses = two_way_cross_entropy(case.rows, case.cols, case.scale, backend=backend)
    total = losses[0].mean() + losses[1].mean()
    (first,) = torch.autograd.grad(total, case.rows, create_graph=True)
    assert relative_error(first, 2 * dense_oracle(case).rows) < 1e-5


@every_backend()
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_autograd(backend, mode):
    case = build(Spec(20, 30, 8, targets="random", hard=2, margin="random")).leaves()
    want = run(case, backend)
    with mode():
        losses = two_way_cross_entropy(
            case.rows, case.cols, case.scale, **case.options(), backend=backend
        )
    assert not any(loss.requires_grad for loss in losses)
    assert torch.equal(losses[0], want.row_loss)
    assert torch.equal(losses[1], want.col_loss)


@every_backend()
def test_inference_tensors_are_inputs_like_others(backend):
    with torch.inference_mode():
        case = build(Spec(20, 20, 8))
    row_loss, _ = two_way_cross_entropy(case.rows, case.cols, case.scale, backend=backend)
    want, _ = two_way_cross_entropy(
        case.rows.clone(), case.cols.clone(), case.scale.clone(), backend=backend
    )
    assert torch.equal(row_loss, want)


@every_backend()
def test_backward_twice_over_a_retained_graph(backend):
    case = build(Spec(20, 20, 8)).leaves()
    losses = two_way_cross_entropy(case.rows, case.cols, case.scale, backend=backend)
    leaves = [case.rows, case.cols, case.scale]
    first = torch.autograd.grad(losses, leaves, [case.g, case.h], retain_graph=True)
    second = torch.autograd.grad(losses, leaves, [case.g, case.h], retain_graph=True)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    # Linear in the upstream gradients: g alone and h alone add up.
    zero_g, zero_h = torch.zeros_like(case.g), torch.zeros_like(case.h)
    of_rows = torch.autograd.grad(losses, leaves, [case.g, zero_h], retain_graph=True)
    of_cols = torch.autograd.grad(losses, leaves, [zero_g, case.h])
    for both, a, b in zip(first, of_rows, of_cols, strict=True):
        assert relative_error(a + b, both) < 1e-5


@every_backend()
def test_gradients_accumulate_in_leaves(backend):
    case = build(Spec(20, 20, 8)).leaves()
    for _ in range(2):
        losses = two_way_cross_entropy(case.rows, case.cols, case.scale, backend=backend)
        torch.autograd.backward(losses, [case.g, case.h])
    want = dense_oracle(case)
    assert relative_error(case.rows.grad, 2 * want.rows) < 1e-5
    assert relative_error(case.scale.grad, 2 * want.scale) < 1e-5


@every_backend()
def test_process_wide_matmul_precision_neither_matters_nor_changes(backend):
    case = build(Spec(64, 80, 64, targets="random", scale=50.0))
    want = dense_oracle(case)
    settings = matmul_settings("cpu")
    before = settings.fp32_precision
    try:
        for precision in ("bf16", "ieee"):
            settings.fp32_precision = precision
            for dtype in (torch.float32, torch.bfloat16):
                typed = build(Spec(64, 80, 64, str(dtype)[6:], targets="random", scale=50.0))
                got = run(typed, backend)
                assert settings.fp32_precision == precision
                if dtype == torch.float32:
                    check(case, got, want)
    finally:
        settings.fp32_precision = before


@every_backend()
def test_python_threads_do_not_disturb_each_other(backend):
    """Two threads in different dtypes: settings of the process, workspaces and pools are shared."""
    cases = [build(Spec(300, 400, 64, d, "random", scale=30.0)) for d in ("float32", "bfloat16")]
    wanted = [dense_oracle(case) for case in cases]

    def work(index: int) -> None:
        for _ in range(6):
            check(cases[index], run(cases[index], backend), wanted[index])

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, index) for index in (0, 1, 0, 1)]:
            done.result(timeout=120)
