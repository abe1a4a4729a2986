"""Between numpy and Arrow, without a copy and without what pyarrow loads for it.

pyarrow imports pandas as soon as it gets an array of numpy's, or makes one: a quarter of a
second, which is more than a small trace takes to convert. Columns here are put together from
their buffers instead. Methods of its arrays import `pyarrow.compute`, which makes a Python function
with help for each of Arrow's 280: a twelfth of the time of a small conversion, so that here these are called by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

try:
    from pyarrow._compute import (
        CastOptions,
        FilterOptions,
        MatchSubstringOptions,
        TakeOptions,
        call_function,
    )
except ImportError:  # where a version of pyarrow does not have them: its public place
    from pyarrow.compute import (
        CastOptions,
        FilterOptions,
        MatchSubstringOptions,
        TakeOptions,
        call_function,
    )

from chopper_interop.arrays import Array
from chopper_interop.errors import READ_FEWER, TooLargeError

_MOST_IN_COLUMN = 2**31 - 1
"""Bytes of texts, or numbers of lists, that offsets of int32 reach."""
Column: TypeAlias = pa.Array | pa.ChunkedArray


def array(values: Array, declared: pa.DataType | None = None, *, mask: Array | None = None) -> Any:
    """Return numbers as an Arrow array, without a copy where the type is the same.

    Parameters
    ----------
    values
        Numbers or truth values.
    declared
        Type of the result, which must be able to hold them; that of `values` if None.
    mask
        True where a value is unknown.
    """
    values = _fitting(np.ascontiguousarray(values), declared)
    kind = pa.from_numpy_dtype(values.dtype)
    valid = None if mask is None or not mask.any() else _packed_bits(~mask)
    data = _packed_bits(values) if values.dtype == np.bool_ else pa.py_buffer(values)
    built = pa.Array.from_buffers(kind, len(values), [valid, data])
    return built if declared in (None, kind) else _cast(built, declared)


_INTEGERS = {
    pa.from_numpy_dtype(kind): (kind, int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    for kind in map(np.dtype, ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))
}
"""Arrow's type of whole numbers → numpy's, and the lowest and the highest that it holds."""


def _fitting(values: Array, declared: pa.DataType | None) -> Array:
    """Whole numbers as numpy's of the declared type, if it holds them all; else as they are, for Arrow to cast.

    Columns of many traces are short, and a cast of Arrow's takes several times as long as all else that is
    done to make one.
    """
    if values.dtype.kind not in "iu" or declared not in _INTEGERS:
        return values
    kind, low, high = _INTEGERS[declared]
    if values.dtype == kind or (
        values.size and not low <= int(values.min()) <= int(values.max()) <= high
    ):
        return values
    return values.astype(kind)


def nan_to_null(values: Any) -> Any:
    """Return a numpy column as Arrow's, null where masked or NaN; others are returned as they are."""
    if isinstance(values, np.ma.MaskedArray):
        return array(values.data, mask=np.ma.getmaskarray(values))
    if isinstance(values, np.ndarray):
        return array(values, mask=np.isnan(values) if values.dtype.kind == "f" else None)
    return values


def negative_to_null(values: Array, declared: pa.DataType | None = None) -> Any:
    """Return numbers as an Arrow array, null where they are below 0."""
    return array(values, declared, mask=values < 0)


def column(values: Any, declared: pa.DataType | None = None) -> Any:
    """Return values of any kind as one Arrow array, of the declared type if there is one.

    Parameters
    ----------
    values
        A numpy array, an Arrow column or a sequence of Python's objects.
    declared
        Type of the result; a dictionary type takes its values or itself.
    """
    built = _inferred(values, declared)
    if declared is None or built.type == declared:
        return built
    if pa.types.is_dictionary(declared) and not pa.types.is_dictionary(built.type):
        built = encoded(_cast(built, declared.value_type))
    return _cast(built, declared)


def _cast(values: pa.Array, declared: pa.DataType) -> pa.Array:
    return call_function("cast", [values], CastOptions.safe(declared))


def encoded(values: Column) -> Any:
    """Return a column as a dictionary of its distinct values, in the order in which they occur."""
    return call_function("dictionary_encode", [values])


def _inferred(values: Any, declared: pa.DataType | None) -> pa.Array:
    """Values as an Arrow array of the type that they have themselves; `declared` if none."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return single_chunk(values)
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return array(_fitting(values, declared))
    if not len(values) and declared is not None:
        return pa.nulls(0, declared)
    return _of_objects(values, declared)


def _of_objects(values: Sequence[Any], declared: pa.DataType | None) -> pa.Array:
    """Python's objects as an Arrow array: those of the usual types without pandas."""
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return texts(values)
    if kinds == {str, type(None)}:
        numbers = np.array([-1 if value is None else k for k, value in enumerate(values)])
        return texts_of((value or "" for value in values), numbers)
    if kinds == {int}:
        return array(_fitting(np.array(values, np.int64), declared))
    if kinds == {float}:
        return array(np.array(values))
    return pa.array(values)


