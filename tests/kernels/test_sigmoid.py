"""SigLIP's sigmoid loss: open_clip's numbers, and the definition in fp64."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace

import pytest
import torch

from slipform_kernels import SigLipLoss, engine, products, sigmoid_ops
from slipform_kernels.sigmoid import sigmoid_cross_entropy
from support.accuracy import BARS, relative_error
from support.memory import LargestStorage
from support.sigmoid import Problem, check, differentiated, problem, run

open_clip = pytest.importorskip("open_clip")

SIZES = [(1, 1), (5, 5), (3, 17), (64, 40), (130, 131)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [None, "0d", "1d", "vector"])
@pytest.mark.parametrize(("R", "C"), SIZES)
def test_losses_and_gradients_equal_the_definition(R, C, bias, dtype, reduction):
    p = problem(R, C, 24, dtype, bias=bias)
    check(p, reduction, run(p, reduction))


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("workspace", [1, 999, 20_000])
def test_any_number_of_blocks_gives_the_same(workspace, dtype, reduction, monkeypatch):
    monkeypatch.setattr(engine, "WORKSPACE_BYTES", workspace)
    p = problem(31, 45, 16, dtype, bias="vector")
    check(p, reduction, run(p, reduction))


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
def test_a_workspace_in_the_features_dtype(dtype, monkeypatch):
    """As on a GPU, and for large bf16 problems on a CPU with units for it."""
    monkeypatch.setattr(products, "gradient_dtype", lambda problem: problem.rows.dtype)
    for reduction in ("none", "sum"):
        p = problem(40, 57, 32, dtype)
        check(p, reduction, run(p, reduction))


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("scale", [-3.0, 0.0, 1.0, 100.0])
def test_scales(scale, reduction):
    p = problem(33, 33, 16, scale=scale)
    check(p, reduction, run(p, reduction), bars=BARS["float32"] | {"gradient": 1e-4})


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_gradcheck(reduction):
    for bias in ("0d", "vector"):
        p = problem(4, 6, 5, torch.float64, scale=2.0, bias=bias)
        torch.autograd.gradcheck(
            lambda *operands, target=p.row_target: sigmoid_cross_entropy(
                *operands, row_target=target, reduction=reduction
            ),
            (p.rows, p.cols, p.scale, p.bias),
        )


def test_reference_backend_has_second_derivatives():
    p = problem(3, 4, 5, torch.float64, scale=2.0)
    torch.autograd.gradgradcheck(
        lambda *operands: sigmoid_cross_entropy(
            *operands, row_target=p.row_target, backend="reference"
        ),
        (p.rows, p.cols, p.scale, p.bias),
    )


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("gap", [5.0, 20.0, 40.0, 80.0])
def test_well_separated_pairs(gap, reduction):
    """Losses and gradients of exp(-gap), to the precision of a logit, without any cut-off."""
    eye = torch.eye(8, dtype=torch.float64)
    p = Problem(eye, eye, torch.tensor(2 * gap), torch.tensor(-gap), None, torch.ones(8)).converted(
        torch.float32
    )
    losses, grads = run(p, reduction)
    assert losses.min() > 0
    assert grads["rows"].diagonal().abs().min() > 0
    check(p, reduction, (losses, grads), bars=dict.fromkeys(("loss", "gradient", "scale"), 1e-5))


def test_far_on_the_wrong_side_the_loss_is_linear():
    eye = torch.eye(3)
    p = Problem(eye, eye, torch.tensor(-1e4), None, None, torch.ones(3)).converted(torch.float32)
    losses, grads = run(p, "none")
    torch.testing.assert_close(losses, torch.full((3,), 1e4 + 2 * math.log(2)))
    torch.testing.assert_close(grads["scale"], torch.tensor(-3.0))


def test_a_bias_of_minus_infinity_takes_a_column_out():
    p = problem(5, 5, 8, bias="vector")
    p.row_target = torch.tensor([0, 1, 2, 3, -1])
    with torch.no_grad():
        p.bias[4] = -torch.inf
    losses, grads = run(p, "none")
    kept = replace(p, cols=p.cols[:4], bias=p.bias[:4]).converted(torch.float32)
    want, wanted = run(kept, "none")
    torch.testing.assert_close(losses, want)
    torch.testing.assert_close(grads["cols"][:4], wanted["cols"])
    assert not grads["cols"][4].any()
    assert grads["bias"][4] == 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_reaches_the_losses_it_touches(value):
    p = problem(6, 6, 8)
    with torch.no_grad():
        p.rows[2, 3] = value
    losses, _ = run(p, "none")
    assert not losses[2].isfinite()
    assert losses[[0, 1, 3, 4, 5]].isfinite().all()


@pytest.mark.parametrize(("scale", "factor"), [(100.0, 2.0**10), (100.0, 2.0**-10), (2e4, 2e-4)])
def test_fp16_with_a_loss_scale(scale, factor):
    """Gradients are kept in fp32 until the upstream gradient is known: those of 2e4 overflow."""
    p = problem(300, 300, 16, torch.float16, scale=scale)
    p.g = torch.full_like(p.g, factor / 300)
    check(p, "sum", run(p, "sum"))


@pytest.mark.parametrize("shape", [(), (1,)], ids=["scale[]", "scale[1]"])
@pytest.mark.parametrize("bias", [None, -10.0])
@pytest.mark.parametrize("n", [1, 2, 7, 256])
def test_loss_and_gradients_equal_open_clip(n, bias, shape):
    p = problem(n, n, 128, bias=None)
    p.scale = torch.full(shape, 10.0).log().requires_grad_()
    p.bias = None if bias is None else torch.full(shape, bias).requires_grad_()
    results = []
    for module in (SigLipLoss(), open_clip.loss.SigLipLoss()):
        loss = module(p.rows, p.cols, p.scale.exp(), p.bias)
        results.append((loss, differentiated(loss, p, torch.ones(()))))
    (ours, our_grads), (theirs, their_grads) = results
    assert ours.shape == theirs.shape
    assert abs(ours.item() - theirs.item()) <= 1e-6 * max(1.0, theirs.item())
    for name, want in their_grads.items():
        assert relative_error(our_grads[name], want) < 2e-5, name


def test_signatures_are_those_of_open_clip():
    for method in ("__init__", "forward"):
        theirs = inspect.signature(getattr(open_clip.loss.SigLipLoss, method)).parameters
        ours = inspect.signature(getattr(SigLipLoss, method)).parameters
        assert list(ours)[: len(theirs)] == list(theirs)
        for name, parameter in theirs.items():
            assert ours[name].default == parameter.default, name
            assert ours[name].kind == parameter.kind, name
        extra = list(ours.values())[len(theirs) :]
        assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in extra)


def test_output_dict_as_in_open_clip():
    p = problem(8, 8, 16)
    output = {
        "image_features": p.rows,
        "text_features": p.cols,
        "logit_scale": p.scale,
        "logit_bias": p.bias,
    }
    got = SigLipLoss()(**output, output_dict=True)
    want = open_clip.loss.SigLipLoss()(**output, output_dict=True)
    assert got.keys() == want.keys() == {"contrastive_loss"}
    torch.testing.assert_close(got["contrastive_loss"], want["contrastive_loss"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_nothing_of_the_size_of_the_matrix_is_allocated(reduction, dtype, monkeypatch):
    N, workspace = 1024, 128 << 10
    monkeypatch.setattr(engine, "WORKSPACE_BYTES", workspace)
    largest = LargestStorage()
    monkeypatch.setattr(sigmoid_ops, "evaluate", largest.watched(sigmoid_ops.evaluate))
    with largest:
        run(problem(N, N, 24, dtype), reduction)
    features = 8 * N * 24  # those of `problem` are made in fp64
    assert 4 * N * 24 <= largest.bytes <= max(workspace, features), largest.operator
    assert largest.bytes < N * N / 4


def test_a_sum_computes_every_block_once(monkeypatch):
    monkeypatch.setattr(engine, "WORKSPACE_BYTES", 20_000)
    p = problem(50, 60, 8)
    count = len(list(engine.blocks(50, 60, p.rows.device, 4 * sigmoid_ops._SPACES)))
    assert count > 2
    computed = []
    similarities = products.similarities

    def counted(block, out):
        computed.append(block)
        return similarities(block, out)

    monkeypatch.setattr(products, "similarities", counted)
    for reduction, times in (("sum", 1), ("none", 2)):
        computed.clear()
        run(p, reduction)
        assert len(computed) == times * count
