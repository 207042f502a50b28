"""Tables of the other benchmarks: a column a key of their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipform_training.markdown import markdown_table

from .peers import not_run_notes
from .results import Results, Row
from .words import NOTHING, mebibytes, percent, ratio, whole

Writer = Callable[[Row, str], str]


def text(row: Row, key: str) -> str:
    """As it is."""
    return row.said(key)


def number(write: Callable[[float], str]) -> Writer:
    """A number in words; a dash where it is null."""

    def written(row: Row, key: str) -> str:
        return NOTHING if row.values.get(key, 0) is None else write(row.number(key))

    return written


@dataclass(frozen=True)
class Column:
    """A column: its head, the key of the rows, how the value is written."""

    head: str
    key: str
    write: Writer


COUNT, RATIO, MEBIBYTES, SHARE = (number(one) for one in (whole, ratio, mebibytes, percent))

ENCODER_STEP = (
    Column("model", "model", text),
    Column("batch", "batch", COUNT),
    Column("precision", "dtype", text),
    Column("loss", "peer", text),
    Column("whole step, times as fast", "eager_ratio", RATIO),
    Column("the loss's share of the step", "loss_share", SHARE),
)
SIGMOID = (
    Column("N", "N", COUNT),
    Column("features", "dtype", text),
    Column("loss", "peer", text),
    Column("times as fast as open_clip", "eager_ratio", RATIO),
    Column("time / 3U", "product_ratio", number(lambda value: ratio(value / 3))),
)
MINING = (
    Column("run", "run", text),
    Column("captions", "captions", COUNT),
    Column("mined", "mined %", number(lambda value: f"{value:.0f} %")),
    Column("times the speed of bare `nlp.pipe`", "times bare's speed", RATIO),
)
MACCO_HEAD = (
    Column("batch", "batch", COUNT),
    Column("masked words", "masked words", COUNT),
    Column("peak memory, release, MiB", "release, MiB", COUNT),
    Column("ours, MiB", "ours, MiB", COUNT),
    Column("release / ours", "release / ours, memory", RATIO),
    Column("time of a step, release / ours", "release / ours, time", RATIO),
)
LARGE_BATCH = (
    Column("N", "N", COUNT),
    Column("D", "D", COUNT),
    Column("features", "features", text),
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
    table = [[column.head for column in chosen]]
    for row in results.rows:
        if not row.not_run:
            table.append([column.write(row, column.key) for column in chosen])
    words = sum(1 for column in chosen if column.write is text)
    return "\n\n".join([markdown_table(table, words=max(1, words)), *not_run_notes(results.rows)])
