"""Hypothesis strategies over the descriptions of test problems; see cases.py."""

from __future__ import annotations

from hypothesis import strategies as st

from support.cases import (
    BIASES,
    GEOMETRIES,
    GROUPS,
    LAYOUTS,
    MARGINS,
    SCALE_FORMS,
    TARGETS,
    UPSTREAMS,
    Spec,
)

_SIZES = st.one_of(st.integers(1, 12), st.sampled_from([15, 16, 17, 31, 32, 33, 47, 64, 65]))
_SCALES = st.one_of(st.sampled_from([0.0, 1.0, 14.3, 100.0]), st.floats(0.0, 100.0, width=32))


@st.composite
def specs(draw: st.DrawFn, *, dtypes: tuple[str, ...] = ("float32",)) -> Spec:
    """Descriptions over every option and ragged shapes."""
    square = draw(st.booleans())
    n_rows = draw(_SIZES)
    hard = draw(st.sampled_from([None, 0, 1, 2, 3, 4]))
    geometry = draw(st.sampled_from(GEOMETRIES))
    scale = draw(_SCALES)
    return Spec(
        rows=n_rows,
        cols=n_rows if square else draw(_SIZES),
        dim=draw(st.one_of(st.integers(1, 9), st.sampled_from([16, 31, 64, 96]))),
        dtype=draw(st.sampled_from(dtypes)),
        targets=draw(st.sampled_from(TARGETS)),
        geometry=geometry,
        # Norms of up to 5 and a scale of 100 would be logits of 2,500.
        scale=scale / 25 if geometry == "unnormalised" else scale,
        scale_form=draw(st.sampled_from(SCALE_FORMS)),
        bias=draw(st.sampled_from(BIASES)),
        hard=hard,
        margin=None if hard is None else draw(st.sampled_from(MARGINS)),
        groups=draw(st.sampled_from((None, *GROUPS))),
        upstream=draw(st.sampled_from(UPSTREAMS)),
        layout=draw(st.sampled_from(LAYOUTS)),
        seed=draw(st.integers(0, 2**16)),
    )
