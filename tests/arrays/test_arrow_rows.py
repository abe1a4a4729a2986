"""Rows of columns are what Arrow takes of them, of slices too."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_interop.arrays import arrow

COLUMNS = [
    pa.array([5, None, 7, -1, None, 9, 3, 2, None, 1], pa.int64()),
    pa.array(range(10), pa.uint8()),
    pa.array([0.5, None] * 5, pa.float64()),
    pa.array([True, None, False, True, False] * 2),
    pa.array([True, False] * 5),
    pa.array(["a", None, "b", "a", "c"] * 2).dictionary_encode(),
    pa.array(["a", "b"] * 5).dictionary_encode(),
    pa.nulls(10, pa.int32()),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
@given(
    first=st.integers(0, 9), count=st.integers(1, 10), rows=st.lists(st.integers(0, 9), max_size=12)
)
def test_rows_of_a_column_are_those_that_arrow_takes(
    column: pa.Array, first: int, count: int, rows: list[int]
) -> None:
    part = column.slice(first, count)
    numbers = np.array([row % len(part) for row in rows], np.int64)
    expected = part.take(pa.array(numbers))
    assert arrow.taken(part, numbers).equals(expected)
    values, known = arrow.values_at(part, numbers)
    plain = expected.indices if pa.types.is_dictionary(expected.type) else expected
    assert [v if k else None for v, k in zip(values.tolist(), known, strict=True)] == (
        plain.to_pylist()
    )
