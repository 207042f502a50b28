"""Problems of the sigmoid loss, and their solution by the definition in fp64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from slipform_kernels.sigmoid import sigmoid_cross_entropy
from support.accuracy import BARS, relative_error

NAMES = ("rows", "cols", "scale", "bias")


@dataclass
class Problem:
    """Operands of the primitive and upstream gradients g [R]."""

    rows: torch.Tensor
    cols: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None
    row_target: torch.Tensor | None
    g: torch.Tensor

    def converted(self, dtype: torch.dtype) -> Problem:
        """Features in `dtype`, all else in what goes with it; leaves that require grad."""
        wide = torch.promote_types(dtype, torch.float32)
        fresh = {
            name: None
            if getattr(self, name) is None
            else getattr(self, name).detach().to(dtype if name in ("rows", "cols") else wide)
            for name in NAMES
        }
        fresh = {n: None if v is None else v.clone().requires_grad_() for n, v in fresh.items()}
        return replace(self, **fresh, g=self.g.to(wide))


def problem(
    R: int,
    C: int,
    D: int,
    dtype: torch.dtype = torch.float32,
    *,
    scale: float = 10.0,
    bias: str | None = "0d",
    seed: int = 0,
) -> Problem:
    """Unit norms, positives at a cosine of about 0.4; where R != C, targets with -1 among them."""
    gen = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen, dtype=torch.float64)

    target = torch.arange(R)
    if R != C:
        target = torch.randint(0, C, (R,), generator=gen)
        target[::3] = -1
    cols = F.normalize(normal(C, D), dim=1)
    rows = F.normalize(normal(R, D) + 0.4 * D**0.5 * cols[target.clamp(min=0)], dim=1)
    biases = {
        None: None,
        "0d": torch.tensor(-5.0),
        "1d": torch.tensor([-5.0]),
        "vector": -5 + normal(C),
    }
    return Problem(
        rows, cols, torch.tensor(scale), biases[bias], None if R == C else target, 0.1 + normal(R)
    ).converted(dtype)


def logits_of(p: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """L and z, [R, C], by the definition."""
    target = torch.arange(len(p.rows)) if p.row_target is None else p.row_target
    sign = 2.0 * (torch.arange(len(p.cols)) == target[:, None]) - 1
    logits = p.scale * (p.rows @ p.cols.T)
    return logits if p.bias is None else logits + p.bias, sign


def dense(p: Problem) -> torch.Tensor:
    """Losses [R] by the definition, in the operands' dtype."""
    logits, sign = logits_of(p)
    return -F.logsigmoid(sign * logits).sum(1)


def differentiated(losses: torch.Tensor, p: Problem, g: torch.Tensor) -> dict[str, torch.Tensor]:
    leaves = {n: getattr(p, n) for n in NAMES if getattr(p, n) is not None}
    grads = torch.autograd.grad(losses, list(leaves.values()), g)
    for leaf, grad in zip(leaves.values(), grads, strict=True):
        assert (grad.shape, grad.dtype) == (leaf.shape, leaf.dtype)
    return dict(zip(leaves, grads, strict=True))


def run(p: Problem, reduction: str, **options) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss and its gradients for upstream gradients p.g, of a sum p.g[0]."""
    losses = sigmoid_cross_entropy(
        p.rows, p.cols, p.scale, p.bias, row_target=p.row_target, reduction=reduction, **options
    )
    return losses.detach(), differentiated(losses, p, upstream(p, reduction))


def upstream(p: Problem, reduction: str) -> torch.Tensor:
    return p.g[0] if reduction == "sum" else p.g


def check(p: Problem, reduction: str, got, *, bars: dict[str, float] | None = None) -> None:
    """Against fp64 on the same rounded operands, as `support.accuracy` does.

    The gradients of scale and bias are sums of terms of both signs: beside the relative bar, the
    roundings of a logit times the sum of the absolute terms are allowed.
    """
    bars = bars or BARS[str(p.rows.dtype).removeprefix("torch.")]
    exact = p.converted(torch.float64)
    want = dense(exact)
    want = want.sum() if reduction == "sum" else want
    wanted = differentiated(want, exact, upstream(exact, reduction))
    losses, grads = got
    assert relative_error(losses, want) <= bars["loss"]
    logits, sign = (value.detach() for value in logits_of(exact))
    g = upstream(exact, reduction).reshape(-1, 1)
    terms = (g * torch.sigmoid(-sign * logits)).abs()
    cosine = (exact.rows @ exact.cols.T).abs().detach()
    rounding = torch.finfo(p.scale.dtype).eps * (4 + 2 * float(logits.abs().max()))
    extra = {"scale": rounding * (terms * cosine).sum(), "bias": rounding * terms.sum()}
    for name, expected in wanted.items():
        bar = bars["scale" if name in ("scale", "bias") else "gradient"]
        error = (grads[name].double() - expected).norm()
        assert error <= bar * expected.norm() + extra.get(name, 0), (name, float(error))
