"""The sigmoid loss inside torch: compile, autograd modes, autocast; and wrong arguments."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from slipform_kernels import SigLipLoss
from slipform_kernels.sigmoid import sigmoid_cross_entropy
from support.sigmoid import NAMES, check, problem, run, upstream

open_clip = pytest.importorskip("open_clip")


class Towers(torch.nn.Module):
    """Two linear towers with scale and bias, and the loss inside."""

    def __init__(self, loss: torch.nn.Module):
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = torch.nn.Linear(12, 8), torch.nn.Linear(10, 8)
        self.logit_scale = torch.nn.Parameter(torch.tensor(2.0))
        self.logit_bias = torch.nn.Parameter(torch.tensor(-3.0))
        self.loss = loss

    def forward(self, images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        images, texts = F.normalize(self.image(images)), F.normalize(self.text(texts))
        return self.loss(images, texts, self.logit_scale.exp(), self.logit_bias)

    def gradients(self, loss: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(loss, list(self.parameters())))


class LossOfRows(torch.nn.Module):
    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        return sigmoid_cross_entropy(*operands).square().mean()


def test_adamw_steps_give_open_clips_weights():
    trained = []
    for loss in (SigLipLoss(), open_clip.loss.SigLipLoss()):
        model = Towers(loss)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        gen = torch.Generator().manual_seed(1)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(16, 12, generator=gen), torch.randn(16, 10, generator=gen)).backward()
            optimizer.step()
        trained.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*trained, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("loss", [SigLipLoss, LossOfRows])
def test_a_compiled_step_is_one_graph_for_all_batch_sizes(loss):
    model = Towers(loss())
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (5, 9, 13):
        batch = torch.randn(n, 12), torch.randn(n, 10)
        got, want = compiled(*batch), model(*batch)
        torch.testing.assert_close(got, want)
        for ours, eager in zip(model.gradients(got), model.gradients(want), strict=True):
            torch.testing.assert_close(ours, eager)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*batch), want.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bias", [None, "0d", "vector"])
def test_opcheck(bias, dtype):
    p = problem(4, 6, 5, dtype, bias=bias)
    operands = (p.rows, p.cols, p.scale, p.bias, p.row_target)
    needed = [True, True, True, bias is not None]
    opcheck = torch.library.opcheck
    opcheck(torch.ops.slipform.sigmoid_losses.default, (*operands, "ieee"))
    opcheck(torch.ops.slipform.sigmoid_sum.default, (*operands, needed, "ieee"))
    plain = [None if v is None else v.detach() for v in operands]
    for which in (needed, [True, False, False, False]):
        arguments = (*plain, p.g, which, "ieee")
        opcheck(torch.ops.slipform.sigmoid_gradients.default, arguments)


@pytest.mark.parametrize("frozen", NAMES)
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_one_operand_without_a_gradient(reduction, frozen):
    p = problem(9, 12, 8)
    _, want = run(p, reduction)
    getattr(p, frozen).requires_grad_(False)
    losses = sigmoid_cross_entropy(
        p.rows, p.cols, p.scale, p.bias, row_target=p.row_target, reduction=reduction
    )
    losses.backward(upstream(p, reduction))
    for name in NAMES:
        if name == frozen:
            assert getattr(p, name).grad is None
        else:
            assert torch.equal(getattr(p, name).grad, want[name])


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_backward_twice_and_without_autograd(reduction):
    p = problem(9, 12, 8)
    operands = (p.rows, p.cols, p.scale, p.bias)
    options = {"row_target": p.row_target, "reduction": reduction}
    losses = sigmoid_cross_entropy(*operands, **options)
    total = losses.sum()
    first = torch.autograd.grad(total, operands, retain_graph=True)
    second = torch.autograd.grad(3 * total, operands)
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(3 * a, b)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            alone = sigmoid_cross_entropy(*operands, **options)
        assert not alone.requires_grad
        assert torch.equal(alone, losses)


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_double_backward_is_refused(reduction):
    p = problem(5, 5, 8)
    losses = sigmoid_cross_entropy(p.rows, p.cols, p.scale, p.bias, reduction=reduction)
    (first,) = torch.autograd.grad(losses.sum(), p.rows, create_graph=True)
    plain = run(replace(p, g=torch.ones(5)), reduction)[1]["rows"]
    torch.testing.assert_close(first.detach(), plain)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(first.square().sum(), p.cols)


def test_autocast_casts_the_features_as_matmul_would():
    p = problem(20, 30, 16)
    with torch.autocast("cpu", torch.bfloat16):
        losses, grads = run(p, "sum")
    assert losses.dtype == torch.float32
    rounded = p.converted(torch.bfloat16)
    check(rounded, "sum", (losses, grads))


def test_two_runs_give_the_same_bits():
    p = problem(100, 120, 32, torch.bfloat16)
    (a, first), (b, second) = run(p, "sum"), run(p, "sum")
    assert torch.equal(a, b)
    assert all(torch.equal(first[name], second[name]) for name in NAMES)


ONES = torch.ones(4, 5)
WRONG = {
    "rows": ({"rows": torch.ones(4)}, ValueError, "rows: got shape [4]"),
    "D": ({"cols": torch.ones(4, 6)}, ValueError, "cols: got shape [4, 6]"),
    "dtype": ({"cols": ONES.bfloat16()}, TypeError, "cols: got dtype torch.bfloat16"),
    "scale": ({"scale": torch.ones(2)}, ValueError, "scale: got shape [2]"),
    "bias": ({"bias": torch.ones(3)}, ValueError, "bias: got shape [3]"),
    "no target": ({"cols": torch.ones(6, 5)}, ValueError, "row_target: got None"),
    "target": (
        {"row_target": torch.arange(3)}, ValueError, "row_target: got shape [3]"
    ),
    "range": (
        {"row_target": torch.tensor([0, 1, 2, 4])}, ValueError, "row_target: got values from 0 to 4"
    ),
    "reduction": ({"reduction": "mean"}, ValueError, "reduction: got 'mean'"),
    "exchange": ({"exchange": "all"}, ValueError, "exchange: got 'all'"),
    "precision": ({"precision": "bf16"}, ValueError, "precision: got 'bf16'"),
    "backend": ({"backend": "cuda"}, ValueError, "backend: got 'cuda'"),
    "native": ({"backend": "native"}, RuntimeError, "backend: got 'native'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_named(name):
    changed, kind, text = WRONG[name]
    options = {"rows": ONES, "cols": ONES, "scale": 1.0} | changed
    with pytest.raises(kind) as caught:
        sigmoid_cross_entropy(**options)
    assert str(caught.value).startswith(text)


def test_bad_options_of_the_loss_are_named():
    for options, text in (
        ({"dist_impl": "ring"}, "dist_impl: got 'ring'; expected one of bidir, shift"),
        ({"exchange": "all"}, "exchange: got 'all'"),
        ({"rank": 2, "world_size": 2}, "rank: got 2 with world_size 2"),
    ):
        with pytest.raises(ValueError, match=text):
            SigLipLoss(**options)
    with pytest.raises(ValueError, match="text_features: got shape"):
        SigLipLoss()(ONES, torch.ones(3, 5), 1.0, None)
    with pytest.raises(ValueError, match="world_size: got rank 0 of 2"):
        SigLipLoss(world_size=2)(ONES, ONES, 1.0, None)


def test_the_environment_names_a_backend(monkeypatch):
    monkeypatch.setenv("SLIPFORM_BACKEND", "native")
    with pytest.raises(RuntimeError, match="SLIPFORM_BACKEND: got 'native'"):
        sigmoid_cross_entropy(ONES, ONES, 1.0)
    monkeypatch.setenv("SLIPFORM_BACKEND", "reference")
    assert sigmoid_cross_entropy(ONES, ONES, 1.0).shape == (4,)
