"""Faults to plant in the kernels, and the module that has them all, one at a time switched on.

A fault is a text in a source of csrc, what replaces it, and what its discovery says. The sources
are copied, and each text becomes `planted_fault == n ?` the one, else the other; csrc itself knows
nothing of this.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

from native import build, kernels

# Sanitizers, and large negative numbers in what is not initialised.
VARIANT = build.Variant(
    "mutants", (*build.SANITIZED.flags, build.PATTERN.flags[-1]), build.SANITIZED.environment
)
FOLDER = build.CACHE / "mutants"
SWITCH = "extern int planted_fault;\n"


@dataclass(frozen=True)
class Mutant:
    """`text` is a statement if it ends with ; and an expression if not.

    It occurs once in the file, or once within a longer text that does.
    """

    name: str
    file: str
    text: str
    fault: str
    found: str  # a regular expression
    within: str = ""


RACE, OVERFLOW = "race: ", "AddressSanitizer: heap-buffer-overflow"
SYNC = "block_sync();"


def wrong(*names: str) -> str:
    return rf"({'|'.join(names)})\[.*: got"


BARRIERS = (
    Mutant("none before a stage is read", "similarity.cuh", SYNC, ";", RACE + "|in flight",
           within=f"{SYNC}\n    copy(slice"),
    Mutant("none before the epilogue reuses the stages", "similarity.cuh", SYNC, ";", RACE,
           within=f"  }}\n  {SYNC}\n}}"),
    Mutant("none before the warps' statistics are united", "statistics.cuh", SYNC, ";",
           f"{RACE}|uninitialised"),
    Mutant("none after the weights", "gradient.cuh", SYNC, ";", f"{RACE}|uninitialised",
           within=f"{SYNC}\n  SLIPFORM_UNROLL"),
    Mutant("none after the factors", "gradient.cuh", SYNC, ";", RACE,
           within=f"  }});\n  {SYNC}\n}}"),
    Mutant("none before the sums are read", "gradient.cuh", SYNC, ";", f"{RACE}|uninitialised",
           within=f"{SYNC}\n  write_sums"),
    Mutant("none after the positives are shared", "special.cuh", "block_any(found)", "found",
           f"{RACE}|uninitialised|divergent"),
    Mutant("divergent", "statistics.cuh", "write_partials(o, p, out);",
           f"write_partials(o, p, out); if (thread_id() % 64 < 32) {SYNC}", "divergent"),
)  # fmt: skip

PIPELINE = (
    Mutant("waits for a group too few", "similarity.cuh", "cp_async_wait<STAGES - 2>();",
           "cp_async_wait<STAGES - 1>();", "in flight"),
    Mutant("commits only where it copies", "similarity.cuh", "cp_async_commit();",
           "if (slice * SLICE < row_bytes) cp_async_commit();", "in flight"),
    Mutant("copies into the stage that is read", "similarity.cuh", "slice % STAGES",
           "(slice + 1) % STAGES", "race: |in flight|uninitialised",
           within="const uint32_t to = shared_base() + static_cast<uint32_t>(slice % STAGES)"),
    Mutant("too little shared memory", "fused_statistics.cu", "PIPELINE_BYTES",
           "PIPELINE_BYTES - 1024", "out of bounds: shared",
           within="THREADS, PIPELINE_BYTES"),
    Mutant("no swizzle", "similarity.cuh", "(chunk ^ (row / 2 & 3))", "chunk", "bank conflicts"),
)  # fmt: skip

DIVERGENCE = (
    Mutant("a shuffle in a branch", "gradient.cuh", "over_row<Layout>(part, Add())",
           "(lane_id() % 2 == 0 ? over_row<Layout>(part, Add()) : part)", "divergent"),
    Mutant("lanes past the end return early", "fused_statistics.cu",
           "write_statistics(o, place, special, values, out);",
           "if (place.row0() + Layout::row(0) >= o.rows) return; "
           "write_statistics(o, place, special, values, out);", "divergent|has returned"),
    Mutant("a warp past the end returns early", "elementwise_cuda.cu",
           "write_statistics(o, place, special, values, out);",
           "if (place.row0() + Layout::row(0) >= o.rows) return; "
           "write_statistics(o, place, special, values, out);", "divergent|has returned"),
)  # fmt: skip

BOUNDS = (
    Mutant("a row too many is copied", "similarity.cuh", "row < count", "row <= count", OVERFLOW),
    Mutant("a chunk too many is copied", "similarity.cuh", "at < row_bytes_", "at <= row_bytes_",
           f"{OVERFLOW}|{wrong('row rest')}"),
    Mutant("a partial vector is stored whole", "store.cuh", "count >= WIDTH", "count >= 1",
           f"{OVERFLOW}|written past the end",
           within="if (count >= WIDTH && aligned(to, sizeof words))"),
    Mutant("an entry too many is stored", "store.cuh", "n < count", "n <= count",
           f"{OVERFLOW}|written past the end|{wrong('dL')}",
           within="if (n < count) to[n] = {"),
    Mutant("a partial vector is loaded whole", "elementwise_cuda.cu", "count >= WIDTH",
           "count >= 1", rf"{OVERFLOW}|{wrong('row rest')}"),
    Mutant("a row too many is loaded", "elementwise_cuda.cu", "row < o.rows", "row <= o.rows",
           OVERFLOW),
    Mutant("a row too many is merged", "merge.cu", "n >= count", "n > count", OVERFLOW),
    Mutant("an entry too many is visited", "special.cuh", "index < (of_row ? o.rows : o.cols)",
           "index <= (of_row ? o.rows : o.cols)", OVERFLOW),
    Mutant("an index past the registers", "elementwise_cuda.cu", "j + 4", "j + 5",
           "runtime error: index|stack-buffer-overflow"),
    Mutant("a vector at any address", "elementwise_cuda.cu", "aligned(from, sizeof(Vec4))", "true",
           "misaligned address"),
    Mutant("a vector stored at any address", "store.cuh", "aligned(to, sizeof low)", "true",
           "misaligned"),
)  # fmt: skip

VALUES = (
    Mutant("every band of tiles begins at the first", "tile.cuh",
           "return {band * BAND + in_band % height, in_band / height};",
           "return {in_band % height, in_band / height};", wrong("row rest", "dL")),
    Mutant("the default stream", "merge.cu", "stream", "nullptr", "merge: launch: on stream 0",
           within="THREADS, 0, stream, part_max"),
    Mutant("accumulators not cleared", "similarity.cuh", "values.clear();", ";",
           wrong("row rest")),
    Mutant("wrong lanes of ldmatrix", "similarity.cuh", "lane % 16", "lane % 8",
           wrong("row rest")),
    Mutant("wrong order of a product's halves", "similarity.cuh", "lane / 8 % 2", "lane / 16",
           wrong("row rest")),
    Mutant("wrong mask of the shuffles", "tile.cuh",
           "over_lanes(value, 1, Layout::ROW_LANES, combine)",
           "over_lanes(value, 2, Layout::ROW_LANES, combine)", wrong("row rest")),
    Mutant("wrong columns of a thread", "tile.cuh", "j / 2 * 8", "j / 2 * 4",
           f"{wrong('row rest', 'col rest')}|race: |uninitialised"),
    Mutant("an index past the end counts as inside", "special.cuh",
           "at < smaller(tile, size - start)",
           "at <= smaller(tile, size - start)", f"{wrong('.* gradient', 'row rest')}|{OVERFLOW}"),
    Mutant("wrong words of a transposition", "store.cuh", "upper ? words.u[n] : words.u[n | bit]",
           "upper ? words.u[n | bit] : words.u[n]", wrong("dL"),
           within="const uint32_t sent = upper ? words.u[n] : words.u[n | bit];"),
    Mutant("one exponential whatever the range", "statistics.cuh", "largest - smallest < RANGE",
           "true", wrong("row rest", "col rest")),
    Mutant("one exponential whatever the rests", "gradient.cuh", "range.high - range.low < RANGE",
           "true", wrong("dL")),
    Mutant("the positive stays in the sum", "statistics.cuh",
           "marks.row_positive(j) ? 0.0f : by_row",
           "by_row", wrong("row rest")),
    Mutant("a hard column named twice counts once", "special.cuh",
           "similarity.at(i, j) += o.margin[at];",
           "similarity.at(i, j) = similarity.at(i, j);", wrong("row rest")),
    Mutant("a fixed maximum in the merge", "merge.cu", "fmaxf(largest, part_max[part * count + n])",
           "0.0f", wrong("row rest", "col rest")),
)  # fmt: skip

MUTANTS = (*BARRIERS, *PIPELINE, *DIVERGENCE, *BOUNDS, *VALUES)


def fault_of(mutant: Mutant) -> int:
    """The value of `planted_fault` that switches it on; 0 is none."""
    return MUTANTS.index(mutant) + 1


@functools.cache
def module() -> Path:
    """The emulated kernels with all faults."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for source in sorted(kernels.CSRC.iterdir()):
        if source.suffix in (".cuh", ".cu", ".h") or source.name in kernels.NAMES:
            _write(FOLDER / source.name, _with_faults(source))
    return kernels.module(VARIANT, FOLDER)


