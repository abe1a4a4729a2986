"""Values sorted within their groups, of several parts, and their quantiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_interop.arrays import sorted_groups, spill

GROUPS = 4
VALUES = st.integers(-9, 9) | st.integers(-(2**62), 2**62 - 1)
PARTS = st.lists(st.lists(st.tuples(st.integers(0, GROUPS - 1), VALUES), max_size=9), max_size=4)


@given(
    parts=PARTS, share=st.sampled_from([0.01, 0.05, 0.25, 0.5, 0.75, 1.0]), in_files=st.booleans()
)
def test_quantiles_are_those_of_each_group(
    *, parts: list[list[tuple[int, int]]], share: float, in_files: bool
) -> None:
    arrays = [
        (np.array([g for g, _ in part], np.int32), np.array([v for _, v in part], np.int64))
        for part in parts
    ]
    with pytest.MonkeyPatch.context() as patch, spill.when(in_files):
        patch.setattr(spill, "_MIN_BYTES", 1)
        patch.setattr(sorted_groups, "_BLOCK", 3)
        result = sorted_groups.sorted_groups(arrays, GROUPS)
        quantiles = {floor: result.quantile(share, floor=floor) for floor in (True, False)}
        blocks = [(g, v) for group, of in result.blocks() for g, v in zip(group, of, strict=True)]
    expected = sorted(pair for part in parts for pair in part)
    assert blocks == expected
    for group in range(GROUPS):
        of_group = [value for g, value in expected if g == group]
        assert result.count[group] == len(of_group)
        for floor, of_all in quantiles.items():
            kept = [value for value in of_group if value >= 0 or not floor]
            assert of_all[group] == (kept[int(share * (len(kept) - 1))] if kept else 0)
