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