def _with_faults(source: Path) -> str:
    original = source.read_text()
    of_file = [mutant for mutant in MUTANTS if mutant.file == source.name]
    if not of_file:
        return original
    pieces: dict[int, list[Mutant]] = {}
    for mutant in of_file:
        pieces.setdefault(_position(original, mutant), []).append(mutant)
    text = original
    for start in sorted(pieces, reverse=True):
        end = start + len(pieces[start][0].text)
        text = text[:start] + _switched(pieces[start]) + text[end:]
    first = text.index("#include")
    return text[:first] + SWITCH + text[first:]


def _position(source: str, mutant: Mutant) -> int:
    around = mutant.within or mutant.text
    if source.count(around) != 1 or around.count(mutant.text) != 1:
        raise AssertionError(
            f"{mutant.name}: {around!r} occurs {source.count(around)} times in {mutant.file}, "
            "expected once"
        )
    return source.index(around) + around.index(mutant.text)


def _switched(mutants: list[Mutant]) -> str:
    text = mutants[0].text
    for mutant in mutants:
        assert mutant.text == mutants[0].text, mutant.name
        condition = f"planted_fault == {fault_of(mutant)}"
        if mutant.text.endswith(";"):
            text = f"{{ if ({condition}) {{ {mutant.fault} }} else {{ {text} }} }}"
        else:
            text = f"({condition} ? ({mutant.fault}) : ({text}))"
    return text


def _write(path: Path, text: str) -> None:
    """At once, since several processes may do the same."""
    if not path.exists() or path.read_text() != text:
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(text)
        unfinished.replace(path)
