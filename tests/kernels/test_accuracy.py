"""Every backend meets the accuracy bar against fp64, over all options, for every gradient."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from support.accuracy import check, check_bar
from support.backends import every_backend, native_missing, run
from support.cases import HALF, Spec, build
from support.oracle import dense_oracle, solved
from support.strategies import specs


@every_backend("reference")
@given(spec=specs())
def test_fp32_over_all_options(backend, spec):
    case = build(spec)
    check(case, run(case, backend), dense_oracle(case))


@every_backend("reference")
@given(spec=specs(dtypes=HALF))
def test_half_over_all_options(backend, spec):
    case = build(spec)
    check(case, run(case, backend), dense_oracle(case))


BAR_SPECS = [
    Spec(257, 257, 64),
    Spec(300, 300, 72, scale=100.0, scale_form="1d", bias="float"),
    Spec(300, 300, 512, scale=30.0),
    Spec(129, 385, 96, targets="explicit", scale=30.0, hard=2, margin="random", bias="vector"),
    Spec(200, 77, 33, targets="random", scale=5.0, groups="rare", layout="transposed"),
    Spec(191, 260, 48, targets="random", scale=100.0, hard=3, margin="random", bias="vector_inf"),
    Spec(150, 450, 80, targets="row_only", scale=20.0, hard=2, margin="random", scale_form="float"),
    Spec(90, 140, 40, targets="col_only", scale=14.3, bias="float", layout="sliced"),
    Spec(64, 64, 128, scale=60.0, scale_form="float", upstream="weights", groups="dense"),
]


@every_backend()
@pytest.mark.parametrize("dtype", ["float32", *HALF])
@pytest.mark.threads(2)
@pytest.mark.parametrize("spec", BAR_SPECS, ids=lambda s: f"{s.rows}x{s.cols}x{s.dim}-{s.scale:g}")
def test_bar_without_allowance(backend, spec, dtype):
    """Unit-norm features where no gradient is a cancelling sum: the relative bar as it stands."""
    case, want = solved(replace(spec, dtype=dtype))
    check_bar(case, run(case, backend), want)


@pytest.mark.skipif(native_missing() is not None, reason=native_missing() or "")
def test_the_wanted_cpu_level_runs():
    from slipform_kernels import _native

    assert _native.level() in _native.levels()
    wanted = os.environ.get("SLIPFORM_CPU_LEVEL")
    assert wanted in (None, _native.level())


@pytest.mark.slow
@pytest.mark.skipif(native_missing() is not None, reason=native_missing() or "")
@pytest.mark.skipif("SLIPFORM_CPU_LEVEL" in os.environ, reason="this run has its level already")
def test_every_cpu_level_meets_the_bar():
    """The comparisons with fp64 again, once for each level that this CPU can run."""
    from slipform_kernels import _native

    here = Path(__file__).parent
    wanted = [
        str(here / "test_accuracy.py"),
        *(f"{here / 'test_extremes.py'}::{name}" for name in ("test_extreme", "test_tile_edges")),
    ]
    for level in _native.levels():
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "native"),
                *wanted,
            ],
            env={**os.environ, "SLIPFORM_CPU_LEVEL": level, "HYPOTHESIS_PROFILE": "quick"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"level {level}:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
