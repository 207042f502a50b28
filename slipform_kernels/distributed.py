"""The primitive over the rows and columns of many ranks, each of which keeps its own rows.

Rank r computes its R_r rows against all C columns, once: U / W of the work, where gathering both
sides and computing two local products takes twice that. Its rows' log-sum-exps are then complete,
and its share in every column's goes to the rank that owns the column:

    col_rest_j = logsumexp over ranks of (logsumexp over their rows of L_ij)

Backward, every rank learns the merged log-sum-exp and the upstream gradient of every column, two
floats each, recomputes its R_r rows, keeps dX and sends its share of dY to the owners. Own columns
are computed while others' are on their way.

Bytes that a rank sends for C columns of D features of b bytes, n = C / W of them its own, with the
usual algorithms: forward (W - 1) n D b for the features and 4 (C - n) for the log-sum-exps;
backward 8 (W - 1) n, and 4 (C - n) D for dY, which is summed in fp32. The ring sends the features
again in backward, (W - 1) n D b, and 4 C D for dY.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import agreement, dispatch, engine, ops, reference
from .backends import torch as torch_backend
from .exchange import Columns, Exchange, Piece
from .problem import Problem, Weights

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@torch.compiler.disable
def losses(group: ProcessGroup, mode: str, *operands: Any) -> tuple[Tensor, Tensor]:
    """row_loss and col_loss of this rank's rows and columns; see `functional`.

    Takes the arguments of slipform::statistics after the process group and "gather" or "ring".
    """
    rows, cols, scale, bias, row_target, col_target, hard_cols, margin, *_ = operands
    with agreement.refusing(group, rows.device):
        ops.check_ranges(len(rows), len(cols), row_target, col_target, hard_cols)
        own = ops.problem_of(*operands[: ops.OPERAND_COUNT], precision=operands[-2])
        backend = _backend(own, operands[-1])
        needs = [
            torch.is_grad_enabled() and tensor is not None and tensor.requires_grad
            for tensor in (rows, cols, scale, bias, margin)
        ]
        terms = agreement.terms_of(own, mode, needs)
    exchange = agreement.agree(group, terms, rows.device)
    return _Losses.apply(exchange, backend, *operands[:-1])


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, exchange: Exchange, backend: ModuleType, *args: Any
    ) -> tuple[Tensor, Tensor]:
        *operands, precision = args
        row_target, col_target = operands[4:6]
        with ops.no_autocast(operands[0]):
            own = ops.problem_of(*operands, precision=precision)
            pieces = exchange.pieces(columns_of(own))
            row_rest, row_positive, own_rest, col_positive, _ = engine.statistics(
                own, backend, keep=False
            )
            partial = own_rest.new_empty(exchange.total)
            partial[exchange.of(exchange.rank)] = own_rest
            for columns, place in pieces:
                rest, partial[place] = engine.rests(against(own, columns), backend)
                row_rest = torch.logaddexp(row_rest, rest)
            col_rest = exchange.to_owners(partial).logsumexp(0)
        ctx.save_for_backward(*operands, row_rest, row_positive, col_rest, col_positive)
        ctx.exchange, ctx.precision, ctx.backend = exchange, precision, backend
        return (
            reference.positive_loss(row_rest, row_positive, row_target),
            reference.positive_loss(col_rest, col_positive, col_target),
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "two_way_cross_entropy: double backward is not supported over several ranks"
            )
        *operands, row_rest, row_positive, col_rest, col_positive = ctx.saved_tensors
        row_target, col_target = operands[4:6]
        row_pull, _ = ops.pulls(grads[0], row_rest, row_positive, row_target)
        col_pull, _ = ops.pulls(grads[1], col_rest, col_positive, col_target)
        needed = ops.needed(ctx.needs_input_grad[2:])
        with ops.no_autocast(operands[0]):
            own = ops.problem_of(*operands, precision=ctx.precision)
            results = _gradients(
                ctx.exchange, own, ctx.backend, needed, (row_rest, row_pull), (col_rest, col_pull)
            )
        ctx.exchange.forget()
        return (None, None, *ops.in_place_of_operands(needed, results)[:-1])


def _gradients(
    exchange: Exchange,
    own: Problem,
    backend: ModuleType,
    needed: list[bool],
    of_rows: tuple[Tensor, Tensor],
    of_cols: tuple[Tensor, Tensor],
) -> tuple[Tensor, ...]:
    """dX, dY, dscale, dbias, dmargin; `of_rows` and `of_cols` are (rest, pull) of own ones."""
    pieces = exchange.pieces(columns_of(own))
    rest, pull = exchange.everyones(torch.stack(of_cols, 1)).unbind(1)
    _, unit = engine.in_units(own, _weights(own, of_rows, (rest, pull), 1))
    unit = None if unit is None else exchange.largest(unit)
    no_cache = rest.new_empty((0,))

    def add(sums: engine.Sums, problem: Problem, place: slice) -> None:
        if problem is own:
            weights = _weights(own, of_rows, of_cols, 1)
        else:
            weights = _weights(problem, of_rows, (rest[place], pull[place]), 0)
        engine.add_gradients(sums, problem, weights.over(unit), no_cache, backend)

    return accumulate(exchange, own, pieces, needed, add).results(unit)


def accumulate(
    exchange: Exchange,
    own: Problem,
    pieces: Iterable[Piece],
    needed: list[bool],
    add: Callable[[engine.Sums, Problem, slice], None],
) -> engine.Sums:
    """Sums over the own rows against all columns; the columns' are those over all ranks.

    `add(sums, problem, place)` adds what belongs to the matrix of one problem: `own`, or own rows
    against the columns of a piece, which lie at `place` among all.
    """
    sums = engine.Sums(own, needed)
    add(sums, own, exchange.of(exchange.rank))
    col_sums = bias_sums = None
    if sums.need["cols"]:
        col_sums = exchange.summed_at_owners(sums.cols.tensor())
    if sums.need["bias"] and _biased(own):
        bias_sums = exchange.summed_at_owners(sums.bias)
    for columns, place in pieces:
        problem = against(own, columns)
        part = engine.Sums(problem, needed, rows=sums.rows)
        if col_sums is not None:
            part.cols.write_to(col_sums.part(place))
        add(part, problem, place)
        sums.scale += part.scale
        if col_sums is not None:
            col_sums.send(place)
        if bias_sums is not None:
            bias_sums.part(place).copy_(part.bias)
            bias_sums.send(place)
        elif sums.need["bias"]:
            sums.bias[0] += part.bias.sum()
    if col_sums is not None:
        sums.cols.write_to(col_sums.result())
    if bias_sums is not None:
        sums.bias = bias_sums.result()
    return sums


def _weights(
    problem: Problem, of_rows: tuple[Tensor, Tensor], of_cols: tuple[Tensor, Tensor], positives: int
) -> Weights:
    """`positives`: 1 where they are in the problem, 0 where they are among other columns."""
    (row_rest, row_pull), (col_rest, col_pull) = of_rows, of_cols
    return engine.weights(
        problem, row_rest, row_pull, -positives * row_pull, col_rest, col_pull,
        -positives * col_pull,
    )  # fmt: skip


def _biased(problem: Problem) -> bool:
    """Whether every column has a bias of its own."""
    return problem.bias is not None and problem.bias.ndim == 1


def columns_of(own: Problem) -> Columns:
    """What other ranks need of the own columns."""
    columns = {"cols": own.cols}
    if _biased(own):
        assert own.bias is not None
        columns["bias"] = own.bias.detach()
    if own.col_group is not None:
        columns["col_group"] = own.col_group
    return columns


def against(own: Problem, columns: Columns) -> Problem:
    """Own rows against other ranks' columns: no positives and no hard columns among them."""
    count = len(columns["cols"])
    no_row = torch.full_like(own.row_target, -1)
    no_col = own.row_target.new_full((count,), -1)
    return replace(
        own,
        cols=columns["cols"],
        bias=columns.get("bias", own.bias),
        col_group=columns.get("col_group"),
        row_target=no_row,
        col_target=no_col,
        hard_cols=None,
        margin=None,
        diagonal=False,
    )


def _backend(own: Problem, name: str) -> ModuleType:
    """As in one process; fp64, which serves checks, is computed in blocks of torch operations."""
    dispatch.check_values(own.rows)
    if own.rows.dtype == torch.float64:
        return torch_backend
    if name == "reference" or (name == "auto" and dispatch.override() == "reference"):
        source = "backend" if name == "reference" else dispatch.OVERRIDE
        raise RuntimeError(
            f'{source}: got "reference", which computes in one process; expected another one, or '
            "none, where group is given"
        )
    return dispatch.choose(own, name)
