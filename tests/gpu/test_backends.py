"""Every backend on the GPU against fp64 on the CPU: the accuracy bar of the interpreter's tests."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from slipform_kernels import dispatch, two_way_cross_entropy
from support.accuracy import check, check_bar
from support.cases import HALF, Case, Spec, build
from support.oracle import Outcome, dense_oracle

BACKENDS = ("triton", "native", "torch")
SPECS = [
    Spec(257, 257, 64),
    Spec(300, 300, 512, scale=100.0, scale_form="1d", bias="float"),
    Spec(1000, 1100, 768, targets="random", scale=30.0, hard=1, margin="random"),
    Spec(129, 385, 96, targets="explicit", scale=30.0, hard=4, margin="random", bias="vector"),
    Spec(200, 77, 33, targets="random", scale=5.0, groups="rare", layout="transposed"),
    Spec(191, 260, 1024, targets="random", scale=100.0, hard=3, margin="random", bias="vector_inf"),
    Spec(1, 500, 40, targets="row_only"),
    Spec(500, 1, 40, targets="col_only", bias="float"),
    Spec(64, 64, 256, geometry="separated", scale=60.0, upstream="weights"),
    Spec(150, 150, 128, geometry="circle", scale=100.0, upstream="some_zero", groups="dense"),
    Spec(90, 140, 2048, targets="none"),
    Spec(640, 640, 8, targets="shared", scale=20.0, upstream="rows_only", layout="sliced"),
    Spec(2500, 2300, 72, targets="random", scale=20.0, hard=1, margin="random"),
]


def available(backend: str) -> None:
    """Skips where the backend is not built; in benchmarks/gpu_check.sh, which builds it, fails."""
    module = {"triton": dispatch.triton_backend, "native": dispatch.native_cuda}.get(backend)
    reason = module.unavailable() if module else None
    if reason is not None and os.environ.get("SLIPFORM_GPU_CHECK"):
        pytest.fail(f"{backend}: {reason}")
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")


def on_gpu(case: Case) -> Case:
    return Case(
        **{k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in vars(case).items()}
    )


def run(case: Case, backend: str, precision: str | None = None) -> Outcome:
    case = on_gpu(case).leaves()
    losses = two_way_cross_entropy(
        case.rows, case.cols, case.scale, **case.options(), precision=precision, backend=backend
    )
    names = [n for n in Outcome.GRADIENTS if isinstance(getattr(case, n), torch.Tensor)]
    upstream = [case.g.to(losses[0].dtype), case.h.to(losses[1].dtype)]
    grads = torch.autograd.grad(losses, [getattr(case, n) for n in names], upstream)
    results = dict(zip(names, (grad.cpu() for grad in grads), strict=True))
    return Outcome(*(loss.detach().cpu() for loss in losses), **results)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", *HALF])
@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.rows}x{s.cols}x{s.dim}")
def test_accuracy(spec, dtype, backend):
    available(backend)
    case = build(replace(spec, dtype=dtype))
    check(case, run(case, backend), dense_oracle(case))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_bar_without_allowance(dtype, backend):
    available(backend)
    case = build(Spec(2000, 2000, 512, dtype, scale=50.0))
    check_bar(case, run(case, backend), dense_oracle(case))


@pytest.mark.parametrize("backend", ["triton", "native"])
def test_tf32_is_near(backend):
    """tf32 keeps 10 bits of the features: cosines to about 1e-3, times a scale of 10."""
    available(backend)
    case = build(Spec(500, 600, 512, targets="random", scale=10.0))
    got, want = run(case, backend, "tf32"), dense_oracle(case)
    assert float((got.row_loss - want.row_loss).abs().max()) < 2e-2
    error = (got.rows - want.rows).norm() / want.rows.norm()
    assert 1e-7 < float(error) < 1e-2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_two_runs_give_equal_bits(dtype, backend):
    available(backend)
    case = build(
        Spec(700, 900, 256, dtype, "random", hard=2, margin="random", bias="vector", groups="rare")
    )
    first, second = run(case, backend), run(case, backend)
    for name in ("row_loss", "col_loss", *Outcome.GRADIENTS):
        assert torch.equal(getattr(first, name), getattr(second, name)), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_waits_for_nothing(backend):
    available(backend)
    case = on_gpu(build(Spec(300, 400, 64, "bfloat16", "random", hard=2, margin="random")))

    def step() -> None:
        leaves = case.leaves()
        row, col = two_way_cross_entropy(
            leaves.rows, leaves.cols, leaves.scale, **leaves.options(), backend=backend
        )
        (row.sum() + col.sum()).backward()

    step()  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stream_of_ones_own(backend):
    """Launches go to the current stream: after what the stream does before, and not beside it."""
    available(backend)
    case = build(Spec(400, 500, 64, "bfloat16", "random", bias="vector"))
    want = run(case, backend)
    moved = on_gpu(case)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # what is launched elsewhere would read zeros
        rows, cols = torch.zeros_like(moved.rows), torch.zeros_like(moved.cols)
        rows.copy_(moved.rows)
        cols.copy_(moved.cols)
        row, col = two_way_cross_entropy(
            rows, cols, moved.scale, **moved.options(), backend=backend
        )
    stream.synchronize()
    assert torch.equal(row.cpu(), want.row_loss)
    assert torch.equal(col.cpu(), want.col_loss)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
@pytest.mark.parametrize("backend", BACKENDS)
def test_features_on_another_device_than_the_current_one(backend):
    available(backend)
    case = build(Spec(200, 300, 64, "bfloat16", "random"))
    moved = Case(
        **{k: v.to("cuda:1") if isinstance(v, torch.Tensor) else v for k, v in vars(case).items()}
    )
    row, _ = two_way_cross_entropy(
        moved.rows, moved.cols, moved.scale, **moved.options(), backend=backend
    )
    torch.testing.assert_close(
        row.cpu().double(), dense_oracle(case).row_loss, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_more_entries_than_32_bits_count(backend):
    """50,000 squared; the losses of a few rows and columns against a product of their own."""
    available(backend)
    N, D, s = 50_000, 64, 20.0
    gen = torch.Generator("cuda").manual_seed(0)
    x, y = (
        torch.nn.functional.normalize(torch.randn(N, D, device="cuda", generator=gen), dim=1)
        .bfloat16()
        .requires_grad_()
        for _ in range(2)
    )
    row, col = two_way_cross_entropy(x, y, s, backend=backend)
    (row.mean() + col.mean()).backward()
    chosen = torch.tensor([0, 1, 255, 43_000, 46_341, N - 1], device="cuda")
    for loss, a, b in ((row, x, y), (col, y, x)):
        logits = s * a[chosen].double() @ b.double().T
        want = torch.nn.functional.cross_entropy(logits, chosen, reduction="none")
        assert float((loss[chosen] - want).abs().max() / want.abs().max()) < 1e-5
    assert bool(x.grad.isfinite().all())
    assert bool(y.grad.isfinite().all())
    assert float(x.grad[-1].norm()) > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_peak_memory_is_linear(backend):
    """Two sizes, bf16: four times the matrix, and twice the memory."""
    available(backend)
    peaks = []
    for N in (16_384, 32_768):
        x, y = (torch.randn(N, 128, device="cuda").bfloat16().requires_grad_() for _ in range(2))
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        row, col = two_way_cross_entropy(x, y, 1.0, backend=backend)
        (row.mean() + col.mean()).backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        del x, y, row, col
    workspace = 64 << 20
    assert peaks[1] - workspace < 2.5 * max(peaks[0] - workspace, 16 << 20)
    assert peaks[1] < 2 * 32_768**2 / 4, "a quarter of the matrix in bf16"
