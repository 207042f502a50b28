"""Figures in words: the one way in which tables of benchmarks write numbers."""

from __future__ import annotations

from collections.abc import Iterable

NOTHING = "\N{EN DASH}"
MIB = 2**20


def whole(value: float) -> str:
    """Such as 8,192."""
    return f"{value:,.0f}"


def ratio(value: float) -> str:
    """Three figures at least, as many decimals as they need, two at most."""
    if abs(value) >= 100:
        return whole(value)
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def mebibytes(count: float) -> str:
    """Bytes in MiB, of those below 1 one figure."""
    return whole(count / MIB) if abs(count) >= MIB else f"{count / MIB:.1g}"


def percent(share: float) -> str:
    """A share of 1 in percent, to two figures below 100 %."""
    value = 100 * share
    if abs(value) >= 10:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if abs(value) >= 1 else f"{value:.1g} %"


def small(value: float) -> str:
    """An error, such as 3e-07."""
    return "0" if value == 0 else f"{value:.0e}"


def listed(parts: Iterable[str]) -> str:
    """With commas, each once, in order."""
    return ", ".join(dict.fromkeys(parts))