def scalar(value: str | bool, kind: pa.DataType | None = None) -> pa.Scalar:  # noqa: FBT001 # a value
    """Return a value as an Arrow scalar, without pandas, which ``pa.scalar`` and a Python value for a function import."""
    one = texts([value]) if isinstance(value, str) else array(np.array([value]))
    return (one if kind in (None, one.type) else _cast(one, kind))[0]


def fill_null(values: Column, value: str | bool) -> Column:  # noqa: FBT001 # as `scalar`
    """Return values with another in place of null."""
    return call_function("coalesce", [values, scalar(value, values.type)])


def matches(values: Column, pattern: str) -> Any:
    """Return truth values: in which texts a part matches a regular expression of RE2."""
    return call_function("match_substring_regex", [values], MatchSubstringOptions(pattern))


def text_lengths(values: Column) -> Array:
    """Return the bytes of texts; 0 for null."""
    return to_numpy(call_function("binary_length", [values]), 0)


def find(values: Column, pattern: str) -> Any:
    """Return the byte of each text at which a regular expression of RE2 matches first; -1 if nowhere."""
    return call_function("find_substring_regex", [values], MatchSubstringOptions(pattern))


def replace_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    """Return a table with other values in one of its columns, whose type stays."""
    at = table.schema.get_field_index(name)
    field = table.schema.field(at)
    return table.set_column(at, field, column(values, field.type))


def take(table: Any, rows: Array) -> Any:
    """Return rows of a table or an array, by their numbers or by a mask."""
    rows = np.asarray(rows)
    if rows.dtype == np.bool_:
        return call_function("filter", [table, array(rows)], FilterOptions())
    return call_function("take", [table, array(rows)], TakeOptions())


def take_known(values: Any, rows: Array) -> Any:
    """Return values by their numbers; null where a number is below 0."""
    return call_function("take", [values, negative_to_null(rows)], TakeOptions())


def taken(column: Column, rows: Array) -> Any:
    """Return values of a column by their numbers, as `take`; where none is null by numpy, which uses memory again."""
    piece = single_chunk(column)
    coded = pa.types.is_dictionary(piece.type)
    kind = piece.indices.type if coded else piece.type
    if piece.null_count or not pa.types.is_primitive(kind) or pa.types.is_boolean(kind):
        return take(piece, rows)
    values = array(to_numpy(piece)[rows], kind)
    return pa.DictionaryArray.from_arrays(values, piece.dictionary) if coded else values


def rows(table: pa.Table, numbers: Array) -> pa.Table:
    """Return rows of a table by their ascending numbers; no copy where they follow each other."""
    if numbers.size and numbers[-1] - numbers[0] + 1 == numbers.size:
        return table.slice(int(numbers[0]), numbers.size)
    return take(table, numbers)


def texts(values: Iterable[str]) -> pa.StringArray:
    """Return texts as an Arrow array."""
    encoded = [value.encode(errors="backslashreplace") for value in values]  # lone surrogates
    offsets = _offsets([len(text) for text in encoded], "bytes of texts in a column")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def texts_of(values: Iterable[str], numbers: Array) -> Any:
    """Return texts by their numbers; null where that is below 0."""
    return take_known(texts(values), numbers)


def dictionary(codes: Array, values: Iterable[str], *, mask: Array | None = None) -> Any:
    """Return the texts that codes number as a dictionary array, null where masked, by default below 0.

    Texts may be repeated (different bytes can be the same text); those of a dictionary are not.
    """
    mask = codes < 0 if mask is None else mask
    values = list(values)
    number = {text: k for k, text in enumerate(dict.fromkeys(values))}
    if len(number) < len(values):
        codes = np.array([number[text] for text in values])[codes]
    codes = np.ascontiguousarray(codes, np.int32)
    return pa.DictionaryArray.from_arrays(array(codes, mask=mask), texts(number))


def coded(codes: Array, values: pa.Array) -> Any:
    """Return texts of an Arrow array that codes number as a dictionary array, as `dictionary` does; null is an empty text."""
    distinct = encoded(fill_null(values, "") if values.null_count else values)
    if len(distinct.dictionary) < len(values):
        codes = np.where(codes < 0, -1, to_numpy(distinct.indices)[codes]) if len(values) else codes
    return pa.DictionaryArray.from_arrays(negative_to_null(codes, pa.int32()), distinct.dictionary)


