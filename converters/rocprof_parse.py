"""Columns of rocprofv3's CSV files: quickly where all cells are as they should be, else with care.

Whole numbers are read as such and never through floating point. Cells that spreadsheets and
averages of several runs made decimal (``8.1097E+14``, ``41551790928449.54``) are taken exactly as
they are written, to the nearest nanosecond, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from chopper_interop.columns import arrow
from chopper_interop.converters.rocprof_lines import CUT_SHORT, Section, sections
from chopper_interop.converters.rocprof_reach import within
from chopper_interop.converters.rocprof_rows import Rows
from chopper_interop.converters.rocprof_tables import (
    INTEGERS,
    NOT_KEPT,
    VALUE,
    is_left_out,
    measured,
)
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

ROUNDED = Fault(
    "time-rounded",
    Severity.LOSS,
    "Times were written with an exponent or a fraction: another program had rounded or averaged "
    "them before.",
)
NO_NUMBER = Fault(
    "number-unreadable",
    Severity.LOSS,
    "Cells that should hold a number and do not were taken as unknown.",
)
NOT_UTF8 = Fault(
    "text-not-utf8", Severity.INFO, "Bytes of texts that are not UTF-8 were replaced by U+FFFD."
)

TIMES = ("start", "end")
_NULLS = ["", "None", "NULL", "null", "nan", "NaN", "N/A"]
_BLOCK = 4 << 20
_FITS = 1 << 63
_PLAIN = r"^-?[0-9]{1,18}$"
_MOST_DIGITS = 30
_NAME = pa.dictionary(pa.int32(), pa.string())


def rows_of(data: Array, name: str, issues: IssueLog) -> list[Rows]:
    """All rows of a CSV file, below each of its headers.

    Parameters
    ----------
    data
        The file's bytes.
    name
        What to call it in examples.
    issues
        Where what is lost is counted.
    """
    return [_rows(section, name, issues) for section in sections(data, name, issues)]


def _rows(section: Section, name: str, issues: IssueLog) -> Rows:
    buffer = section.buffer()
    if not len(buffer):
        return Rows(section.form, 0, where=name)
    try:
        table = _read(section, buffer, _types(section))
        columns = {c: _Column.of(table[c]) for c in table.column_names}
    except pa.ArrowInvalid:
        columns = _with_care(section, buffer, name, issues)
    rows = Rows(
        section.form,
        _count(columns),
        numbers={n: c.data for n, c in columns.items() if c.is_integer},
        known={n: c.known for n, c in columns.items() if c.is_integer and c.known is not None},
        texts={n: c.data for n, c in columns.items() if c.is_text},
        values=columns[VALUE].data if VALUE in columns else np.empty(0),
        counters=_counters(section, columns),
        where=name,
    )
    rows = within(rows, issues)
    return _without_cut(rows, issues) if section.open_end else rows


def _count(columns: dict[str, _Column]) -> int:
    return len(next(iter(columns.values())).data) if columns else 0


def _counters(section: Section, columns: dict[str, _Column]) -> dict[str, Array]:
    """Columns of counters, by their names as they stand in the header."""
    wanted = measured(section.form, section.columns)
    titles = zip(section.columns, section.titles, strict=True)
    return {title: columns[column].data for column, title in titles if column in wanted}


def _types(section: Section) -> dict[str, pa.DataType]:
    numbers = {name: pa.int64() for name in section.columns if name in INTEGERS}
    values = {VALUE, *measured(section.form, section.columns)}
    return dict.fromkeys(section.columns, _NAME) | numbers | dict.fromkeys(values, pa.float64())


def _read(section: Section, buffer: Any, types: dict[str, pa.DataType]) -> pa.Table:
    return csv.read_csv(
        pa.BufferReader(pa.py_buffer(buffer)),
        read_options=csv.ReadOptions(
            column_names=section.columns, block_size=max(_BLOCK, 2 * section.longest + 1024)
        ),
        parse_options=csv.ParseOptions(newlines_in_values=section.folded),
        convert_options=csv.ConvertOptions(
            column_types=types,
            include_columns=_kept(section),
            null_values=_NULLS,
            strings_can_be_null=False,
        ),
    )


def _kept(section: Section) -> list[str]:
    left_out = is_left_out if section.form.wide else NOT_KEPT.__contains__
    return [c for c in section.columns if not left_out(c)]


@dataclass(frozen=True)
class _Column:
    """One column: text, or numbers and where they are known (None: everywhere)."""

    data: Any
    known: Array | None = None

    @property
    def is_text(self) -> bool:
        return isinstance(self.data, pa.DictionaryArray)

    @property
    def is_integer(self) -> bool:
        return not self.is_text and self.data.dtype == np.int64

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> _Column:
        if pa.types.is_dictionary(column.type):
            column = column.unify_dictionaries()
        array = arrow.flat(column)
        if pa.types.is_dictionary(array.type):
            return cls(array)
        nothing = np.nan if pa.types.is_floating(array.type) else 0
        return cls(arrow.numbers(array, nothing), arrow.known(array) if array.null_count else None)


def _with_care(section: Section, buffer: Any, name: str, issues: IssueLog) -> dict[str, _Column]:
    """The columns of a section in which cells are not what they should be."""
    texts = dict.fromkeys(section.columns, _NAME)
    try:
        table = _read(section, buffer, texts)
    except pa.ArrowInvalid:  # not UTF-8: all else was put right before
        issues.add(NOT_UTF8, 1, name)
        text = bytes(memoryview(buffer)).decode("utf-8", "replace")
        table = _read(section, text.encode(), texts)
    columns = {}
    values = {VALUE, *measured(section.form, section.columns)}
    for column in table.column_names:
        found = _Column.of(table[column])
        if column in INTEGERS:
            columns[column] = _integers(found.data, column, name, issues)
        else:
            columns[column] = _decimals(found.data, name, issues) if column in values else found
    return columns


def _integers(column: pa.DictionaryArray, title: str, name: str, issues: IssueLog) -> _Column:
    """Whole numbers of texts: only those that are not plainly such are looked at one by one."""
    distinct = column.dictionary
    plain = arrow.numbers(pc.match_substring_regex(distinct, _PLAIN))
    value = np.zeros(len(distinct), np.int64)
    value[plain] = arrow.numbers(arrow.take(distinct, plain).cast(pa.int64()))
    known, rounded, wrong = plain.copy(), np.zeros(len(plain), bool), np.zeros(len(plain), bool)
    for i in np.flatnonzero(~plain).tolist():
        cell = _Cell.of(distinct[i].as_py())
        value[i], known[i], rounded[i], wrong[i] = cell.value, cell.known, cell.rounded, cell.wrong
    codes = arrow.numbers(column)
    wrong, rounded = wrong[codes], rounded[codes]
    issues.add(NO_NUMBER, np.count_nonzero(wrong), _example(column, wrong, title, name))
    if title in TIMES:
        issues.add(ROUNDED, np.count_nonzero(rounded), _example(column, rounded, title, name))
    return _Column(value[codes], known[codes])


@dataclass(frozen=True)
class _Cell:
    """What a text says: a whole number, perhaps a rounded one, nothing, or no number."""

    value: int = 0
    known: bool = False
    rounded: bool = False
    wrong: bool = False

    @classmethod
    def of(cls, text: str) -> _Cell:
        plain = text.strip()
        if plain in _NULLS:
            return cls()
        try:
            exact = Decimal(plain)
            if exact.adjusted() > _MOST_DIGITS:  # written out it could fill the memory
                return cls(wrong=True)
            value = int(exact.to_integral_value())
        except (InvalidOperation, ValueError, OverflowError):
            return cls(wrong=True)
        if not -_FITS <= value < _FITS:
            return cls(wrong=value != 2 * _FITS - 1)  # all bits set stands for none
        return cls(value, known=True, rounded=exact != value or "e" in plain.lower())


def _decimals(column: pa.DictionaryArray, name: str, issues: IssueLog) -> _Column:
    cells = [_decimal(text) for text in column.dictionary.to_pylist()]
    codes = arrow.numbers(column)
    wrong = np.array([cell is None for cell in cells], bool)[codes]
    issues.add(NO_NUMBER, np.count_nonzero(wrong), _example(column, wrong, VALUE, name))
    numbers = [np.nan if cell is None else cell for cell in cells]
    return _Column(np.array(numbers, np.float64)[codes])


def _decimal(text: str) -> float | None:
    """A decimal number, not a number where there is nothing; None if it is none."""
    plain = text.strip()
    try:
        return np.nan if plain in _NULLS else float(plain)
    except ValueError:
        return None


def _example(column: pa.DictionaryArray, which: Array, title: str, name: str) -> str:
    rows = np.flatnonzero(which)
    if not rows.size:
        return ""
    return f"{name}, row {rows[0] + 1}: {title} is {column[int(rows[0])].as_py()!r}"


def _without_cut(rows: Rows, issues: IssueLog) -> Rows:
    """Leave the last row out if its last number was cut short, as its end before its start tells.

    The file does not end with a line end, which may also be lost when it was copied.
    """
    last = rows.count - 1
    if last < 0 or not {"start", "end"} <= rows.numbers.keys():
        return rows
    if rows.number("end")[last] >= rows.number("start")[last]:
        return rows
    issues.add(CUT_SHORT, 1, f"{rows.where}, row {last + 1}")
    return rows.take(np.arange(last))
