"""Tables of the other benchmarks: a column a key of their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipform_training.markdown import markdown_table

from .peers import not_run_notes, peer_of
from .results import Results, Row
from .words import NOTHING, mebibytes, percent, ratio, whole

Writer = Callable[[Row, str], str]


def text(row: Row, key: str) -> str:
    """As it is."""
    return row.said(key)


def name(row: Row, key: str) -> str:
    """A peer's."""
    return peer_of(row)


def number(write: Callable[[float], str], *, may_lack: bool = False) -> Writer:
    """A number in words; with `may_lack`, a dash where the row has none."""

    def written(row: Row, key: str) -> str:
        if may_lack and row.values.get(key) is None:
            return NOTHING
        return write(row.number(key))

    return written


@dataclass(frozen=True)
class Column:
    """A column: its head, the key of the rows, how the value is written."""

    head: str
    key: str
    write: Writer


COUNT, RATIO, MEBIBYTES = (number(one) for one in (whole, ratio, mebibytes))
# Of a peer beside one that may not run at that size.
MAYBE_RATIO = number(ratio, may_lack=True)

ENCODER_STEP = (
    Column("loss", "peer", name),
    Column("model", "model", text),
    Column("precision", "dtype", text),
    Column("batch", "batch", COUNT),
    Column("whole step, times as fast", "eager_ratio", RATIO),
    Column("the loss's share of the step", "loss_share", number(percent, may_lack=True)),
)
SIGMOID = (
    Column("loss", "peer", name),
    Column("features", "dtype", text),
    Column("N", "N", COUNT),
    Column("times as fast as open_clip", "eager_ratio", MAYBE_RATIO),
    Column("time / 3U", "product_ratio", number(lambda value: ratio(value / 3))),
)
MINING = (
    Column("captions", "captions", COUNT),
    Column("mined", "mined_share", number(percent)),
    Column("times the speed of bare `nlp.pipe`", "bare_ratio", RATIO),
)
MACCO_HEAD = (
    Column("batch", "batch", COUNT),
    Column("masked words", "masked_words", COUNT),
    Column("peak memory, release, MiB", "release_extra_bytes", MEBIBYTES),
    Column("ours, MiB", "extra_bytes", MEBIBYTES),
    Column("release / ours", "memory_ratio", RATIO),
    Column("time of a step, release / ours", "time_ratio", MAYBE_RATIO),
)
LARGE_BATCH = (
    Column("features", "features", text),
    Column("N", "N", COUNT),
    Column("D", "D", COUNT),
    Column("the matrix in fp32, GiB", "matrix in fp32, GiB", COUNT),
    Column("extra memory, MiB", "extra memory, MiB", COUNT),
)
EVALUATION = (
    Column("pairs", "pairs", COUNT),
    Column("width", "width", COUNT),
    Column("peak memory, GiB", "peak GiB", RATIO),
)


def columns(results: Results, chosen: Sequence[Column]) -> str:
    """The rows that were run as a table, and which were not."""
    measured = [row for row in results.rows if not row.not_run]
    table = [
        [column.head for column in chosen],
        *([column.write(row, column.key) for column in chosen] for row in measured),
    ]
    words = sum(column.write in (text, name) for column in chosen)
    shown = [markdown_table(table, words=max(1, words))] if measured else []
    return "\n\n".join([*shown, *not_run_notes(results.rows)])
