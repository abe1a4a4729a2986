"""Columns of the recorder's CSV: millions of rows, complete or cut, of one run or of several."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from chopper_interop.arrays import Array, arrow
from chopper_interop.converters.amd_smi import faults as own_faults
from chopper_interop.converters.amd_smi.recorder_lanes import (
    GPU,
    INTEGERS,
    REALTIME,
    is_recorder,
    names_of,
)
from chopper_interop.errors import ReadError
from chopper_interop.issues import IssueLog

_ABSENT = ["", "N/A", "n/a", "NA", "None", "nan", "NaN", "null"]
_INTEGER = r"^\s*[0-8]?[0-9]{1,18}\s*$"
_LONGEST_LINE = 1 << 20


def load(path: Path, data: Array, issues: IssueLog) -> tuple[pa.Table, int]:
    """Read the columns of a file, and count its rows, including those that cannot be read.

    Parameters
    ----------
    path
        The file.
    data
        Its bytes.
    issues
        Where rows that are cut short are counted.

    Returns
    -------
    table
        Integers in the columns `INTEGERS`, floats in the others, or texts where one of its values
        is neither a number nor absent.
    rows
        Rows of the file.

    Raises
    ------
    ReadError
        It has not the columns of a recorder, or two of one name, or is no CSV.
    """
    data = _readable(data)
    header = bytes(data[:_LONGEST_LINE]).partition(b"\n")[0] + b"\n"
    names = names_of(header)
    if not is_recorder(names):
        raise ReadError(
            f"its first line does not name {REALTIME}, {GPU} and another clock",
            path=path,
            hint="it is no file of the recorder",
        )
    if len(set(names)) < len(names):
        raise ReadError("two of its columns have the same name", path=path, at="row 1")
    body, cut = _complete_lines(data[len(header) :])
    if cut:
        issues.add(own_faults.CUT, 1, cut)
    odd: list[str] = []
    try:
        table = _parsed(names, _closed(_without_headers(body, header)), odd)
    except pa.ArrowInvalid as error:
        raise ReadError(f"it is no CSV: {str(error).splitlines()[0]}", path=path) from error
    issues.add(own_faults.CUT, len(odd), odd[0][:80] if odd else "")
    return table, table.num_rows + len(odd) + bool(cut)


def _readable(data: Array) -> Array:
    """Replace bytes that are no UTF-8, which Arrow needs to report a row that it cannot read."""
    if not (data & 0x80).any():
        return data
    text = data.tobytes().decode("utf-8", "replace")
    return np.frombuffer(text.encode(), np.uint8)


def integer_column(table: pa.Table, name: str) -> Array:
    """Return a column of `INTEGERS` as int64, -1 where it is empty or absent."""
    if name not in table.column_names:
        return np.full(table.num_rows, -1, np.int64)
    return arrow.to_numpy(table[name], -1).astype(np.int64)


def _complete_lines(body: Array) -> tuple[Array, str]:
    """Split the body into its complete lines, and the rest after the last of them."""
    if not body.size or body[-1] == ord("\n"):
        return body, ""
    rest = bytes(body[-_LONGEST_LINE:]).rpartition(b"\n")[2]
    return body[: len(body) - len(rest)], rest[:60].decode("utf-8", "replace")


def _without_headers(body: Array, header: bytes) -> Array:
    """Remove the headers of runs that were appended."""
    pieces, start = [], 0
    for again in re.finditer(re.escape(header), body.data):
        pieces.append(body[start : again.start()])
        start = again.end()
    return np.concatenate([*pieces, body[start:]]) if pieces else body


def _closed(body: Array) -> Array:
    """Blank the quotes of lines that open one and do not close it.

    Lists are quoted; a quote that stays open would swallow all later rows. The line of each quote
    is the number of line ends before it; lines with an odd count have one open.
    """
    quotes = np.flatnonzero(body == ord('"'))
    if not quotes.size:
        return body
    line = np.searchsorted(np.flatnonzero(body == ord("\n")), quotes)
    _, count = np.unique(line, return_counts=True)
    open_ = np.repeat(count % 2 == 1, count)
    if not open_.any():
        return body
    mended = body.copy()
    mended[quotes[open_]] = ord(" ")
    return mended


def _parsed(names: list[str], body: Array, odd: list[str]) -> pa.Table:
    first = names_of(bytes(body[:_LONGEST_LINE]).partition(b"\n")[0])
    cells = dict(zip(names, first, strict=False))
    types = {name: _type(name, cells.get(name, "")) for name in names}
    if not first:
        return pa.table({name: pa.nulls(0, kind) for name, kind in types.items()})
    try:
        return _arrow(types, body, odd)
    except pa.ArrowInvalid:  # words among the numbers
        odd.clear()
        return _of_texts(_arrow(dict.fromkeys(names, pa.string()), body, odd))


def _type(name: str, cell: str) -> pa.DataType:
    if name in INTEGERS:
        return pa.int64()
    return pa.string() if cell.startswith("[") else pa.float64()


def _arrow(types: dict[str, pa.DataType], body: Array, odd: list[str]) -> pa.Table:
    def skip(row: Any) -> str:
        odd.append(str(row.text))
        return "skip"

    return arrow_csv.read_csv(
        pa.BufferReader(pa.py_buffer(body)),
        arrow_csv.ReadOptions(column_names=list(types)),
        arrow_csv.ParseOptions(invalid_row_handler=skip),
        arrow_csv.ConvertOptions(column_types=types, null_values=_ABSENT, strings_can_be_null=True),
    )


def _of_texts(texts: pa.Table) -> pa.Table:
    """Convert columns of texts to numbers where all of a column's texts are."""
    columns = {}
    for name in texts.column_names:
        column = texts[name]
        if name in INTEGERS:
            good = pc.match_substring_regex(column, _INTEGER)
            column = pc.utf8_trim_whitespace(pc.if_else(good, column, None)).cast(pa.int64())
        else:
            column = _floats(column)
        columns[name] = column
    return pa.table(columns)


def _floats(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return texts.cast(pa.float64())
    except pa.ArrowInvalid:
        return texts
