"""Wrong input is an error that names the argument, what came and what was expected."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from slipform_kernels import (
    CementLoss,
    ClipLoss,
    NegClipLoss,
    TripletClipLoss,
    concreteness_margin,
    gradient_shares,
    two_way_cross_entropy,
)
from support.backends import every_backend, native_missing
from support.cases import Spec, build

R, C, D, K = 6, 9, 5, 2


def fitting() -> dict[str, Any]:
    """Arguments that are right in everything, R != C."""
    case = build(
        Spec(R, C, D, targets="random", bias="vector", hard=K, margin="random", groups="rare")
    )
    return {"rows": case.rows, "cols": case.cols, "scale": case.scale, **case.options()}


def index(*values: int) -> torch.Tensor:
    return torch.tensor(values)


@dataclass
class Wrong:
    """A change of right arguments, and the error that must name `argument` and say `got`."""

    change: dict[str, Any]
    error: type[Exception]
    argument: str
    got: str = ""


F32 = torch.float32
WRONG = {
    # Ranks.
    "rows 1-d": Wrong({"rows": torch.ones(R)}, ValueError, "rows", "[6]"),
    "rows 3-d": Wrong({"rows": torch.ones(R, D, 1)}, ValueError, "rows", "[6, 5, 1]"),
    "cols 1-d": Wrong({"cols": torch.ones(D)}, ValueError, "cols", "[5]"),
    "cols 0-d": Wrong({"cols": torch.ones(())}, ValueError, "cols", "[]"),
    "scale [2]": Wrong({"scale": torch.ones(2)}, ValueError, "scale", "[2]"),
    "scale [1, 1]": Wrong({"scale": torch.ones(1, 1)}, ValueError, "scale", "[1, 1]"),
    "scale [0]": Wrong({"scale": torch.ones(0)}, ValueError, "scale", "[0]"),
    "bias [C, 1]": Wrong({"bias": torch.ones(C, 1)}, ValueError, "bias", "[9, 1]"),
    "row_target [R, 1]": Wrong(
        {"row_target": torch.zeros(R, 1, dtype=torch.int64)}, ValueError, "row_target", "[6, 1]"
    ),
    "hard_cols 1-d": Wrong({"hard_cols": index(*[0] * R)}, ValueError, "hard_cols", "[6]"),
    "margin 1-d": Wrong({"margin": torch.zeros(R)}, ValueError, "margin", "[6]"),
    "row_group 2-d": Wrong(
        {"row_group": torch.zeros(R, 1, dtype=torch.int64)}, ValueError, "row_group", "[6, 1]"
    ),
    # Sizes.
    "other D": Wrong({"cols": torch.ones(C, D + 1)}, ValueError, "cols", "[9, 6]"),
    "no rows": Wrong({"rows": torch.ones(0, D)}, ValueError, "rows", "[0, 5]"),
    "no cols": Wrong({"cols": torch.ones(0, D)}, ValueError, "cols", "[0, 5]"),
    "D = 0": Wrong({"rows": torch.ones(R, 0)}, ValueError, "rows", "[6, 0]"),
    "bias [C + 1]": Wrong({"bias": torch.ones(C + 1)}, ValueError, "bias", "[10]"),
    "bias [R]": Wrong({"bias": torch.ones(R)}, ValueError, "bias", "[6]"),
    "row_target [C]": Wrong({"row_target": index(*[0] * C)}, ValueError, "row_target", "[9]"),
    "col_target [R]": Wrong({"col_target": index(*[0] * R)}, ValueError, "col_target", "[6]"),
    "hard_cols [C, K]": Wrong(
        {"hard_cols": torch.zeros(C, K, dtype=torch.int64)}, ValueError, "hard_cols", "[9, 2]"
    ),
    "margin [R, K + 1]": Wrong({"margin": torch.zeros(R, K + 1)}, ValueError, "margin", "[6, 3]"),
    "row_group [C]": Wrong({"row_group": index(*[0] * C)}, ValueError, "row_group", "[9]"),
    "col_group [R]": Wrong({"col_group": index(*[0] * R)}, ValueError, "col_group", "[6]"),
    # Combinations.
    "R != C, no row_target": Wrong({"row_target": None}, ValueError, "row_target", "None"),
    "R != C, no col_target": Wrong({"col_target": None}, ValueError, "col_target", "None"),
    "margin alone": Wrong({"hard_cols": None}, ValueError, "margin", "without hard_cols"),
    "row_group alone": Wrong({"col_group": None}, ValueError, "col_group", "None"),
    "col_group alone": Wrong({"row_group": None}, ValueError, "row_group", "None"),
    # Ranges.
    "row_target C": Wrong({"row_target": index(0, 0, 0, 0, 0, C)}, ValueError, "row_target", "9"),
    "row_target -2": Wrong({"row_target": index(-2, *[0] * 5)}, ValueError, "row_target", "-2"),
    "col_target R": Wrong({"col_target": index(R, *[0] * 8)}, ValueError, "col_target", "6"),
    "col_target -2": Wrong({"col_target": index(*[0] * 8, -2)}, ValueError, "col_target", "-2"),
    "hard_cols C": Wrong({"hard_cols": torch.full((R, K), C)}, ValueError, "hard_cols", "9"),
    "hard_cols -2": Wrong({"hard_cols": torch.full((R, K), -2)}, ValueError, "hard_cols", "-2"),
    # Types and dtypes.
    "rows int": Wrong({"rows": torch.ones(R, D).long()}, TypeError, "rows", "int64"),
    "rows complex": Wrong({"rows": torch.ones(R, D) * 1j}, TypeError, "rows", "complex64"),
    "rows list": Wrong({"rows": [[1.0]]}, TypeError, "rows", "list"),
    "rows None": Wrong({"rows": None}, TypeError, "rows", "NoneType"),
    "cols numpy": Wrong({"cols": torch.ones(C, D).numpy()}, TypeError, "cols", "ndarray"),
    "cols bf16": Wrong({"cols": torch.ones(C, D).bfloat16()}, TypeError, "cols", "bfloat16"),
    "cols fp64": Wrong({"cols": torch.ones(C, D).double()}, TypeError, "cols", "float64"),
    "scale int": Wrong({"scale": torch.tensor(3)}, TypeError, "scale", "int64"),
    "scale str": Wrong({"scale": "10"}, TypeError, "scale", "str"),
    "scale None": Wrong({"scale": None}, TypeError, "scale", "NoneType"),
    "scale bool": Wrong({"scale": True}, TypeError, "scale", "bool"),
    "bias int": Wrong({"bias": torch.ones(C).long()}, TypeError, "bias", "int64"),
    "bias list": Wrong({"bias": [0.0] * C}, TypeError, "bias", "list"),
    "row_target int32": Wrong(
        {"row_target": torch.zeros(R, dtype=torch.int32)}, TypeError, "row_target", "int32"
    ),
    "row_target float": Wrong({"row_target": torch.zeros(R)}, TypeError, "row_target", "float32"),
    "row_target list": Wrong({"row_target": [0] * R}, TypeError, "row_target", "list"),
    "col_target bool": Wrong(
        {"col_target": torch.zeros(C, dtype=torch.bool)}, TypeError, "col_target", "bool"
    ),
    "hard_cols int32": Wrong(
        {"hard_cols": torch.zeros(R, K, dtype=torch.int32)}, TypeError, "hard_cols", "int32"
    ),
    "margin int": Wrong({"margin": torch.zeros(R, K).long()}, TypeError, "margin", "int64"),
    "margin float": Wrong({"margin": 0.1}, TypeError, "margin", "float"),
    "row_group float": Wrong({"row_group": torch.zeros(R)}, TypeError, "row_group", "float32"),
    "col_group list": Wrong({"col_group": [0] * C}, TypeError, "col_group", "list"),
    # Devices: meta stands for any other one.
    "cols elsewhere": Wrong({"cols": torch.ones(C, D, device="meta")}, ValueError, "cols", "meta"),
    "scale elsewhere": Wrong({"scale": torch.ones((), device="meta")}, ValueError, "scale", "meta"),
    "bias elsewhere": Wrong({"bias": torch.ones(C, device="meta")}, ValueError, "bias", "meta"),
    "row_target elsewhere": Wrong(
        {"row_target": torch.zeros(R, dtype=torch.int64, device="meta")},
        ValueError,
        "row_target",
        "meta",
    ),
    "hard_cols elsewhere": Wrong(
        {"hard_cols": torch.zeros(R, K, dtype=torch.int64, device="meta")},
        ValueError,
        "hard_cols",
        "meta",
    ),
    "margin elsewhere": Wrong(
        {"margin": torch.zeros(R, K, device="meta")}, ValueError, "margin", "meta"
    ),
    "col_group elsewhere": Wrong(
        {"col_group": torch.zeros(C, dtype=torch.int64, device="meta")},
        ValueError,
        "col_group",
        "meta",
    ),
    # Choices.
    "precision": Wrong({"precision": "fast"}, ValueError, "precision", "'fast'"),
    "precision dtype": Wrong({"precision": F32}, ValueError, "precision", "torch.float32"),
    "backend": Wrong({"backend": "cuda"}, ValueError, "backend", "'cuda'"),
    "backend case": Wrong({"backend": "Torch"}, ValueError, "backend", "'Torch'"),
    "backend type": Wrong({"backend": 3}, ValueError, "backend", "3"),
}


def assert_message(message: str, argument: str, got: str) -> None:
    """One sentence that names the argument, what came and what was expected."""
    assert message.startswith(f"{argument}: got "), message
    came, expected = message.split("expected", 1)
    assert got in came, message
    assert expected.strip(), message


@pytest.mark.parametrize("function", [two_way_cross_entropy, gradient_shares])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name, function):
    row = WRONG[name]
    with pytest.raises(row.error) as raised:
        function(**{**fitting(), **row.change})
    assert type(raised.value) is row.error
    assert_message(str(raised.value), row.argument, row.got)


@every_backend("reference")
@pytest.mark.parametrize("argument", ["row_target", "col_target", "hard_cols"])
@pytest.mark.parametrize("value", [-2, 99])
def test_every_backend_checks_ranges(backend, argument, value):
    arguments = fitting()
    arguments[argument] = torch.full_like(arguments[argument], value)
    with pytest.raises(ValueError, match=rf"^{argument}: got .*{value}.*expected"):
        two_way_cross_entropy(**arguments, backend=backend)


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_fp64_is_refused_by_the_backends_that_lack_it(backend):
    features = torch.ones(3, 2, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=f"backend: got '{backend}'.*float64.*expected"):
        two_way_cross_entropy(features, features, 1.0, backend=backend)


def test_a_missing_backend_that_is_asked_for_is_an_error_with_the_reason(monkeypatch):
    if native_missing() is None:
        from slipform_kernels.backends import native

        monkeypatch.setattr(native, "supports", lambda problem: "it was taken away")
    features = torch.ones(3, 2)
    with pytest.raises(RuntimeError, match=r"^backend: got 'native', which is not available: \w+"):
        two_way_cross_entropy(features, features, 1.0, backend="native")
    # Where nothing was asked for, another backend serves.
    with pytest.warns(UserWarning, match="native"):
        row_loss, _ = two_way_cross_entropy(features, features, 1.0)
    torch.testing.assert_close(row_loss, torch.full((3,), math.log(3)))


def test_environment_override(monkeypatch):
    features = torch.randn(3, 2, requires_grad=True)
    monkeypatch.setenv("SLIPFORM_BACKEND", "reference")
    row_loss, _ = two_way_cross_entropy(features, features, 1.0)
    (grad,) = torch.autograd.grad(row_loss.sum(), features, create_graph=True)
    assert grad.requires_grad, "only the reference can be differentiated twice"
    monkeypatch.setenv("SLIPFORM_BACKEND", "fastest")
    with pytest.raises(ValueError, match="SLIPFORM_BACKEND: got 'fastest'; expected"):
        two_way_cross_entropy(features, features, 1.0)


N = 4
X = torch.nn.functional.normalize(torch.randn(N, D, generator=torch.Generator().manual_seed(0)))
HARD = X[:, None].expand(N, K, D)
RATING = torch.full((N, K), 3.0)
PAIRED = {"hard_text_features": X, "hard_image_features": X, "concreteness": RATING[:, 0]}


def cement(**change: Any) -> Callable[[], Any]:
    given = {"hard_text_features": HARD, "concreteness": RATING, **change}
    return lambda: CementLoss()(X, X, 1.0, **given)


def paired(**change: Any) -> Callable[[], Any]:
    return lambda: CementLoss(layout="paired")(X, X, 1.0, **{**PAIRED, **change})


def negclip(**change: Any) -> Callable[[], Any]:
    return lambda: NegClipLoss()(X, X, 1.0, **{"hard_text_features": HARD, **change})


def triplet(**change: Any) -> Callable[[], Any]:
    given = {"hard_text_features": X, "hard_image_features": X, **change}
    return lambda: TripletClipLoss()(X, X, 1.0, **given)


LOSSES_WRONG = {
    "clip: sizes": (lambda: ClipLoss()(X, X[:3], 1.0), ValueError, "text_features", "[3, 5]"),
    "clip: rank": (lambda: ClipLoss()(X[0], X[0], 1.0), ValueError, "image_features", "[5]"),
    "clip: type": (lambda: ClipLoss()(X, None, 1.0), TypeError, "text_features", "NoneType"),
    "clip: world_size": (
        lambda: ClipLoss(world_size=4)(X, X, 1.0), ValueError, "world_size", "0 of 4",
    ),
    "clip: ranks": (lambda: ClipLoss(rank=3, world_size=2), ValueError, "rank", "3"),
    "clip: local_loss": (
        lambda: ClipLoss(local_loss=True, world_size=2), ValueError, "local_loss", "True",
    ),
    "clip: use_horovod": (
        lambda: ClipLoss(use_horovod=True), NotImplementedError, "use_horovod", "True",
    ),
    "negclip: exchange": (lambda: NegClipLoss(exchange="all"), ValueError, "exchange", "'all'"),
    "clip: backend": (lambda: ClipLoss(backend="gpu")(X, X, 1.0), ValueError, "backend", "'gpu'"),
    "negclip: rank": (
        negclip(hard_text_features=X[0]), ValueError, "hard_text_features", "[5]",
    ),
    "negclip: N": (
        negclip(hard_text_features=HARD[:3]), ValueError, "hard_text_features", "[3, 2, 5]",
    ),
    "negclip: D": (
        negclip(hard_text_features=HARD[..., :4]), ValueError, "hard_text_features", "[4, 2, 4]",
    ),
    "negclip: K = 0": (
        negclip(hard_text_features=HARD[:, :0]), ValueError, "hard_text_features", "[4, 0, 5]",
    ),
    "negclip: mask dtype": (
        negclip(hard_mask=torch.ones(N, K)), TypeError, "hard_mask", "float32",
    ),
    "negclip: mask shape": (
        negclip(hard_mask=torch.ones(N, K + 1) > 0), ValueError, "hard_mask", "[4, 3]",
    ),
    "cement: concreteness shape": (
        cement(concreteness=RATING[:, :1]), ValueError, "concreteness", "[4, 1]",
    ),
    "cement: concreteness type": (
        cement(concreteness=3.0), TypeError, "concreteness", "float",
    ),
    "cement: rating 0.9": (
        cement(concreteness=RATING - 2.1), ValueError, "concreteness", "0.9",
    ),
    "cement: rating 5.1": (
        cement(concreteness=RATING + 2.1), ValueError, "concreteness", "5.1",
    ),
    "cement: rating nan": (
        cement(concreteness=RATING * float("nan")), ValueError, "concreteness", "nan",
    ),
    "cement: hard images in captions": (
        cement(hard_image_features=X), ValueError, "hard_image_features", "",
    ),
    "cement: no hard images in paired": (
        paired(hard_image_features=None), ValueError, "hard_image_features", "None",
    ),
    "cement: K = 2 in paired": (
        paired(hard_text_features=HARD, concreteness=RATING), ValueError, "hard_text_features", "2",
    ),
    "cement: hard images' shape": (
        paired(hard_image_features=X[:, :4]), ValueError, "hard_image_features", "[4, 4]",
    ),
    "cement: direction": (
        lambda: CementLoss(direction="up"), ValueError, "direction", "'up'",
    ),
    "cement: unit": (lambda: CementLoss(unit="nats"), ValueError, "unit", "'nats'"),
    "cement: layout": (lambda: CementLoss(layout="2N"), ValueError, "layout", "'2N'"),
    "cement: margin": (lambda: CementLoss(margin=-0.1), ValueError, "margin", "-0.1"),
    "cement: margin nan": (lambda: CementLoss(margin=math.nan), ValueError, "margin", "nan"),
    "triplet: margin": (lambda: TripletClipLoss(margin=-1.0), ValueError, "margin", "-1.0"),
    "triplet: K = 2": (
        triplet(hard_text_features=HARD), ValueError, "hard_text_features", "[4, 2, 5]",
    ),
    "triplet: hard images": (
        triplet(hard_image_features=X[:2]), ValueError, "hard_image_features", "[2, 5]",
    ),
    "margin: type": (lambda: concreteness_margin([3.0]), TypeError, "concreteness", "list"),
    "margin: direction": (
        lambda: concreteness_margin(RATING, direction="flat"), ValueError, "direction", "'flat'",
    ),
    "margin: negative": (
        lambda: concreteness_margin(RATING, margin=-1.0), ValueError, "margin", "-1.0",
    ),
    "margin: mask shape": (
        lambda: concreteness_margin(RATING, mask=torch.ones(N) > 0), ValueError, "mask", "[4]",
    ),
    "margin: mask dtype": (
        lambda: concreteness_margin(RATING, mask=torch.ones(N, K)), TypeError, "mask", "float32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES_WRONG)
def test_wrong_arguments_of_losses(name):
    call, error, argument, got = LOSSES_WRONG[name]
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error
    assert_message(str(raised.value), argument, got)


def test_hard_negatives_are_keyword_only():
    with pytest.raises(TypeError, match=re.escape("positional")):
        NegClipLoss()(X, X, 1.0, HARD)
