"""two_way_cross_entropy: the public function of the primitive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from . import agreement, direct, dispatch, distributed, ops, reduction, reference
from .exchange import MODES
from .validation import validate

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def two_way_cross_entropy(
    rows: Tensor,
    cols: Tensor,
    scale: Tensor | float,
    *,
    bias: Tensor | float | None = None,
    row_target: Tensor | None = None,
    col_target: Tensor | None = None,
    hard_cols: Tensor | None = None,
    margin: Tensor | None = None,
    row_group: Tensor | None = None,
    col_group: Tensor | None = None,
    precision: str | None = None,
    backend: str | None = None,
    group: ProcessGroup | None = None,
    exchange: str = "gather",
) -> tuple[Tensor, Tensor]:
    r"""Cross-entropy of both directions of a similarity matrix that is never stored.

    With the logits

        L_ij = scale * (<rows_i, cols_j> + sum_k margin_ik [hard_cols_ik = j]) + bias_j

    it returns, unreduced and in fp32 (fp64 for fp64 inputs),

        row_loss_i = logsumexp_j L_ij - L_{i, row_target_i}
        col_loss_j = logsumexp_i L_ij - L_{col_target_j, j}

    Both are InfoNCE (van den Oord et al. 2018, arXiv 1807.03748, equation 4) in CLIP's two
    directions (Radford et al. 2021, figure 3); the margin on an anchor's own hard negatives is the
    Cement loss (arXiv 2604.13313, section 3). Gradients reach `rows`, `cols`, `scale`, `bias` and
    `margin`. Extra memory is O(R + C) and a fixed workspace, on a CPU also as many similarities as
    SLIPFORM_MATRIX_BYTES allows (4 MiB by default); see README, "The method".

    Args:
        rows: [R, D], fp32, bf16, fp16, or fp64 (served by the reference backend). They need not be
            normalised nor contiguous.
        cols: [C, D], dtype and device of `rows`.
        scale: inverse temperature, a float or a tensor of shape [] or [1].
        bias: a float, a tensor [] or [1], or one value a column [C]. -inf takes a column out.
        row_target: int64 [R], the column of the row's positive, or -1: the row is no anchor. It
            still counts in the columns' sums. Default, where R = C: the diagonal.
        col_target: int64 [C], the row of the column's positive, or -1. Default as above.
        hard_cols: int64 [R, K], the row's own hard negatives among the columns, padded with -1.
        margin: [R, K], in cosine units, added to the similarities at `hard_cols`. Default: 0.
        row_group, col_group: int64 [R] and [C]. A pair with equal ids shows the same content and is
            left out of both denominators, unless it is the anchor's own positive.
        precision: None, "ieee" or "tf32". "tf32" lets fp32 products on a GPU use TF32. None is
            "ieee", except that under autocast `rows` and `cols` are first cast to its dtype, as
            matmul would; sums and losses are fp32 always.
        backend: None (chosen by device, dtype and what is built; the environment variable
            SLIPFORM_BACKEND overrides), "triton", "native", "torch" or "reference".
        group: a torch.distributed process group. The matrix is then that of all ranks' rows against
            all ranks' columns, R and C may differ between ranks, and indices count within the rank:
            positives and hard negatives are the rank's own, all other columns are easy negatives.
            Losses are of the rank's own rows and columns. Gradients are those of the sum over
            ranks; those of `scale` and of a scalar `bias` are the rank's share in it. Every rank
            must call, forward and backward. See distributed.py for bytes and work.
        exchange: "gather": every rank holds all columns during the loss; "ring": those of three
            ranks at a time, and the features are sent once more.

    Returns:
        row_loss [R] and col_loss [C]; 0 where the target is -1.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: shapes, devices or combinations that do not fit; an index out of range (checked
            for CPU tensors only: on a GPU it would cost a synchronisation).
        RuntimeError: a named backend that is not available, with the reason; double backward;
            another rank refused its arguments, died or did not answer in the group's timeout.
    """
    operands = _operands(
        rows, cols, scale, bias, row_target, col_target, hard_cols, margin, row_group, col_group,
        precision, backend, group, exchange,
    )  # fmt: skip
    if group is not None and group.size() > 1:
        return distributed.losses(group, exchange, *operands)
    return _losses(operands, backend)


def mean_two_way_cross_entropy(
    rows: Tensor,
    cols: Tensor,
    scale: Tensor | float,
    *,
    bias: Tensor | float | None = None,
    row_target: Tensor | None = None,
    col_target: Tensor | None = None,
    hard_cols: Tensor | None = None,
    margin: Tensor | None = None,
    row_group: Tensor | None = None,
    col_group: Tensor | None = None,
    precision: str | None = None,
    backend: str | None = None,
) -> Tensor:
    """`reduction.mean` of this process's `two_way_cross_entropy`, with the same arguments."""
    operands = _operands(
        rows, cols, scale, bias, row_target, col_target, hard_cols, margin, row_group, col_group,
        precision, backend, None, MODES[0],
    )  # fmt: skip
    if not dispatch.wants_reference(operands[0], backend) and direct.applies(operands[0]):
        return direct.mean(*operands)
    row_loss, col_loss = _losses(operands, backend)
    return reduction.mean(row_loss, row_target, col_loss, col_target)


def _operands(
    rows: Tensor,
    cols: Tensor,
    scale: Tensor | float,
    bias: Tensor | float | None,
    row_target: Tensor | None,
    col_target: Tensor | None,
    hard_cols: Tensor | None,
    margin: Tensor | None,
    row_group: Tensor | None,
    col_group: Tensor | None,
    precision: str | None,
    backend: str | None,
    group: ProcessGroup | None,
    exchange: str,
) -> tuple[Any, ...]:
    """The arguments of slipform::statistics, checked."""
    with agreement.refusing(group, agreement.device_of(rows, cols)):
        if exchange not in MODES:
            raise ValueError(f"exchange: got {exchange!r}; expected one of {', '.join(MODES)}")
        args = validate(
            rows, cols, scale, bias, row_target, col_target, hard_cols, margin, row_group,
            col_group, precision, backend,
        )  # fmt: skip
    return (
        args.rows, args.cols, args.scale, args.bias, row_target, col_target, hard_cols,
        args.margin, row_group, col_group, args.precision, backend or "auto",
    )  # fmt: skip


def _losses(operands: tuple[Any, ...], backend: str | None) -> tuple[Tensor, Tensor]:
    """row_loss and col_loss in one process."""
    rows, cols, scale, bias, row_target, col_target, hard_cols, margin, *groups = operands[:-2]
    if dispatch.wants_reference(rows, backend):
        ops.check_ranges(len(rows), len(cols), row_target, col_target, hard_cols)
        row_target, col_target = ops.targets_or_diagonal(rows, row_target, col_target)
        return reference.two_way_cross_entropy(
            rows,
            cols,
            scale,
            bias=bias,
            row_target=row_target,
            col_target=col_target,
            hard_cols=hard_cols,
            margin=margin,
            row_group=groups[0],
            col_group=groups[1],
        )
    if direct.applies(rows):
        return direct.losses(*operands)
    row_rest, row_positive, col_rest, col_positive = ops.statistics(*operands)
    row_loss = reference.positive_loss(row_rest, row_positive, row_target)
    return row_loss, reference.positive_loss(col_rest, col_positive, col_target)
