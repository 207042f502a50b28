"""Every backend meets the accuracy bar against fp64, over all options, for every gradient."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from support.accuracy import check, check_bar
from support.backends import every_backend, native_missing, run
from support.cases import HALF, Spec, build, specs
from support.oracle import dense_oracle


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
@pytest.mark.parametrize("spec", BAR_SPECS, ids=lambda s: f"{s.rows}x{s.cols}x{s.dim}-{s.scale:g}")
def test_bar_without_allowance(backend, spec, dtype):
    """Unit-norm features in which no gradient is a cancelling sum: the relative bar as it stands."""
    case = build(Spec(**{**vars(spec), "dtype": dtype}))
    check_bar(case, run(case, backend), dense_oracle(case))
