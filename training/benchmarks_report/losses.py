"""Tables of the loss benchmarks: time, memory, accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from slipform_training.markdown import markdown_table

from .peers import (
    COMPILED,
    EAGER,
    PASSES,
    bar_note,
    failing,
    is_ours,
    named,
    not_run_notes,
    ordered,
    peer_of,
)
from .results import Folder, Results, Row
from .words import NOTHING, listed, mebibytes, ratio, small, whole


def speed_summary(results: Results, folder: Folder, device: str) -> str:
    """Forward and backward at one width: our paths and open_clip's, times as fast as eager."""
    rows = _of_pass(results.rows, "both")
    if all(row.not_run for row in rows):
        return "".join(not_run_notes(rows))
    D = min(row.count("D") for row in rows)
    rows = [row for row in rows if row.count("D") == D]
    shown = [name for name in ordered(rows) if is_ours(name) or name == COMPILED]
    shown = [name for name in shown if any(not row.not_run for row in _of_peer(rows, name))]
    first = next((name for name in shown if is_ours(name)), None)
    table = [
        ["N", "features", *(f"{name}, times as fast" for name in shown)]
        + ([f"{first} / 4U"] if first else [])
    ]
    for (N, dtype), case in _cases(rows):
        cells = [_times_as_fast(_of_peer(case, name)).partition(" (")[0] for name in shown]
        bound = [_cell(_of_peer(case, first), "product_ratio", 0.25)] if first else []
        table.append([whole(N), dtype, *cells, *bound])
    return markdown_table(table, words=2)


def throughput(
    results: Results, folder: Folder, device: str, passes: Sequence[str] = PASSES
) -> str:
    """Every peer, times as fast as eager: a table for each width, dtype and pass measured."""
    failed = failing(folder, device, results.rows)
    blocks = []
    for D in sorted({row.count("D") for row in results.rows}):
        for dtype in _dtypes(results.rows):
            for pass_ in passes:
                rows = [
                    row
                    for row in _of_pass(results.rows, pass_)
                    if row.count("D") == D and row.text("dtype") == dtype
                ]
                if any(not row.not_run for row in rows):
                    title = "forward and backward" if pass_ == "both" else pass_
                    blocks.append(f"D = {D}, {dtype}, {title}:")
                    blocks.append(_by_size(rows, failed, _times_as_fast))
    if not blocks:
        asked = [row for pass_ in passes for row in _of_pass(results.rows, pass_)]
        return "".join(not_run_notes(asked))
    return "\n\n".join(blocks + _notes(results.rows, folder, device, "".join(blocks)))


def memory_summary(results: Results, folder: Folder, device: str) -> str:
    """Extra memory of our paths beside open_clip's, in MiB, and how many times less it is."""
    shown = [name for name in ordered(results.rows) if is_ours(name) or name == EAGER]
    ours = next((name for name in shown if is_ours(name)), None)
    table = [
        ["N", "features", *(f"{name}, MiB" for name in shown)]
        + ([f"{EAGER} / {ours}"] if ours else [])
    ]
    for (N, dtype), case in _cases(results.rows):
        cells = [_cell(_of_peer(case, name), "extra_bytes", write=mebibytes) for name in shown]
        times = [_times_less(case, ours)] if ours else []
        table.append([whole(N), dtype, *cells, *times])
    return markdown_table(table, words=2)


def memory(results: Results, folder: Folder, device: str) -> str:
    """Every peer's extra memory in MiB: a table for each width and dtype."""
    failed = failing(folder, device, results.rows)
    blocks = []
    for D in sorted({row.count("D") for row in results.rows}):
        for dtype in _dtypes(results.rows):
            rows = [
                row for row in results.rows if row.count("D") == D and row.text("dtype") == dtype
            ]
            if any(not row.not_run for row in rows):
                blocks.append(f"D = {D}, {dtype}, MiB:")
                blocks.append(
                    _by_size(rows, failed, lambda case: _cell(case, "extra_bytes", write=mebibytes))
                )
    return "\n\n".join(blocks + _notes(results.rows, folder, device, "".join(blocks)))


