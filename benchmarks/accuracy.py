"""How exact is a peer, and what can it do? Found by calling it, on problems of a few dozen pairs.

    python -m benchmarks.accuracy PEER [--device cpu]

prints the rows of one peer as json. With TRITON_INTERPRET=1 the kernels of a Triton peer run in
Triton's interpreter, without a GPU.

The bar is the project's own: against fp64 on the same (rounded) inputs, of unit norm, at a scale of
100, the loss within 1e-5, and the gradients in relative norm within 1e-5 in fp32 (1e-4 where the
positive lies 20 to 40 nats above the rest, and the loss with it), 4e-3 in bf16 and fp16 with 1e-3
for the scale's.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import ranks
from benchmarks.options import DTYPES
from benchmarks.peers import LOSSES
from benchmarks.peers.base import Loss, Peer
from benchmarks.steps import SCALE
from slipform_kernels import two_way_cross_entropy

N, D, K = 48, 512, 2
PROBLEMS = ("random", "separated")
# Of the loss, the features' gradients and the scale's.
BARS = {
    "fp32": {"random": (1e-5, 1e-5, 1e-5), "separated": (1e-4, 1e-4, 1e-4)},
    "bf16": dict.fromkeys(PROBLEMS, (1e-5, 4e-3, 1e-3)),
    "fp16": dict.fromkeys(PROBLEMS, (1e-5, 4e-3, 1e-3)),
}
# Beyond it a result is another one, not a rounded one.
WRONG = 0.05
UNTESTED = "untested"


@dataclass
class Outcome:
    """Of a loss and its gradients, in fp64; a gradient that does not arrive is None."""

    loss: Tensor
    images: Tensor | None
    texts: Tensor | None
    scale: Tensor | None


def problem(name: str, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Images and texts [N, D] of unit norm: "random" ones, or "separated" pairs.

    A separated image's own text lies 20 to 40 nats above the log-sum-exp of the others.
    """
    generator = torch.Generator().manual_seed(0)
    images, others = F.normalize(
        torch.randn(2, N, D, generator=generator, dtype=torch.float64), dim=2
    )
    texts = others
    if name == "separated":
        nats = torch.linspace(20, 40, N, dtype=torch.float64)
        for _ in range(10):  # the others move with their own cosines; this converges fast
            logits = SCALE * images @ texts.T
            rest = logits.masked_fill(torch.eye(N, dtype=torch.bool), -torch.inf).logsumexp(1)
            texts = _at_cosine((nats + rest) / SCALE, images, others)
    return [x.to(device, dtype) for x in (images, texts)]


def _at_cosine(cosine: Tensor, images: Tensor, others: Tensor) -> Tensor:
    """Unit vectors [N, D] at the cosine [N] to each image, on the side of `others`."""
    across = others - (others * images).sum(1, keepdim=True) * images
    part = cosine[:, None]
    return part * images + (1 - part**2).sqrt() * F.normalize(across, dim=1)


def outcome(loss: Loss, images: Tensor, texts: Tensor, **layout: Tensor) -> Outcome:
    """Value and gradients at a scale of SCALE."""
    leaves = [x.detach().clone().requires_grad_() for x in (images, texts)]
    kind = torch.float64 if images.dtype == torch.float64 else torch.float32
    scale = torch.tensor(SCALE, dtype=kind, device=images.device, requires_grad=True)
    value = loss(*leaves, scale, **layout)
    value.backward()
    found = [None if x.grad is None else x.grad.double() for x in (*leaves, scale)]
    return Outcome(value.detach().double(), *found)


def reference(
    images: Tensor, texts: Tensor, scale: Tensor, *, col_target: Tensor | None = None,
    **layout: Tensor,
) -> Tensor:  # fmt: skip
    """The mean of both directions, by the materialised definition, in fp64."""
    diagonal = torch.arange(len(images), device=images.device)
    col_target = diagonal if col_target is None else col_target
    of_images, of_texts = two_way_cross_entropy(
        images, texts, scale, row_target=diagonal, col_target=col_target, **layout
    )
    return (of_images.mean() + of_texts[col_target >= 0].mean()) / 2


def error(got: Tensor | None, want: Tensor | None) -> float:
    """|got - want| / |want|, by norms; infinite for one that is missing or not finite."""
    assert want is not None
    if got is None:
        return math.inf
    found = float((got - want).norm() / want.norm())
    return found if math.isfinite(found) else math.inf


def examine(peer: Peer, device: torch.device, *, note: str = "") -> list[dict[str, Any]]:
    """The rows of a peer that is available there: each dtype and problem, and what it can do."""
    loss = peer.build(0, 1)
    abilities = {name: probe(loss, device) for name, probe in PROBES.items()}
    # The ranks are processes of the CPU, without an interpreter.
    runs = not peer.triton and peer.unavailable(torch.device("cpu")) is None
    abilities["ranks"] = ranks.agrees(peer) if runs else UNTESTED
    rows = []
    for dtype in ("fp32", "bf16", *(("fp16",) if device.type == "cuda" else ())):
        for name in PROBLEMS:
            row: dict[str, Any] = {"peer": peer.name, "dtype": dtype, "problem": name}
            try:
                row |= compare(loss, name, dtype, device)
            except Exception as failure:
                row |= {"passes": None, "not_run": f"failed: {one_line(failure)}"}
            rows.append(row | abilities | {"note": note})
    return rows


