"""Nothing of the size of the similarity matrix is ever allocated."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch

from slipform_kernels import engine, two_way_cross_entropy
from support.backends import every_backend, without_fused
from support.cases import Spec, build
from support.memory import LargestStorage

N = 2048


def forward_and_backward(backend: str, dtype: str = "float32") -> LargestStorage:
    largest = LargestStorage()
    case = build(
        Spec(
            *(N, N, 32, dtype, "random"),
            bias="vector",
            hard=2,
            margin="random",
            groups="rare",
        )
    ).leaves()
    with pytest.MonkeyPatch.context() as patch, largest:
        patch.setattr(engine, "statistics", largest.watched(engine.statistics))
        patch.setattr(engine, "gradients", largest.watched(engine.gradients))
        losses = two_way_cross_entropy(
            case.rows, case.cols, case.scale, **case.options(), backend=backend
        )
        torch.autograd.backward(losses, [case.g, case.h])
    return largest


@every_backend()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_largest_tensor_stays_within_the_workspace(backend, dtype, monkeypatch):
    workspace = 256 << 10
    monkeypatch.setattr(engine, "WORKSPACE_BYTES", workspace)
    monkeypatch.setattr(engine, "CACHE_BYTES", 0)
    largest = forward_and_backward(backend, dtype)
    features = 4 * N * 32
    assert largest.bytes <= max(workspace, features), largest.operator
    assert largest.bytes < N * N / 8


@every_backend("reference")
def test_the_recorder_sees_a_matrix(backend, monkeypatch):
    """With a workspace that holds it, every backend makes one: the test above could fail."""
    without_fused(monkeypatch)
    monkeypatch.setattr(engine, "WORKSPACE_BYTES", 1 << 30)
    assert forward_and_backward(backend).bytes >= 4 * N * N


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("R", "C"), [(1, 1), (7, 100_000), (100_000, 7), (30_001, 20_011)])
def test_blocks_cover_the_matrix_within_the_budget(R, C, device):
    """Each entry once; on a GPU whole tiles, but for the last of a row or column of blocks."""
    budget = engine.WORKSPACE_BYTES if device == "cpu" else engine.GPU_WORKSPACE_BYTES
    found = list(engine.blocks(R, C, torch.device(device), 4))
    at = (0, 0)
    for rows, cols in found:
        assert (rows.start, cols.start) == at
        r, c = rows.stop - rows.start, cols.stop - cols.start
        assert 0 < 4 * r * c <= budget
        if device == "cuda":
            assert rows.stop == R or r % 128 == 0
            assert cols.stop == C or c % 128 == 0
        at = (rows.stop, 0) if cols.stop == C else (rows.start, cols.stop)
    assert at == (R, 0)


PROGRAM = textwrap.dedent(
    """
    import resource, sys, torch
    from slipform_kernels import two_way_cross_entropy
    torch.set_num_threads(1)

    def step(n, backend):
        x, y = (torch.randn(n, 16).requires_grad_() for _ in range(2))
        rows, cols = two_way_cross_entropy(x, y, 1.0, backend=backend)
        (rows.mean() + cols.mean()).backward()

    step(64, sys.argv[1])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step(8192, sys.argv[1])
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
    """
)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss in KiB is Linux's")
@every_backend()
def test_peak_memory_of_a_process(backend):
    """8,192 x 8,192 in fp32 are 256 MiB, and eager keeps several; the workspace is 8 MiB."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, backend], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 100, "MiB"
