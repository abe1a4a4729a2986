"""Columns of CSV files of ROCm's profilers, parsed by Arrow, or cell by cell where that fails.

Integers are parsed exactly and never through floating point. Cells that spreadsheets and averages
of several runs made decimal (``8.1097E+14``, ``41551790928449.54``) are rounded from their exact
value to the nearest nanosecond, and counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from chopper_interop.arrays import Array, arrow
from chopper_interop.converters.rocm.csv_headers import counter_columns, is_ignored
from chopper_interop.converters.rocm.csv_lines import CUT_SHORT, CsvSection, csv_sections
from chopper_interop.converters.rocm.number_limits import without_impossible_numbers
from chopper_interop.converters.rocm.rows import TableRows
from chopper_interop.converters.rocm.tables import IGNORED, INTEGERS, VALUE, TableFormat
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas import hub

ROUNDED = Fault.loss(
    "time-rounded",
    "Times were written with an exponent or a fraction: another program had rounded "
    "or averaged them before.",
)
NO_NUMBER = Fault.loss(
    "number-unreadable", "Values that should be numbers and are not were taken as unknown."
)
OTHER_TOOL = Fault.loss_of_events(
    "table-of-other-tool",
    "Rows of a table of another tool, behind one of the file's own, were left out.",
)
NOT_UTF8 = Fault.info("text-not-utf8", "Bytes of texts that are not UTF-8 were replaced by U+FFFD.")

TIMES = ("start", "end")
_NULLS = ["", "None", "NULL", "null", "nan", "NaN", "N/A"]
_BLOCK = 4 << 20
"""Bytes that Arrow parses at once. Chosen: enough to spread the cost of a block, few enough that the
blocks of a large file are shared out among threads."""
_INT64_LIMIT = 1 << 63
_PLAIN_INTEGER = r"^-?[0-9]{1,18}$"
_MAX_EXPONENT = 30
"""Decimal exponent of a number at most: far more than 64 bits hold, and quickly written out."""


def parse_tables(
    data: Array, name: str, issues: IssueLog, *, is_own: Callable[[TableFormat], bool]
) -> list[TableRows]:
    """Parse the rows of a CSV file, a table for each of its headers.

    Parameters
    ----------
    data
        The file's bytes.
    name
        Name of the file in examples.
    issues
        Log of what is lost.
    is_own
        True for tables that the file's tool writes; others are left out, and their rows counted.
    """
    tables = [_parse_section(section, name, issues) for section in csv_sections(data, name, issues)]
    issues.add(OTHER_TOOL, sum(rows.count for rows in tables if not is_own(rows.form)), name)
    return [rows for rows in tables if is_own(rows.form)]


def _parse_section(section: CsvSection, name: str, issues: IssueLog) -> TableRows:
    buffer = section.buffer()
    if not len(buffer):
        return TableRows(section.form, 0, where=name)
    try:
        table = _read(section, buffer, _types(section))
        columns = {c: _CsvColumn.from_arrow(table[c]) for c in table.column_names}
    except pa.ArrowInvalid:
        columns = _parse_cells(section, buffer, name, issues)
    rows = TableRows(
        section.form,
        _count(columns),
        numbers={n: c.data for n, c in columns.items() if c.is_integer},
        known={n: c.known for n, c in columns.items() if c.is_integer and c.known is not None},
        texts={n: c.data for n, c in columns.items() if c.is_text},
        values=columns[VALUE].data if VALUE in columns else np.empty(0),
        counters=_counters(section, columns),
        where=name,
    )
    rows = without_impossible_numbers(rows, issues)
    return _without_cut_row(rows, issues) if section.open_end else rows


def _count(columns: dict[str, _CsvColumn]) -> int:
    return len(next(iter(columns.values())).data) if columns else 0


def _counters(section: CsvSection, columns: dict[str, _CsvColumn]) -> dict[str, Array]:
    """Return the columns of counters, by their names in the header."""
    names = counter_columns(section.form, section.columns)
    titles = zip(section.columns, section.titles, strict=True)
    return {title: columns[column].data for column, title in titles if column in names}


def _types(section: CsvSection) -> dict[str, pa.DataType]:
    numbers = {name: pa.int64() for name in section.columns if name in INTEGERS}
    values = {VALUE, *counter_columns(section.form, section.columns)}
    return dict.fromkeys(section.columns, hub.NAME) | numbers | dict.fromkeys(values, pa.float64())


def _read(section: CsvSection, buffer: Any, types: dict[str, pa.DataType]) -> pa.Table:
    return csv.read_csv(
        pa.BufferReader(pa.py_buffer(buffer)),
        read_options=csv.ReadOptions(
            column_names=section.columns, block_size=max(_BLOCK, 2 * section.longest + 1024)
        ),
        parse_options=csv.ParseOptions(newlines_in_values=section.folded),
        convert_options=csv.ConvertOptions(
            column_types=types,
            include_columns=_included(section),
            null_values=_NULLS,
            strings_can_be_null=False,
        ),
    )


def _included(section: CsvSection) -> list[str]:
    ignored = is_ignored if section.form.wide else IGNORED.__contains__
    return [c for c in section.columns if not ignored(c)]


@dataclass(frozen=True)
class _CsvColumn:
    """One column: text, or numbers and a mask of the known ones (None: all)."""

    data: Any
    known: Array | None = None

    @property
    def is_text(self) -> bool:
        return isinstance(self.data, pa.DictionaryArray)

    @property
    def is_integer(self) -> bool:
        return not self.is_text and self.data.dtype == np.int64

    @classmethod
    def from_arrow(cls, column: pa.ChunkedArray) -> _CsvColumn:
        if pa.types.is_dictionary(column.type):
            column = column.unify_dictionaries()
        array = arrow.single_chunk(column)
        if pa.types.is_dictionary(array.type):
            return cls(array)
        null = np.nan if pa.types.is_floating(array.type) else 0
        return cls(arrow.to_numpy(array, null), arrow.is_valid(array) if array.null_count else None)


def _parse_cells(
    section: CsvSection, buffer: Any, name: str, issues: IssueLog
) -> dict[str, _CsvColumn]:
    """Parse the columns of a section with cells that Arrow rejects."""
    texts = dict.fromkeys(section.columns, hub.NAME)
    try:
        table = _read(section, buffer, texts)
    except pa.ArrowInvalid:  # not UTF-8: rows were repaired before
        issues.add(NOT_UTF8, 1, name)
        text = bytes(memoryview(buffer)).decode("utf-8", "replace")
        table = _read(section, text.encode(), texts)
    columns = {}
    values = {VALUE, *counter_columns(section.form, section.columns)}
    for column in table.column_names:
        parsed = _CsvColumn.from_arrow(table[column])
        if column in INTEGERS:
            parsed = _integers(parsed.data, column, name, issues)
        elif column in values:
            parsed = _decimals(parsed.data, name, issues)
        columns[column] = parsed
    return columns


def _integers(column: pa.DictionaryArray, title: str, name: str, issues: IssueLog) -> _CsvColumn:
    """Parse integers; only distinct texts that are no plain integers are parsed one by one."""
    distinct = column.dictionary
    plain = arrow.to_numpy(pc.match_substring_regex(distinct, _PLAIN_INTEGER))
    value = np.zeros(len(distinct), np.int64)
    value[plain] = arrow.to_numpy(arrow.take(distinct, plain).cast(pa.int64()))
    known, rounded, wrong = plain.copy(), np.zeros(len(plain), bool), np.zeros(len(plain), bool)
    for i in np.flatnonzero(~plain).tolist():
        cell = _IntegerCell.parse(distinct[i].as_py())
        value[i], known[i], rounded[i], wrong[i] = cell.value, cell.known, cell.rounded, cell.wrong
    codes = arrow.to_numpy(column)
    wrong, rounded = wrong[codes], rounded[codes]
    issues.add(NO_NUMBER, np.count_nonzero(wrong), _example(column, wrong, title, name))
    if title in TIMES:
        issues.add(ROUNDED, np.count_nonzero(rounded), _example(column, rounded, title, name))
    return _CsvColumn(value[codes], known[codes])


@dataclass(frozen=True)
class _IntegerCell:
    """Value of a cell: an integer, perhaps a rounded one; neither known nor wrong if it is empty."""

    value: int = 0
    known: bool = False
    rounded: bool = False
    wrong: bool = False

    @classmethod
    def parse(cls, text: str) -> _IntegerCell:
        plain = text.strip()
        if plain in _NULLS:
            return cls()
        try:
            exact = Decimal(plain)
            if exact.adjusted() > _MAX_EXPONENT:  # written out it could fill the memory
                return cls(wrong=True)
            value = int(exact.to_integral_value())
        except (InvalidOperation, ValueError, OverflowError):
            return cls(wrong=True)
        if not -_INT64_LIMIT <= value < _INT64_LIMIT:
            return cls(wrong=value != 2 * _INT64_LIMIT - 1)  # all bits set mean "none"
        return cls(value, known=True, rounded=exact != value or "e" in plain.lower())


def _decimals(column: pa.DictionaryArray, name: str, issues: IssueLog) -> _CsvColumn:
    cells = [_decimal(text) for text in column.dictionary.to_pylist()]
    codes = arrow.to_numpy(column)
    wrong = np.array([cell is None for cell in cells], bool)[codes]
    issues.add(NO_NUMBER, np.count_nonzero(wrong), _example(column, wrong, VALUE, name))
    numbers = [np.nan if cell is None else cell for cell in cells]
    return _CsvColumn(np.array(numbers, np.float64)[codes])


def _decimal(text: str) -> float | None:
    """Parse a decimal number: NaN if the text is empty, None if it is no number."""
    plain = text.strip()
    try:
        return np.nan if plain in _NULLS else float(plain)
    except ValueError:
        return None


def _example(column: pa.DictionaryArray, mask: Array, title: str, name: str) -> str:
    rows = np.flatnonzero(mask)
    if not rows.size:
        return ""
    return f"{name}, row {rows[0] + 1}: {title} is {column[int(rows[0])].as_py()!r}"


def _without_cut_row(rows: TableRows, issues: IssueLog) -> TableRows:
    """Leave the last row out if its last number was cut short, so that it ends before its start.

    That the file does not end with a line end is not enough: copying a file may lose that too.
    """
    last = rows.count - 1
    if last < 0 or not {"start", "end"} <= rows.numbers.keys():
        return rows
    if rows.number("end")[last] >= rows.number("start")[last]:
        return rows
    issues.add(CUT_SHORT, 1, f"{rows.where}, row {last + 1}")
    return rows.take(np.arange(last))
