"""The peers of the loss benchmarks: whose they are, what they compute, whether they are exact."""

from __future__ import annotations

from collections.abc import Sequence

from .results import Folder, Row

EAGER, COMPILED = "open_clip", "open_clip, compiled"
# As the benchmarks call them on the command line, and for the reader.
NAMES = {
    "native": "slipform native",
    "native_cached": "slipform native, cached",
    "torch": "slipform torch",
    "triton": "slipform triton",
    "open_clip_compiled": COMPILED,
    "checkpointed": "checkpointed chunks",
    "inf_cl": "Inf-CL",
    "liger": "Liger-Kernel",
    "cut_cross_entropy": "cut-cross-entropy",
    "siglip_kernel": "siglip-kernel",
    "open_clip_accum_freq": "open_clip, accum_freq",
    "grad_cache": "GradCache",
    "slipform_gradient_cache": "slipform GradientCache",
}
PASSES = ("forward", "backward", "both")

# Products of the size of the similarity matrix (U operations each). Without a stored matrix the
# similarities are made again in backward, where dX and dY take one product each. open_clip makes
# the matrix twice, once for either direction, and each has two products in backward.
_RECOMPUTED = {"forward": 1, "backward": 3, "both": 4}
_STORED = {"forward": 1, "backward": 2, "both": 3}
_OPEN_CLIP = {"forward": 2, "backward": 4, "both": 6}


def peer_of(row: Row) -> str:
    """The row's peer, by the name for the reader."""
    name = row.text("peer")
    return NAMES.get(name, name)


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
    names = list(dict.fromkeys(peer_of(row) for row in rows))
    return sorted(names, key=lambda name: (not is_ours(name), not name.startswith(EAGER)))


def failing(folder: Folder, device: str, rows: Sequence[Row] = ()) -> dict[str, set[str]]:
    """The peers that fail the accuracy bar, and in which dtypes; none where it was not measured.

    rows: of another benchmark, which may say it too.
    """
    found: dict[str, set[str]] = {}
    results = folder.get(f"loss_accuracy_{device}")
    for row in [*(results.rows if results else ()), *rows]:
        if row.values.get("passes") is False:
            found.setdefault(peer_of(row), set()).add(row.text("dtype"))
    return found


def named(peer: str, dtypes: set[str], failed: dict[str, set[str]]) -> str:
    """The peer for a table over `dtypes`, with a dagger where it fails the accuracy bar."""
    return f"{peer} †" if failed.get(peer, set()) & dtypes else peer


def bar_note(folder: Folder, device: str, shown: str) -> list[str]:
    """What the dagger in the table `shown` means, as sentences."""
    if "†" in shown:
        return ["† fails the accuracy bar."]
    missing = folder.get(f"loss_accuracy_{device}") is None
    return ["The peers' accuracy bar: not yet measured."] if missing else []


def not_run_notes(rows: Sequence[Row]) -> list[str]:
    """Which rows have no figures, at which sizes, and why, as sentences."""
    reasons: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if row.not_run:
            name = peer_of(row) if "peer" in row else ""
            sizes = reasons.setdefault((name, row.not_run), [])
            if row.values.get("N") is not None:
                sizes.append(row.count("N"))
    parts = []
    for (name, reason), sizes in reasons.items():
        at = ", ".join(f"{size:,}" for size in sorted(set(sizes)))
        what = f"{name}{f' at N = {at}' if at else ''}"
        parts.append(f"{what} ({reason})" if what else reason)
    return [f"Not run: {'; '.join(parts)}."] if parts else []
