"""The accuracy bar: how far a backend's results may be from the fp64 oracle, and why.

The bar is relative: losses within 1e-5, gradients within 1e-5 in relative norm (4e-3 for bf16 and
fp16 inputs, 1e-3 for their scale gradient). `check_bar` applies exactly that. It holds where the
quantity is not itself a small difference of large terms. Over all options it often is: with a
softmax over everything, a scalar bias has a gradient of exactly 0, and so has a row whose columns
are all equal. `check` therefore allows, beside the relative bar, the first-order forward error of
an fp32 evaluation, and no more:

- a dot product of D terms, summed one after the other, rounds partial sums of the order of
  |<x, y>| + sqrt(sum_d x_d^2 y_d^2); its D roundings are independent, so about sqrt(D) of them
  count (Higham and Mary 2019, "A new approach to probabilistic rounding error analysis");
- so a logit is wrong by at most EPS * M_ij, with M_ij = |s| (max(1, sqrt(D) / 2) (|<x_i, y_j>| +
  sqrt(sum_d x_id^2 y_jd^2)) + sum_k |m_ik|) + |b_j|, and the log-sum-exp over row i by the largest
  M of the row;
- so the loss, softplus(d) with d = rest - positive, is wrong by sigmoid(d) * EPS * (4 + 2 M), and
  each term |g_i| p_ij of dL_ij by the same factor EPS * (4 + 2 M) of itself. The 4 stands for the
  exponential and for the roundings of sums and products;
- a gradient is a sum of such terms times |y_j|, |x_i| or |<x_i, y_j>| + |m_ij|, and its error at
  most the sum of their errors: the sum of absolute terms, not the cancelled one.
- for bf16 and fp16 features dL may pass through a workspace in their dtype, which rounds each entry
  independently: the unit roundoff times the root of the sum of squared terms;
- a probability or a result below TINY may be 0 in fp32: positives 90 nats above the rest have no
  loss, and fp16 results below 2^-14 have a fixed spacing of 2^-24.

EPS is half the spacing of fp32 at 1, TINY its smallest normal number. Losses are compared entry by
entry, gradients in norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from support.cases import Case
from support.oracle import Outcome

EPS = 2.0**-24
TINY = 2.0**-126
BARS = {
    "float64": {"loss": 1e-12, "gradient": 1e-11, "scale": 1e-11},
    "float32": {"loss": 1e-5, "gradient": 1e-5, "scale": 1e-5},
    "bfloat16": {"loss": 1e-5, "gradient": 4e-3, "scale": 1e-3},
    "float16": {"loss": 1e-5, "gradient": 4e-3, "scale": 1e-3},
}
_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
_UNDERFLOW = {"float16": 2.0**-25}


@dataclass
class Allowance:
    """Forward error of an fp32 evaluation: of every loss, and in norm of every gradient."""

    row_loss: torch.Tensor
    col_loss: torch.Tensor
    rows: float = 0.0
    cols: float = 0.0
    scale: float = 0.0
    bias: float = 0.0
    margin: float = 0.0


def dtype_name(case: Case) -> str:
    return str(case.rows.dtype).removeprefix("torch.")


def check(case: Case, got: Outcome, want: Outcome) -> None:
    """Asserts the bar plus the forward error; for any case with finite inputs."""
    bars = BARS[dtype_name(case)]
    allowance = forward_error(case)
    for name in ("row_loss", "col_loss"):
        expected = getattr(want, name)
        limit = bars["loss"] * expected.abs() + getattr(allowance, name)
        _assert_entries(name, getattr(got, name), expected, limit)
    for name in Outcome.GRADIENTS:
        if _present(name, got, want):
            bar = bars["scale" if name == "scale" else "gradient"]
            lost = _UNDERFLOW.get(dtype_name(case), TINY) if name in ("rows", "cols") else TINY
            extra = getattr(allowance, name) + lost * math.sqrt(getattr(want, name).numel())
            _assert_norm(name, getattr(got, name), getattr(want, name), bar, extra)


def check_bar(case: Case, got: Outcome, want: Outcome, *, gradient: float | None = None) -> None:
    """Asserts the relative bar alone: relative norms of the losses and of every gradient.

    `gradient` replaces the bar of fp32 gradients: 1e-4 for well-separated pairs.
    """
    bars = BARS[dtype_name(case)]
    for name in ("row_loss", "col_loss"):
        _assert_norm(name, getattr(got, name), getattr(want, name), bars["loss"], 0.0)
    for name in Outcome.GRADIENTS:
        if _present(name, got, want):
            bar = gradient or bars["scale" if name == "scale" else "gradient"]
            _assert_norm(name, getattr(got, name), getattr(want, name), bar, 0.0)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is wanted, in fp64."""
    got, want = got.detach().cpu().double(), want.detach().cpu().double()
    return float((got - want).norm() / want.norm().clamp(min=1e-300))


def _present(name: str, got: Outcome, want: Outcome) -> bool:
    if (getattr(got, name) is None) != (getattr(want, name) is None):
        raise AssertionError(f"{name}: one side has no gradient: {got!r} and {want!r}")
    return getattr(want, name) is not None


