"""Gradient shares: what pulls on the positive, against the softmax written out in fp64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from slipform_kernels import CementLoss, GradientShares, NegClipLoss, gradient_shares
from support.accuracy import forward_error
from support.backends import every_backend
from support.cases import Case, Spec, build
from support.strategies import specs


def written_out(case: Case) -> GradientShares:
    """1 - p_+, the probability of the row's own hard negatives, and that of the other columns."""
    case = case.double()
    n_rows, n_cols = len(case.rows), len(case.cols)
    hard = torch.zeros(n_rows, n_cols, dtype=torch.bool)
    shift = torch.zeros(n_rows, n_cols, dtype=torch.float64)
    for i, columns in enumerate([] if case.hard_cols is None else case.hard_cols.tolist()):
        for k, j in enumerate(columns):
            if j >= 0:
                hard[i, j] = True
                shift[i, j] += 0.0 if case.margin is None else case.margin[i, k]
    logits = case.scale * (case.rows @ case.cols.T + shift)
    logits = logits + (0.0 if case.bias is None else case.bias)
    target, _ = case.targets()
    own = torch.arange(n_cols) == target[:, None]
    if case.row_group is not None:
        same = case.row_group[:, None] == case.col_group
        logits = logits.masked_fill(same & ~own, -torch.inf)
    p = torch.softmax(logits, dim=1)
    kept = (~own, hard & ~own, ~hard & ~own)
    return GradientShares(*((p * k).sum(1).where(target >= 0, torch.nan) for k in kept))


def arguments(case: Case) -> dict[str, object]:
    return {"rows": case.rows, "cols": case.cols, "scale": case.scale, **case.options()}


def close(case: Case, got: GradientShares) -> None:
    """Each share is right to 1e-5 of itself, plus the forward error of the pull that it is part of.

    p_E is what is left of the pull without p_H: where that is little, it has the pull's error.
    """
    want = written_out(case)
    error = 2 * forward_error(case).row_loss
    for name, ours, theirs in zip(GradientShares._fields, got, want, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan()), name
        wrong = (ours.double() - theirs).abs() > 1e-5 * theirs + error
        assert not wrong.any(), f"{name}: got {ours[wrong]}, want {theirs[wrong]}"


@every_backend("reference")
@given(spec=specs())
def test_equal_the_softmax_over_all_options(backend, spec):
    case = build(spec)
    close(case, gradient_shares(**arguments(case), backend=backend))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_dtypes(dtype):
    case = build(Spec(30, 40, 16, dtype, targets="random", hard=2, margin="random"))
    got = gradient_shares(**arguments(case))
    if dtype == "float64":
        # They are computed in fp32.
        case.rows, case.cols = case.rows.float(), case.cols.float()
    close(case, got)


def test_shares_are_detached_fp32_and_add_up():
    case = build(Spec(30, 40, 16, targets="random", hard=2, margin="random")).leaves()
    got = gradient_shares(**arguments(case))
    assert isinstance(got, GradientShares)
    for share in got:
        assert share.shape == (30,)
        assert share.dtype == torch.float32
        assert not share.requires_grad
    anchors = case.row_target >= 0
    assert got.positive[~anchors].isnan().all()
    torch.testing.assert_close((got.hard + got.easy)[anchors], got.positive[anchors])


def test_the_margin_multiplies_the_ratio_of_hard_to_easy():
    case = build(Spec(30, 40, 16, scale=20.0, targets="random", seed=4))
    case.hard_cols = (case.row_target.clamp(min=0)[:, None] + torch.tensor([[1, 2]])) % 40
    ratios = []
    for margin in (0.0, 0.07):
        case.margin = torch.full((30, 2), margin)
        got = gradient_shares(**arguments(case))
        ratios.append((got.hard / got.easy)[case.row_target >= 0])
    growth = torch.full_like(ratios[0], 20.0 * 0.07).exp()
    torch.testing.assert_close(ratios[1] / ratios[0], growth, rtol=1e-4, atol=0)


MODULES = [NegClipLoss(), CementLoss(margin=0.2), CementLoss(margin=0.2, layout="paired")]


@pytest.mark.parametrize("module", MODULES, ids=["negclip", "captions", "paired"])
def test_a_layout_gives_the_arguments(module):
    gen = torch.Generator().manual_seed(0)
    images, texts, hard = (torch.randn(6, 8, generator=gen) for _ in range(3))
    extra = {"concreteness": torch.full((6,), 3.0)} if isinstance(module, CementLoss) else {}
    if getattr(module, "arrangement", None) == "paired":
        extra["hard_image_features"] = torch.randn(6, 8, generator=gen)
    layout = module.layout(images, texts, 3.0, hard_text_features=hard, **extra)
    names = ("rows", "cols", "scale", "bias", "row_target", "col_target", "hard_cols", "margin")
    case = Case(**{name: layout.get(name) for name in names})
    case.g, case.h = torch.zeros(len(case.rows)), torch.zeros(len(case.cols))
    close(case, gradient_shares(**layout))
