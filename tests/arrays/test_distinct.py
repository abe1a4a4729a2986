"""Distinct rows are the same however wide their columns are: by a table, as one number, or column by column."""

import numpy as np
import pytest

from chopper_interop.arrays import gather

ROWS = gather._FEW_ROWS + 1


@pytest.mark.parametrize("width", [1, 2**10, 2**31 - 1, 2**31, 2**62])
def test_distinct_rows_of_columns_of_any_width(width: int) -> None:
    low = np.where(np.arange(ROWS) % 2, -width, width - 1)
    first, code = gather.distinct(low, np.arange(ROWS) % 3, low[::-1].copy())
    rows = list(zip(low.tolist(), (np.arange(ROWS) % 3).tolist(), low[::-1].tolist(), strict=True))
    distinct = list(dict.fromkeys(rows))
    assert [rows[i] for i in first.tolist()] == distinct
    assert code.tolist() == [distinct.index(row) for row in rows]


@pytest.mark.parametrize("run", [1, 3, 4, 50, ROWS])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_distinct_rows_of_which_several_follow_each_other(run: int, columns: int) -> None:
    """Runs of equal rows come back later, and a last one may be cut."""
    number = np.arange(4 * ROWS) // run % 7
    wide = [np.array([5, -(2**62), 2**62, 5, 0, 9, 1])[(number + k) % 7] for k in range(columns)]
    first, code = gather.distinct(*wide)
    rows = list(zip(*(column.tolist() for column in wide), strict=True))
    distinct = list(dict.fromkeys(rows))
    assert [rows[i] for i in first.tolist()] == distinct
    assert first.tolist() == [rows.index(row) for row in distinct]
    assert code.tolist() == [distinct.index(row) for row in rows]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("step", [1, 3, -1])
def test_codes_that_occur_are_those_of_python(dtype: type, step: int) -> None:
    low = -10 if np.issubdtype(dtype, np.signedinteger) else 0
    for count in (0, 1, 30):
        values = np.random.default_rng(count).integers(low, 40, count).astype(dtype)[::step]
        assert gather.unique_codes(values).tolist() == sorted(
            {v for v in values.tolist() if v >= 0}
        )
    assert not gather.unique_codes(np.full(3, low, dtype)).any()
