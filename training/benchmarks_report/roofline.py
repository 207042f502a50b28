"""Which fraction of the matmul rate a loss reaches, and what vendors' peak rates would allow."""

from __future__ import annotations

from collections.abc import Sequence

from slipform_training.markdown import markdown_table

from .peers import PASSES, ordered, peer_of, products
from .results import Folder, Results, Row
from .words import NOTHING, percent, whole


def fractions(results: Results, folder: Folder, device: str) -> str:
    """Which fraction of the matmul rate each path reaches: a table for each width and dtype.

    A cell is the time that the path's products would take at the rate of the features' dtype over
    the time that it took, and in brackets the same at the fp32 rate.
    """
    rows = [
        row
        for row in results.rows
        if not row.not_run and products(peer_of(row), _pass(row)) is not None
    ]
    blocks = []
    for D in sorted({row.count("D") for row in rows}):
        for dtype in dict.fromkeys(row.text("dtype") for row in rows):
            case = [row for row in rows if row.count("D") == D and row.text("dtype") == dtype]
            if case:
                blocks += [f"D = {D}, {dtype}:", _by_path(case)]
    return "\n\n".join(blocks)


def _by_path(rows: Sequence[Row]) -> str:
    sizes = sorted({row.count("N") for row in rows})
    table = [["path", "pass", "products", *(f"N = {whole(N)}" for N in sizes)]]
    for name in ordered(rows):
        for pass_ in PASSES:
            own = {
                row.count("N"): row for row in rows if peer_of(row) == name and _pass(row) == pass_
            }
            if own:
                cells = [_fraction(own[N], pass_) if N in own else NOTHING for N in sizes]
                table.append([name, pass_, f"{products(name, pass_)} U", *cells])
    return markdown_table(table, words=3)


def _pass(row: Row) -> str:
    return str(row.values.get("pass", "both"))


def _fraction(row: Row, pass_: str) -> str:
    count = products(peer_of(row), pass_)
    assert count is not None
    at_fp32 = percent(count / row.number("product_ratio"))
    if row.text("dtype") == "fp32":
        return at_fp32
    if row.values.get("product_dtype_ratio") is None:
        return f"{NOTHING} ({at_fp32})"
    return f"{percent(count / row.number('product_dtype_ratio'))} ({at_fp32})"


def gpu_estimate(results: Results) -> str:
    """What fraction of the peak matmul rate the other limits allow, of static_roofline.json.

    The products' time at the peak rate over the largest of the three least times. An estimate.
    """
    table = [["GPU", "D", "N", "forward, at most", "bound by", "backward, at most", "bound by"]]
    for row in results.rows:
        parts = []
        for pass_ in PASSES[:2]:
            bound = row.text(f"{pass_}: bound by")
            least = row.number(f"{pass_}: {bound}")
            parts += [percent(row.number(f"{pass_}: matmul") / least), bound]
        table.append([row.text("GPU"), str(row.count("D")), whole(row.count("N")), *parts])
    said = "Estimated from the vendors' peak rates; not measured."
    return f"{markdown_table(table)}\n\n{said}"


def bound_seconds(rows: Sequence[Row]) -> dict[int, float]:
    """Seconds of one product U at the fp32 rate of the run, by N: the median over the peers."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if not row.not_run and row.values.get("product_ratio"):
            unit = row.number("seconds") / row.number("product_ratio")
            found.setdefault(row.count("N"), []).append(unit)
    return {N: sorted(units)[len(units) // 2] for N, units in sorted(found.items())}