def _assert_entries(name: str, got: torch.Tensor, want: torch.Tensor, limit: torch.Tensor) -> None:
    got = got.detach().cpu().double()
    assert got.shape == want.shape, f"{name}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    wrong = ~((got - want).abs() <= limit)
    if wrong.any():
        i = int(wrong.nonzero()[0])
        raise AssertionError(
            f"{name}[{i}]: got {got[i]:.9g}, want {want[i]:.9g}, off by {got[i] - want[i]:.2e} "
            f"where {limit[i]:.2e} is allowed ({int(wrong.sum())} of {len(want)} entries)"
        )


def _assert_norm(
    name: str, got: torch.Tensor, want: torch.Tensor, bar: float, extra: float
) -> None:
    got = got.detach().cpu().double()
    assert got.shape == want.shape, f"{name}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    error, size = float((got - want).norm()), float(want.norm())
    assert error <= bar * size + extra, (
        f"{name}: error {error:.3e} of norm {size:.3e} ({error / max(size, 1e-300):.2e} relative), "
        f"allowed {bar:.0e} relative + {extra:.2e}"
    )


def forward_error(case: Case) -> Allowance:
    """First-order error bounds of a correct evaluation, from the sums of absolute terms (fp64)."""
    eps = 2.0**-53 if case.rows.dtype == torch.float64 else EPS
    roundoff = _ROUNDOFF.get(dtype_name(case), 0.0)
    case = case.double()
    x, y, s = case.rows.abs(), case.cols.abs(), abs(float(case.scale))
    signed, shift, size = _magnitudes(case, s)
    row_target, col_target = case.targets()
    same = torch.zeros_like(size, dtype=torch.bool)
    if case.row_group is not None and case.col_group is not None:
        same = case.row_group[:, None] == case.col_group[None, :]
    row_sigma, p, row_size = _direction(signed, size, same, row_target)
    col_sigma, q, col_size = (v.t() for v in _direction(signed.t(), size.t(), same.t(), col_target))
    terms = case.g.abs()[:, None] * p + case.h.abs()[None, :] * q
    row_factor, col_factor = eps * (4 + 2 * row_size), eps * (4 + 2 * col_size)
    error = case.g.abs()[:, None] * (p * row_factor + TINY)
    error = error + case.h.abs()[None, :] * (q * col_factor + TINY)
    out = Allowance(
        row_loss=(row_sigma * row_factor + TINY).flatten(),
        col_loss=(col_sigma * col_factor + TINY).flatten(),
        rows=s * float((error @ y).norm() + roundoff * (terms**2 @ y**2).sum().sqrt()),
        cols=s * float((error.t() @ x).norm() + roundoff * (terms.t() ** 2 @ x**2).sum().sqrt()),
        scale=float((error * shift).sum()),
    )
    if isinstance(case.bias, torch.Tensor):
        per_column = error.sum(dim=0)
        out.bias = float(per_column.norm() if case.bias.numel() > 1 else per_column.sum())
    if case.margin is not None and case.hard_cols is not None:
        at_hard = error.gather(1, case.hard_cols.clamp(min=0)) * (case.hard_cols >= 0)
        out.margin = float((s * at_hard).norm())
    return out


def _magnitudes(case: Case, s: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits; magnitudes of what the scale multiplies; magnitudes of what a logit is made of."""
    cosine, shift = case.rows @ case.cols.t(), case.rows.abs() @ case.cols.abs().t()
    rms = (case.rows**2 @ (case.cols**2).t()).sqrt()
    size = max(1.0, math.sqrt(case.rows.shape[1]) / 2) * (cosine.abs() + rms)
    if case.margin is not None and case.hard_cols is not None:
        margin = case.margin.masked_fill(case.hard_cols < 0, 0.0)
        hard = case.hard_cols.clamp(min=0)
        cosine = cosine.scatter_add(1, hard, margin)
        shift, size = (v.scatter_add(1, hard, margin.abs()) for v in (shift, size))
    bias = torch.as_tensor(0.0 if case.bias is None else case.bias, dtype=torch.float64)
    finite = bias.masked_fill(bias == -math.inf, 0.0)
    return float(case.scale) * cosine + bias, shift, s * size + finite.abs()


def _direction(
    logits: torch.Tensor, size: torch.Tensor, same: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """1 - p of the positives [n, 1]; p, with 1 - p at the positive [n, m]; largest M [n, 1]."""
    anchor = (target >= 0)[:, None]
    column = target.clamp(min=0)[:, None]
    at_target = torch.zeros_like(same).scatter(1, column, True)
    masked = logits.masked_fill(same | at_target, -math.inf)
    rest = masked.logsumexp(dim=1, keepdim=True)
    positive = logits.gather(1, column)
    sigma = torch.sigmoid(rest - positive)
    # Where nothing is left but the positive, rest is -inf and so is every exponent.
    p = (masked - torch.logaddexp(rest, positive)).exp()
    p = torch.where(at_target, sigma, p).masked_fill(~anchor, 0.0)
    largest = size.masked_fill(same & ~at_target, 0.0).amax(dim=1, keepdim=True)
    return sigma.masked_fill(~anchor, 0.0), p, largest