def compare(loss: Loss, name: str, dtype: str, device: torch.device) -> dict[str, Any]:
    """Errors of the loss on one problem, and whether they are within the bar."""
    images, texts = problem(name, DTYPES[dtype], device)
    got = outcome(loss, images, texts)
    want = outcome(reference, images.double(), texts.double())
    features = max(error(got.images, want.images), error(got.texts, want.texts))
    errors = error(got.loss, want.loss), features, error(got.scale, want.scale)
    bars = BARS[dtype][name]
    scale = "right" if errors[2] <= bars[2] else "imprecise" if errors[2] <= WRONG else "wrong"
    row: dict[str, Any] = {
        "loss_error": errors[0],
        "feature_gradient_error": errors[1],
        "scale_gradient_error": errors[2],
        "scale_gradient": "undifferentiable" if got.scale is None else scale,
        "passes": all(found <= bar for found, bar in zip(errors, bars, strict=True)),
    }
    # json has no infinity.
    return {key: None if value == math.inf else value for key, value in row.items()}


def one_line(failure: BaseException) -> str:
    """Name and first line of an exception."""
    text = (str(failure).strip().splitlines() or [""])[0]
    return f"{type(failure).__name__}: {text}"[:200].rstrip(": ")


def _agrees(loss: Loss, images: Tensor, texts: Tensor, **layout: Tensor) -> str:
    """Whether value and gradients are those of the reference, however rounded: "yes" or "no"."""
    try:
        got = outcome(loss, images, texts, **layout)
    except Exception:
        return "no"
    want = outcome(reference, images.double(), texts.double(), **layout)
    pairs = ((got.loss, want.loss), (got.images, want.images), (got.texts, want.texts))
    return "yes" if all(error(*pair) < WRONG for pair in pairs) else "no"


def _hard(device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """N images, N texts and K hard ones of each image, the targets, and the hard ones' columns."""
    images, texts = problem("random", torch.float32, device)
    generator = torch.Generator().manual_seed(1)
    extra = F.normalize(torch.randn(N * K, D, generator=generator), dim=1).to(device)
    place = torch.arange(N + N * K, device=device)
    return images, torch.cat([texts, extra]), place.where(place < N, -1), place[N:].view(N, K)


def hard_negatives(loss: Loss, device: torch.device) -> str:
    """More texts than images: the further ones are nobody's positives."""
    images, texts, target, _ = _hard(device)
    return _agrees(loss, images, texts, col_target=target)


def margin(loss: Loss, device: torch.device) -> str:
    """A margin on each image's own hard texts."""
    images, texts, target, place = _hard(device)
    margins = torch.linspace(0, 0.1, N * K, device=device).view(N, K)
    return _agrees(loss, images, texts, col_target=target, hard_cols=place, margin=margins)


def unequal(loss: Loss, device: torch.device) -> str:
    """More texts than images, the further ones second texts of the first images."""
    images, texts, _, _ = _hard(device)
    return _agrees(loss, images, texts[: N + 7], col_target=torch.arange(N + 7, device=device) % N)


PROBES: dict[str, Callable[[Loss, torch.device], str]] = {
    "hard_negatives": hard_negatives,
    "margin": margin,
    "unequal": unequal,
}


def rows_of(peer: Peer, device: torch.device) -> list[dict[str, Any]]:
    """`examine` where the peer is available, or in Triton's interpreter; else why it is not run."""
    reason = peer.unavailable(device)
    if reason is None:
        return examine(peer, device)
    untested = dict.fromkeys((*PROBES, "ranks"), UNTESTED)
    rows: list[dict[str, Any]] = [
        {"peer": peer.name, "passes": None, **untested, "not_run": reason}
    ]
    if not peer.triton or peer.version() is None:
        return rows
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.accuracy", peer.name],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if run.returncode:
        last = (run.stderr.strip().splitlines() or [""])[-1][:200]
        rows[0]["note"] = f"Triton's interpreter: {last}"
        return rows
    found: list[dict[str, Any]] = json.loads(run.stdout.splitlines()[-1])
    if all("not_run" in row for row in found):
        rows[0]["note"] = f"Triton's interpreter: {found[0]['not_run']}"
        return rows
    return found


@functools.cache
def verdict(peer: Peer, dtype: str, device: torch.device) -> bool:
    """Whether an available peer passes the bar on every problem in the dtype."""
    loss = peer.build(0, 1)
    try:
        return all(compare(loss, name, dtype, device)["passes"] for name in PROBLEMS)
    except Exception:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peer", choices=LOSSES)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(1)
    peer, device = LOSSES[args.peer], torch.device(args.device)
    reason = peer.unavailable(device)
    if reason is not None:
        raise SystemExit(reason)
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    note = "in Triton's interpreter, on a CPU" if interpreted else ""
    print(json.dumps(examine(peer, device, note=note)))


if __name__ == "__main__":
    main()
