"""Between numpy and Arrow, without a copy and without what pyarrow loads for it.

pyarrow imports pandas as soon as it meets an array of numpy's, or makes one: a quarter of a
second, which is more than a small trace takes to convert. Columns here are put together from
their buffers instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeAlias

    from chopper_interop.columns.types import Array

    Column: TypeAlias = pa.Array | pa.ChunkedArray


def array(values: Array, declared: pa.DataType | None = None, *, mask: Array | None = None) -> Any:
    """Numbers as an Arrow array.

    Parameters
    ----------
    values
        Numbers or truth values.
    declared
        Type of the result; must be able to hold them.
    mask
        True where a value is unknown.
    """
    values = np.ascontiguousarray(values)
    kind = pa.from_numpy_dtype(values.dtype)
    valid = None if mask is None or not mask.any() else _bits(~mask)
    data = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(values)
    made = pa.Array.from_buffers(kind, len(values), [valid, data])
    return made if declared in (None, kind) else made.cast(declared)


def known_only(values: Any) -> Any:
    """A column, null where numbers are masked or not a number; what is Arrow's already stays."""
    if isinstance(values, np.ma.MaskedArray):
        return array(values.data, mask=np.ma.getmaskarray(values))
    if isinstance(values, np.ndarray):
        return array(values, mask=np.isnan(values) if values.dtype.kind == "f" else None)
    return values


def column(values: Any, declared: pa.DataType | None = None) -> Any:
    """Values of any kind as one Arrow array, of the declared type where there is one.

    Parameters
    ----------
    values
        A numpy array, an Arrow column or a sequence of Python's objects.
    declared
        Type of the result; a dictionary type takes its values or itself.
    """
    made = _made(values, declared)
    if declared is None or made.type == declared:
        return made
    if pa.types.is_dictionary(declared) and not pa.types.is_dictionary(made.type):
        made = made.cast(declared.value_type).dictionary_encode()
    return made.cast(declared)


def _made(values: Any, declared: pa.DataType | None) -> pa.Array:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return flat(values)
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return array(values)
    if not len(values) and declared is not None:
        return pa.nulls(0, declared)
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return texts(values)
    if kinds == {int}:
        return array(np.array(values, np.int64))
    return pa.array(values)


def replaced(table: pa.Table, name: str, values: Any) -> pa.Table:
    """The table with other values in one of its columns, of the same type."""
    at = table.schema.get_field_index(name)
    field = table.schema.field(at)
    return table.set_column(at, field, column(values, field.type))


def take(table: Any, rows: Array) -> Any:
    """Rows of a table or an array by number, or where a truth value is true."""
    rows = np.asarray(rows)
    return table.filter(array(rows)) if rows.dtype == np.bool_ else table.take(array(rows))


def texts(values: Iterable[str]) -> pa.StringArray:
    """Texts as an Arrow array."""
    encoded = [value.encode() for value in values]
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def dictionary(codes: Array, values: Iterable[str], *, mask: Array | None = None) -> Any:
    """Texts by number: a dictionary array of int32 codes, null where masked."""
    codes = np.ascontiguousarray(codes, np.int32)
    return pa.DictionaryArray.from_arrays(array(codes, mask=mask), texts(values))


def lists(values: Sequence[Sequence[int]], declared: pa.DataType) -> pa.ListArray:
    """Lists of numbers as an Arrow array of a list type."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(v) for v in values], out=offsets[1:])
    flat = np.array([number for v in values for number in v], np.int64)
    items = array(flat, declared.value_type)
    return pa.ListArray.from_arrays(array(offsets), items).cast(declared)


def flat(column: Column) -> pa.Array:
    """A column in one piece."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    if isinstance(combined, pa.Array):
        return combined
    return pa.concat_arrays(combined.chunks) if combined.num_chunks else pa.nulls(0, column.type)


def known(column: Column) -> Array:
    """Where a column is not null."""
    piece = flat(column)
    bits = piece.buffers()[0]
    if bits is None or not piece.null_count:
        return np.ones(len(piece), np.bool_)
    return _truth(bits, piece.offset, len(piece))


def numbers(column: Column, null: float = 0) -> Array:
    """A column of numbers or truth values as numpy; a dictionary column gives its codes.

    Parameters
    ----------
    column
        An Arrow column.
    null
        What stands for null.
    """
    piece = flat(column)
    if pa.types.is_dictionary(piece.type):
        piece = piece.indices
    data = piece.buffers()[1]
    if data is None:
        values = np.zeros(len(piece), piece.type.to_pandas_dtype())
    elif pa.types.is_boolean(piece.type):
        values = _truth(data, piece.offset, len(piece))
    else:
        dtype = np.dtype(piece.type.to_pandas_dtype())
        values = np.frombuffer(data, dtype, len(piece), piece.offset * dtype.itemsize)
    return np.where(known(piece), values, values.dtype.type(null)) if piece.null_count else values


def objects(column: Column) -> Array:
    """A column as numpy: texts as objects with None for null, numbers with nulls as floats."""
    piece = flat(column)
    if pa.types.is_dictionary(piece.type):
        texts = np.array([*piece.dictionary.to_pylist(), None], object)
        return texts[numbers(piece, -1)]
    if not pa.types.is_primitive(piece.type):
        return np.array([*piece.to_pylist(), None], object)[:-1]
    if not piece.null_count:
        return numbers(piece)
    return np.where(known(piece), numbers(piece), np.nan)


def _bits(values: Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def _truth(bits: pa.Buffer, offset: int, count: int) -> Array:
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8), count=offset + count, bitorder="little")
    return unpacked[offset:].view(np.bool_)
