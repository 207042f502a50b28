"""The one generator of test problems for the two-way cross-entropy, for the tests of every backend.

A `Spec` is a small description, and `build` turns it into a `Case` (tensors) deterministically;
`strategies.specs()` is the hypothesis strategy over descriptions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch

HALF = ("bfloat16", "float16")
TARGETS = ("diagonal", "explicit", "random", "shared", "row_only", "col_only", "none")
GEOMETRIES = ("unit", "circle", "separated", "unnormalised")
SCALE_FORMS = ("0d", "1d", "float")
BIASES = (None, "float", "0d", "1d", "vector", "vector_inf")
MARGINS = (None, "zero", "random")
GROUPS = (None, "rare", "dense", "all_equal")
UPSTREAMS = ("mean", "weights", "some_zero", "rows_only", "cols_only", "zero")
LAYOUTS = ("contiguous", "transposed", "sliced")


@dataclass(frozen=True)
class Spec:
    """A description of one problem. The same description always builds the same tensors.

    rows, cols, dim: R, C, D. hard: K, or None for no `hard_cols` at all (K = 0 is a [R, 0] tensor).
    targets: "diagonal" passes None where R == C, and the same targets explicitly where it is not;
        "explicit" passes the diagonal explicitly; "random" draws both directions independently,
        with -1 among them (t_i = j with u_j != i occurs); "shared" gives several rows one column;
        "row_only" and "col_only" have anchors in one direction, "none" has none.
    geometry: "unit" has unit norms and positives at a cosine of about 0.4, "circle" has cosines
        all over [-1, 1], "separated" positives far above the rest, "unnormalised" norms of 0.2 to
        5.
    """

    rows: int
    cols: int
    dim: int
    dtype: str = "float32"
    targets: str = "diagonal"
    geometry: str = "unit"
    scale: float = 14.3
    scale_form: str = "0d"
    bias: str | None = None
    hard: int | None = None
    margin: str | None = None
    groups: str | None = None
    upstream: str = "mean"
    layout: str = "contiguous"
    seed: int = 0


@dataclass
class Case:
    """Tensors of one problem, named as the primitive's arguments, and g [R], h [C]."""

    rows: torch.Tensor
    cols: torch.Tensor
    scale: torch.Tensor | float
    bias: torch.Tensor | float | None = None
    row_target: torch.Tensor | None = None
    col_target: torch.Tensor | None = None
    hard_cols: torch.Tensor | None = None
    margin: torch.Tensor | None = None
    row_group: torch.Tensor | None = None
    col_group: torch.Tensor | None = None
    g: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    h: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    def targets(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Row and column targets with the default (the diagonal) filled in."""
        diagonal = torch.arange(self.rows.shape[0], device=self.rows.device)
        row = diagonal if self.row_target is None else self.row_target
        col = diagonal if self.col_target is None else self.col_target
        return row, col

    def options(self) -> dict[str, object]:
        """The keyword arguments of `two_way_cross_entropy` after rows, cols and scale."""
        names = (
            "bias",
            "row_target",
            "col_target",
            "hard_cols",
            "margin",
            "row_group",
            "col_group",
        )
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def leaves(self) -> Case:
        """A copy whose floating-point tensors are leaves that require grad, strides kept."""
        fresh = {}
        for name in ("rows", "cols", "scale", "bias", "margin"):
            value = getattr(self, name)
            if isinstance(value, torch.Tensor):
                fresh[name] = value.detach().requires_grad_()
        return replace(self, **fresh)

    def double(self) -> Case:
        """The same (rounded) values in fp64, on the CPU."""

        def convert(value: object) -> object:
            if not isinstance(value, torch.Tensor):
                return value
            value = value.detach().cpu()
            return value.double() if value.is_floating_point() else value

        return Case(**{name: convert(value) for name, value in vars(self).items()})


def build(spec: Spec, device: str | torch.device = "cpu") -> Case:
    """Turns a description into tensors on `device`; deterministic."""
    gen = torch.Generator().manual_seed(spec.seed)
    row_target, col_target = _targets(spec, gen)
    rows, cols = _features(spec, row_target, col_target, gen)
    hard_cols, margin = _hard(spec, row_target, gen)
    bias = _bias(spec, row_target, col_target, gen)
    row_group, col_group = _groups(spec, gen)
    g, h = _upstream(spec, gen)
    default = spec.targets == "diagonal" and spec.rows == spec.cols and spec.bias != "vector_inf"
    dtype = getattr(torch, spec.dtype)
    fp = torch.float64 if dtype == torch.float64 else torch.float32

    def place(value: torch.Tensor | float | None) -> torch.Tensor | float | None:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(device, fp) if value.is_floating_point() else value.to(device)

    scale: torch.Tensor | float = spec.scale
    if spec.scale_form != "float":
        scale = torch.tensor([spec.scale] if spec.scale_form == "1d" else spec.scale)
    return Case(
        rows=_lay_out(rows.to(device, dtype), spec.layout),
        cols=_lay_out(cols.to(device, dtype), spec.layout),
        scale=place(scale),
        bias=place(bias),
        row_target=None if default else place(row_target),
        col_target=None if default else place(col_target),
        hard_cols=place(hard_cols),
        margin=place(margin),
        row_group=place(row_group),
        col_group=place(col_group),
        g=place(g),
        h=place(h),
    )


def _uniform(gen: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=gen, dtype=torch.float64)


def _normal(gen: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=gen, dtype=torch.float64)


def _draw(gen: torch.Generator, low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=gen)


def _targets(spec: Spec, gen: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    n_rows, n_cols = spec.rows, spec.cols
    row = torch.arange(n_rows)
    row[row >= n_cols] = -1
    col = torch.arange(n_cols)
    col[col >= n_rows] = -1
    if spec.targets in ("random", "shared"):
        high = n_cols if spec.targets == "random" else min(2, n_cols)
        row = _draw(gen, 0, high, n_rows)
        col = _draw(gen, 0, n_rows if spec.targets == "random" else min(2, n_rows), n_cols)
        row[_uniform(gen, n_rows) < 0.2] = -1
        col[_uniform(gen, n_cols) < 0.2] = -1
    if spec.targets in ("col_only", "none"):
        row = torch.full((n_rows,), -1)
    if spec.targets in ("row_only", "none"):
        col = torch.full((n_cols,), -1)
    if spec.bias == "vector_inf":
        # A column without a logit cannot be a positive: its own loss would be inf - inf.
        col[_closed_columns(spec)] = -1
        row[torch.isin(row, _closed_columns(spec).nonzero().flatten())] = -1
    return row, col


def _closed_columns(spec: Spec) -> torch.Tensor:
    """Columns that a bias of -inf takes out: every third, and never the only one."""
    index = torch.arange(spec.cols)
    return index % 3 == 1


def _features(
    spec: Spec, row_target: torch.Tensor, col_target: torch.Tensor, gen: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, cols = _normal(gen, spec.rows, spec.dim), _normal(gen, spec.cols, spec.dim)
    if spec.geometry == "circle":
        # All weight on two axes: cosines cover [-1, 1] whatever D is.
        weight = torch.full((spec.dim,), 1e-3, dtype=torch.float64)
        weight[:2] = 1.0
        rows, cols = rows * weight, cols * weight
    rows, cols = _unit(rows), _unit(cols)
    pull = {"unit": 0.4, "separated": 0.9, "circle": 0.0, "unnormalised": 0.4}[spec.geometry]
    anchors = row_target >= 0
    mixed = pull * cols[row_target.clamp(min=0)] + math.sqrt(1 - pull**2) * rows
    rows = torch.where(anchors[:, None], _unit(mixed), rows)
    if spec.geometry == "unnormalised":
        rows = rows * (5.0 ** (2 * _uniform(gen, spec.rows, 1) - 1))
        cols = cols * (5.0 ** (2 * _uniform(gen, spec.cols, 1) - 1))
    return rows, cols


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=1, keepdim=True).clamp(min=1e-30)


def _hard(
    spec: Spec, row_target: torch.Tensor, gen: torch.Generator
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if spec.hard is None:
        return None, None
    shape = (spec.rows, spec.hard)
    hard = _draw(gen, 0, spec.cols, *shape)
    if spec.hard >= 2:
        repeated = _uniform(gen, spec.rows) < 0.3
        hard[repeated, 1] = hard[repeated, 0]
    if spec.hard >= 1:
        # Some rows name their own positive, some have no hard negative in the first place.
        own = (_uniform(gen, spec.rows) < 0.2) & (row_target >= 0)
        hard[own, 0] = row_target[own]
    hard[_uniform(gen, *shape) < 0.25] = -1
    if spec.margin is None:
        return hard, None
    if spec.margin == "zero":
        return hard, torch.zeros(shape, dtype=torch.float64)
    return hard, 0.25 * _uniform(gen, *shape) - 0.05


def _bias(
    spec: Spec, row_target: torch.Tensor, col_target: torch.Tensor, gen: torch.Generator
) -> torch.Tensor | float | None:
    if spec.bias is None:
        return None
    if spec.bias == "float":
        return -1.75
    if spec.bias in ("0d", "1d"):
        return torch.tensor(-2.5 if spec.bias == "0d" else [-2.5], dtype=torch.float64)
    bias = 2 * _normal(gen, spec.cols)
    if spec.bias == "vector_inf":
        bias[_closed_columns(spec)] = -math.inf
    return bias


def _groups(spec: Spec, gen: torch.Generator) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if spec.groups is None:
        return None, None
    larger = max(spec.rows, spec.cols)
    # Negative and large ids are ids like any other.
    ids = {"rare": 2 * larger, "dense": 3, "all_equal": 1}[spec.groups]
    offset = {"rare": 2**40, "dense": -2, "all_equal": 7}[spec.groups]
    return _draw(gen, 0, ids, spec.rows) + offset, _draw(gen, 0, ids, spec.cols) + offset


def _upstream(spec: Spec, gen: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    n_rows, n_cols = spec.rows, spec.cols
    g = torch.full((n_rows,), 0.5 / n_rows, dtype=torch.float64)
    h = torch.full((n_cols,), 0.5 / n_cols, dtype=torch.float64)
    if spec.upstream in ("weights", "some_zero"):
        g, h = _normal(gen, n_rows) / n_rows, _normal(gen, n_cols) / n_cols
    if spec.upstream == "some_zero":
        g[_uniform(gen, n_rows) < 0.5] = 0.0
        h[_uniform(gen, n_cols) < 0.5] = 0.0
    if spec.upstream in ("cols_only", "zero"):
        g = torch.zeros_like(g)
    if spec.upstream in ("rows_only", "zero"):
        h = torch.zeros_like(h)
    return g, h


def _lay_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "transposed":
        return x.t().contiguous().t()
    if layout == "sliced":
        # Neither stride is what a contiguous tensor has, and the data do not start at offset 0.
        wide = x.new_full((x.shape[0] + 1, 2 * x.shape[1] + 1), float("nan"))
        wide[1:, 1::2] = x
        return wide[1:, 1::2]
    return x
