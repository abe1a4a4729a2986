"""Stems of names that end with a number."""

from __future__ import annotations

from chopper_interop.arrays import name_stems


def test_numbers_are_split_off_names() -> None:
    names = ["ProfilerStep#12", "step 3 of 4", "007", "aten::mm", "", "a\n1", "x" + 12 * "9"]
    stems, numbers = name_stems.split_numbers(names)
    assert stems == ["ProfilerStep#", "step 3 of ", "", "aten::mm", "", "a\n", "x"]
    assert numbers.tolist() == [12, 4, 7, -2, -2, 1, 999_999_999]
    assert len(name_stems.split_numbers([])[1]) == 0
