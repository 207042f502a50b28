"""A folder of results as the benchmarks write them, of figures that are easy to reckon with.

One product of N x N x D takes N^2 D / 1e12 s; times are multiples of it, the same at every N.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MACHINE = {
    "date": "2026-02-03",
    "cpu": "Some CPU",
    "threads": 2,
    "torch": "2.9.0",
    "slipform_kernels": "0.1.0",
    "commit": "abc1234",
}
SIZES = (256, 1024, 4096, 16384)
# peer: products in forward and backward, bytes an entry of the matrix, whether it is exact
COSTS = {
    "open_clip": (12.0, 16.0, True),
    "open_clip, compiled": (9.0, 12.0, True),
    "slipform native": (5.0, 0.25, True),
    "slipform native, cached": (4.0, 4.25, True),
    "slipform torch": (7.0, 0.5, True),
    "checkpointed chunks": (10.0, 1.0, True),
    "Liger-Kernel": (8.0, 2.0, False),
    "cut-cross-entropy": (8.5, 0.75, False),
    "GradCache-style": (14.0, 3.0, True),
}
EAGER_LIMIT = 4096
REASON = "its matrices would not fit"


def unit_seconds(N: int, D: int) -> float:
    return N * N * D / 1e12


def throughput(D: int = 512) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for dtype in ("fp32", "bf16"):
        for N in SIZES:
            for peer, (cost, _, _) in COSTS.items():
                for pass_, part in (("forward", 0.25), ("backward", 0.75), ("both", 1.0)):
                    row = {"peer": peer, "pass": pass_, "N": N, "D": D, "dtype": dtype}
                    if peer == "open_clip" and N > EAGER_LIMIT:
                        rows.append({**row, "not_run": REASON})
                        continue
                    half = 0.5 if dtype == "bf16" else 1.0
                    products = half * part * cost
                    eager = COSTS["open_clip"][0] / cost
                    rows.append(
                        {
                            **row,
                            "seconds": products * unit_seconds(N, D),
                            "eager_ratio": eager,
                            "eager_ratio_iqr": 0.1 * eager,
                            "product_ratio": products,
                            "product_dtype_ratio": products / half,
                            "rounds": 9,
                        }
                    )
            inf_cl = {"peer": "inf-cl", "pass": "both", "N": N, "D": D, "dtype": dtype}
            rows.append({**inf_cl, "not_run": "needs a GPU"})
    return rows


def memory(D: int = 512) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for dtype in ("fp32", "bf16"):
        for N in SIZES:
            for peer, (_, size, _) in COSTS.items():
                row = {"peer": peer, "N": N, "D": D, "dtype": dtype}
                if peer == "open_clip" and N > EAGER_LIMIT:
                    rows.append({**row, "not_run": REASON})
                else:
                    ratio = COSTS["open_clip"][1] / size
                    rows.append({**row, "extra_bytes": int(size * N * N), "eager_ratio": ratio})
    return rows


def accuracy() -> list[dict[str, Any]]:
    return [
        {
            "peer": peer,
            "dtype": dtype,
            "problem": problem,
            "loss_error": error,
            "feature_gradient_error": 2 * error,
            "scale_gradient_error": 3 * error if exact else None,
            "scale_gradient": "right" if exact else "undifferentiable",
            "passes": exact,
            "hard_negatives": peer.startswith("slipform"),
            "margin": peer.startswith("slipform"),
            "unequal": exact,
            "ranks": peer != "Liger-Kernel",
            "note": "" if exact else "no gradient of the scale",
        }
        for peer, (_, _, exact) in COSTS.items()
        for dtype in ("fp32", "bf16")
        for problem, error in (("plain", 1e-7), ("separated", 4e-7))
    ]


def write(folder: Path, stem: str, rows: list[dict[str, Any]], **machine: Any) -> Path:
    path = folder / f"{stem}.json"
    path.write_text(json.dumps({"machine": {**MACHINE, **machine}, "rows": rows}))
    return path


def write_all(folder: Path) -> None:
    """The results of the three benchmarks of losses, on a CPU."""
    write(folder, "loss_throughput_cpu", throughput())
    write(folder, "loss_memory_cpu", memory())
    write(folder, "loss_accuracy_cpu", accuracy())
