"""Names that end with a number."""

from __future__ import annotations

from chopper_interop.columns import numbered


def test_names_with_and_without_numbers() -> None:
    names = ["ProfilerStep#12", "step 3 of 4", "007", "aten::mm", "", "a\n1", "x" + 12 * "9"]
    stems, number = numbered.split(names)
    assert stems == ["ProfilerStep#", "step 3 of ", "", "aten::mm", "", "a\n", "x"]
    assert number.tolist() == [12, 4, 7, -2, -2, 1, 999_999_999]
    assert len(numbered.split([])[1]) == 0
