"""The peers of the loss benchmarks: whose they are, what they compute, whether they are exact."""

from __future__ import annotations

from collections.abc import Sequence

from .results import Folder, Row

EAGER = "open_clip"
PASSES = ("forward", "backward", "both")

# Products of the size of the similarity matrix (U operations each). Without a stored matrix the
# similarities are made again in backward, where dX and dY take one product each. open_clip makes
# the matrix twice, once for either direction, and each has two products in backward.
_RECOMPUTED = {"forward": 1, "backward": 3, "both": 4}
_STORED = {"forward": 1, "backward": 2, "both": 3}
_OPEN_CLIP = {"forward": 2, "backward": 4, "both": 6}


def is_ours(peer: str) -> bool:
    """Whether it is a path of this package."""
    return peer.startswith("slipform")


def is_cached(peer: str) -> bool:
    """Whether it is a path of this package that stores the matrix."""
    return is_ours(peer) and "cache" in peer


def products(peer: str, pass_: str) -> int | None:
    """How many products the peer's way of computing the loss takes; None if not known."""
    if is_ours(peer):
        return (_STORED if is_cached(peer) else _RECOMPUTED)[pass_]
    return _OPEN_CLIP[pass_] if peer.startswith(EAGER) else None


def ordered(rows: Sequence[Row]) -> list[str]:
    """The peers: ours, then open_clip's, then the others, each kind as the file has them."""
    names = list(dict.fromkeys(row.text("peer") for row in rows))
    return sorted(names, key=lambda name: (not is_ours(name), not name.startswith(EAGER)))


def failing(folder: Folder, device: str) -> dict[str, set[str]]:
    """The peers that fail the accuracy bar, and in which dtypes; none where it was not measured."""
    found: dict[str, set[str]] = {}
    results = folder.get(f"loss_accuracy_{device}")
    for row in results.rows if results else ():
        if not row.not_run and row.values.get("passes") is False:
            found.setdefault(row.text("peer"), set()).add(row.text("dtype"))
    return found


def named(peer: str, dtypes: set[str], failed: dict[str, set[str]]) -> str:
    """The peer for a table over `dtypes`, with a dagger where it fails the accuracy bar."""
    return f"{peer} †" if failed.get(peer, set()) & dtypes else peer


def bar_note(folder: Folder, device: str, shown: str) -> list[str]:
    """What the dagger in the table `shown` means, as sentences."""
    if folder.get(f"loss_accuracy_{device}") is None:
        return ["The peers' accuracy bar: not yet measured."]
    return ["† fails the accuracy bar."] if "†" in shown else []


def not_run_notes(rows: Sequence[Row]) -> list[str]:
    """Which peers have no figures, at which sizes, and why."""
    reasons: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if row.not_run:
            sizes = reasons.setdefault((row.text("peer"), row.not_run), [])
            if row.values.get("N") is not None:
                sizes.append(row.count("N"))
    if not reasons:
        return []
    parts = []
    for (peer, reason), sizes in reasons.items():
        at = ", ".join(f"{size:,}" for size in sorted(set(sizes)))
        parts.append(f"{peer}{f' at N = {at}' if at else ''} ({reason})")
    return [f"Not run: {'; '.join(parts)}."]