def lists(values: Sequence[Array], declared: pa.DataType) -> pa.ListArray:
    """Return lists of whole numbers as an Arrow array of a list type."""
    offsets = _offsets([len(v) for v in values], "numbers in lists of a column")
    numbers = np.concatenate([np.empty(0, np.int64), *values])
    return pa.ListArray.from_arrays(array(offsets), array(numbers, declared.value_type), declared)


def _offsets(lengths: list[int], what: str) -> Array:
    """Place at which each value of a column of Arrow begins, and behind the last one its end."""
    total = sum(lengths)
    if total > _MOST_IN_COLUMN:
        raise TooLargeError(
            f"{total:,} {what} are too many: at most {_MOST_IN_COLUMN:,} are possible",
            hint=READ_FEWER,
        )
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def single_chunk(column: Column) -> pa.Array:
    """Return a column in one piece; chunks are copied together only if there are several."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    if isinstance(combined, pa.Array):
        return combined
    return pa.concat_arrays(combined.chunks) if combined.num_chunks else pa.nulls(0, column.type)


def is_valid(column: Column) -> Array:
    """Mark the values of a column that are not null."""
    piece = single_chunk(column)
    bits = piece.buffers()[0]
    if bits is None or not piece.null_count:
        return np.ones(len(piece), np.bool_)
    return _unpacked_bits(bits, piece.offset, len(piece))


def to_numpy(column: Column, null: float = 0) -> Array:
    """Return a column of numbers or truth values as numpy's; of a dictionary column, its codes.

    Parameters
    ----------
    column
        An Arrow column.
    null
        Value that replaces null, of the column's type.

    Returns
    -------
    numpy.ndarray
        Read-only and not copied where the column has no null.
    """
    piece = single_chunk(column)
    if pa.types.is_dictionary(piece.type):
        piece = piece.indices
    data = piece.buffers()[1]
    if data is None:
        values = np.zeros(len(piece), piece.type.to_pandas_dtype())
    elif pa.types.is_boolean(piece.type):
        values = _unpacked_bits(data, piece.offset, len(piece))
    else:
        dtype = np.dtype(piece.type.to_pandas_dtype())
        values = np.frombuffer(data, dtype, len(piece), piece.offset * dtype.itemsize)
    return (
        np.where(is_valid(piece), values, values.dtype.type(null)) if piece.null_count else values
    )


def values_at(column: Column, rows: Array) -> tuple[Array, Array]:
    """Return what a column of numbers, truth values or codes has in some rows, and a mask of those not null.

    Rows are numbers or a mask. No other row is looked at.
    """
    rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
    known = known_at(column, rows)
    piece = single_chunk(column)
    piece = piece.indices if pa.types.is_dictionary(piece.type) else piece
    data = piece.buffers()[1]
    at = rows + piece.offset if piece.offset else rows
    if data is None:
        return np.zeros(len(rows), piece.type.to_pandas_dtype()), known
    if pa.types.is_boolean(piece.type):
        return _bits_at(data, at), known
    return np.frombuffer(data, piece.type.to_pandas_dtype())[at], known


def known_at(column: Column, rows: Array) -> Array:
    """Mark those of some rows in which a column is not null."""
    piece = single_chunk(column)
    piece = piece.indices if pa.types.is_dictionary(piece.type) else piece
    bits = piece.buffers()[0]
    if bits is None or not piece.null_count:
        return np.ones(len(rows), np.bool_)
    return _bits_at(bits, rows + piece.offset if piece.offset else rows)


def to_objects(column: Column) -> Array:
    """Return a column as numpy's: texts as objects, None for null; numbers, NaN for null."""
    piece = single_chunk(column)
    if pa.types.is_dictionary(piece.type):
        texts = np.array([*piece.dictionary.to_pylist(), None], object)
        return texts[to_numpy(piece, -1)]
    if not pa.types.is_primitive(piece.type):
        return np.array([*piece.to_pylist(), None], object)[:-1]
    if not piece.null_count:
        return to_numpy(piece)
    return np.where(is_valid(piece), to_numpy(piece), np.nan)


def _packed_bits(values: Array) -> pa.Buffer:
    """Truth values as Arrow stores them: a bit each, the first one lowest."""
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def _bits_at(bits: pa.Buffer, at: Array) -> Array:
    """Truth values at some positions of a bitmap."""
    # bit k of a byte is the value of place k: shifted to the lowest, the others are masked
    bytes_at = np.frombuffer(bits, np.uint8)[at >> 3]
    return ((bytes_at >> (at & 7).astype(np.uint8)) & 1).view(np.bool_)


def _unpacked_bits(bits: pa.Buffer, offset: int, count: int) -> Array:
    """Truth values of a bitmap, from bit `offset` on."""
    first, skipped = divmod(offset, 8)
    used = np.frombuffer(bits, np.uint8)[first:]
    values = np.unpackbits(used, count=skipped + count, bitorder="little")
    return values[skipped:].view(np.bool_)