def accuracy(results: Results, folder: Folder, device: str) -> str:
    """Each peer and dtype: the largest errors over the problems, and what it can do."""
    table = [
        [
            *("peer", "features", "passes", "scale's gradient", "hard negatives", "margin"),
            *("N ≠ M", "ranks", "note", "error of the loss", "of the features' gradients"),
            "of the scale's",
        ]
    ]
    for name in ordered(results.rows):
        own = [row for row in _of_peer(results.rows, name) if not row.not_run]
        for dtype in _dtypes(own):
            case = [row for row in own if row.text("dtype") == dtype]
            passes = "yes" if all(row.values.get("passes") for row in case) else "**no**"
            able = [
                listed(row.said(key) for row in case)
                for key in ("scale_gradient", "hard_negatives", "margin", "unequal", "ranks")
            ]
            errors = [
                _largest(case, key)
                for key in ("loss_error", "feature_gradient_error", "scale_gradient_error")
            ]
            note = listed(row.said("note") for row in case)
            table.append([name, dtype, passes, *able, note, *errors])
    shown = [markdown_table(table, words=9)] if len(table) > 1 else []
    return "\n\n".join([*shown, *not_run_notes(results.rows)])


def _notes(rows: Sequence[Row], folder: Folder, device: str, shown: str) -> list[str]:
    notes = bar_note(folder, device, shown) + not_run_notes(rows)
    return [" ".join(notes)] if notes else []


def _by_size(
    rows: Sequence[Row], failed: dict[str, set[str]], cell: Callable[[list[Row]], str]
) -> str:
    """A row a peer, a column a size; peers without any figure are left to the notes."""
    sizes = sorted({row.count("N") for row in rows})
    table = [["peer", *(f"N = {whole(N)}" for N in sizes)]]
    for name in ordered(rows):
        own = _of_peer(rows, name)
        if all(row.not_run for row in own):
            continue
        label = named(name, {row.text("dtype") for row in own}, failed)
        table.append([label, *(cell([row for row in own if row.count("N") == N]) for N in sizes)])
    return markdown_table(table)


def _of_pass(rows: Iterable[Row], pass_: str) -> list[Row]:
    return [row for row in rows if row.values.get("pass", "both") == pass_]


def _of_peer(rows: Iterable[Row], peer: str | None) -> list[Row]:
    return [row for row in rows if peer_of(row) == peer]


def _dtypes(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row.text("dtype") for row in rows))


def _cases(rows: Sequence[Row]) -> list[tuple[tuple[int, str], list[Row]]]:
    """The rows by size and dtype, small sizes first."""
    dtypes = _dtypes(rows)
    cases: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        cases.setdefault((row.count("N"), row.text("dtype")), []).append(row)
    return sorted(cases.items(), key=lambda case: (case[0][0], dtypes.index(case[0][1])))


def _cell(
    rows: Sequence[Row], key: str, factor: float = 1.0, *, write: Callable[[float], str] = ratio
) -> str:
    """The figure of the one row that there may be; a dash where it was not run."""
    measured = [row for row in rows if not row.not_run]
    return write(factor * measured[0].number(key)) if measured else NOTHING


def _times_as_fast(rows: Sequence[Row]) -> str:
    """Eager's time over the row's, and the interquartile range; without eager the time in U."""
    measured = [row for row in rows if not row.not_run]
    if measured and "eager_ratio" not in measured[0]:
        return f"{_cell(rows, 'product_ratio')} U"
    text = _cell(rows, "eager_ratio")
    spread = "eager_ratio_iqr"
    known = bool(measured) and spread in measured[0]
    return f"{text} ({ratio(measured[0].number(spread))})" if known else text


def _times_less(case: Sequence[Row], ours: str | None) -> str:
    pair = [
        [row.number("extra_bytes") for row in _of_peer(case, name) if not row.not_run]
        for name in (EAGER, ours)
    ]
    if not all(pair) or pair[1][0] <= 0:
        return NOTHING
    return ratio(pair[0][0] / pair[1][0])


def _largest(rows: Sequence[Row], key: str) -> str:
    """The largest error; a dash where there is nothing to compare, or nothing finite."""
    if any(key in row and row.values[key] is None for row in rows):
        return NOTHING
    return small(max(row.number(key) for row in rows))
