"""Means and peaks of samples over windows, against the sweep that shares energy among work."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_interop.analyses.methods.runs import telemetry as run_telemetry
from chopper_interop.annotate.telemetry import energy
from chopper_interop.annotate.telemetry.energy import without_overlap
from chopper_interop.annotate.telemetry.samples import periodic_samples

SERIES = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 900)), min_size=1, max_size=12, unique_by=lambda s: s[0]
)  # fmt: skip
WINDOWS = st.lists(st.tuples(st.integers(-50, 450), st.integers(0, 120)), min_size=1, max_size=4)


@given(st.lists(SERIES, min_size=1, max_size=2), WINDOWS, st.booleans())
def test_against_energy(series: list, windows: list, straight: bool) -> None:  # noqa: FBT001
    made = [
        periodic_samples(*np.array(sorted(one)).T.astype(np.int64), 0, is_linear=straight)
        for one in series
    ]
    parts = [part for part in without_overlap(made) if part is not None]
    spans = [(start, start + length) for start, length in windows]
    actual = run_telemetry.mean_and_peak(parts, spans)
    area, covered, peak = 0.0, 0, -np.inf
    for start, end in spans:
        if end <= start:
            continue
        expected = energy.share_energy(parts, np.array([start]), np.array([end]), (start, end))
        area += expected.total * 1e9
        covered += expected.covered_ns
        if expected.covered_ns:
            peak = max(peak, energy.peak_power(parts, start, end))
    assert actual.covered_ns == covered
    if covered:
        assert actual.mean * covered == pytest.approx(area, abs=1e-6)
        assert actual.peak >= peak - 1e-9
