"""Reading a folder of Parquet files back as the trace that it was written from."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chopper_interop import invariants
from chopper_interop.arrays import Array, arrow
from chopper_interop.converters.parquet import layout
from chopper_interop.errors import ReadError, SchemaError, first_line
from chopper_interop.io import inputs, memory
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import TABLE_KINDS
from chopper_interop.schemas.meta import Meta  # noqa: TC001 - msgspec looks it up
from chopper_interop.trace import Text, Trace

_RANK = re.compile(r"rank(-?\d+)\.parquet")
_CELL_BYTES = 4
"""Bytes of a value in memory, at least."""
_AGAIN = "write the folder again from the profiles"


class _Content(msgspec.Struct):
    rows: dict[str, int]
    meta: Meta


class _Head(msgspec.Struct):
    format: str
    version: int
    crc32: int
    content: msgspec.Raw


def read(paths: list[Path]) -> Trace:
    """Read a folder of Parquet files.

    Parameters
    ----------
    paths
        The folder's ``meta.json``; files next to it may be named too.

    Returns
    -------
    Trace
        The trace that was written, its sources and issues among it.

    Raises
    ------
    ReadError
        Something of it is missing or damaged.
    """
    meta = next((path for path in paths if path.name == layout.META), None)
    if meta is None:
        raise ReadError(
            f"its folder's {layout.META} is not among what is read",
            path=paths[0],
            hint="give the folder that was written, the one with the name *.parquet",
        )
    content = _content(meta)
    tables = {table: _whole(meta.parent, table) for table in layout.WHOLE}
    text: list[Array] = []
    tables |= {table: _by_rank(meta.parent, table, text) for table in layout.BY_RANK}
    for table, data in tables.items():
        _check_rows(meta.parent, table, data, content.rows.get(table, -1))
        if table in layout.NUMBERED:
            tables[table] = data.drop_columns([layout.NUMBERED[table]])
    tables["samples"] = _in_order(tables["samples"])
    trace = Trace(**tables, meta=content.meta, text=Text(tuple(text)))
    with _as_damage(meta.parent):
        invariants.check_references(trace)
        invariants.check_times(trace)
    return trace


def _damaged(reason: str, path: Path) -> ReadError:
    """Return the error for a file or folder that is not as it was written."""
    return ReadError(reason, path=path, hint=_AGAIN)


@contextmanager
def _as_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except SchemaError as error:
        raise _damaged(str(error), path) from error


def _content(path: Path) -> _Content:
    try:
        with inputs.opened(path) as file:
            head = msgspec.json.decode(file.read(), type=_Head)
        if head.format != layout.FORMAT or head.version > layout.VERSION:
            raise ReadError(
                f"it is of {head.format} version {head.version}, known here is {layout.VERSION}",
                path=path,
                hint="read it with the version of chopper-interop that wrote it",
            )
        raw = bytes(head.content)
        if zlib.crc32(raw) != head.crc32:
            raise _damaged("it is not as it was written", path)
        content = msgspec.json.decode(raw, type=_Content)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(f"it cannot be read: {first_line(error)}", path) from error
    with _as_damage(path):
        invariants.check_numbers([content.meta, *content.rows.values()])
    return content


def _whole(folder: Path, table: str) -> pa.Table:
    return _hub_types(table, _file(folder / f"{table}.parquet", table), folder)


def _by_rank(folder: Path, table: str, text: list[Array]) -> pa.Table:
    """All ranks' files of a table, one behind the other; nodes' arguments go to `text`."""
    parts = []
    for path in _rank_files(folder / table):
        part = _file(path, table)
        parts.append(_with_places(part, text) if table == "nodes" else part)
    if not parts:
        raise _damaged(f"it has no files of {table}", folder)
    try:
        data = pa.concat_tables(parts, promote_options="default").unify_dictionaries()
    except pa.ArrowException as error:
        raise _damaged(f"its files of {table} differ: {first_line(error)}", folder) from error
    return _hub_types(table, data, folder)


def _rank_files(folder: Path) -> list[Path]:
    """Files of a table in order of rank."""
    named = ((_RANK.fullmatch(path.name), path) for path in folder.glob("*.parquet"))
    return [path for _, path in sorted((int(m.group(1)), path) for m, path in named if m)]


def _file(path: Path, table: str) -> pa.Table:
    try:
        with inputs.opened(path) as raw, memory.sufficing(f"reading {table}", path):
            file = pq.ParquetFile(raw, page_checksum_verification=True)
            _refuse_bomb(path, file.metadata)
            data = file.read()
    except (OSError, pa.ArrowException, ValueError) as error:
        raise _damaged(f"it cannot be read: {first_line(error)}", path) from error
    mark = (data.schema.metadata or {}).get(layout.KEY, b"").decode("utf-8", "replace")
    if mark != f"{table}/{layout.VERSION}":
        raise _damaged(f"it holds no {table} of a trace", path)
    for name, kind in layout.stored_core(table).items():
        at = data.schema.get_field_index(name)
        present = data.schema.field(at).type if at >= 0 else None
        if present is None or (present != kind and not _texts(present, kind)):
            raise _damaged(f"its column {name!r} is {present}, not {kind}", path)
    return data.replace_schema_metadata(None)


def _refuse_bomb(path: Path, stated: pq.FileMetaData) -> None:
    """Raise `ReadError` if a file has far more cells than bytes: equal ones may take no place in it."""
    size = inputs.size(path)
    limit = inputs.max_unpacked(size, path)
    if _CELL_BYTES * stated.num_rows * stated.num_columns > limit:
        raise inputs.too_large_unpacked(limit, size, path)


def _texts(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """True if both are dictionaries of texts; the types of their indices may differ."""
    return (
        pa.types.is_dictionary(stored)
        and pa.types.is_dictionary(wanted)
        and stored.value_type == wanted.value_type
    )


def _hub_types(table: str, data: pa.Table, folder: Path) -> pa.Table:
    """Columns as the hub declares them, each in one piece."""
    core = {c.name: c.type for c in hub.TABLES[table]}
    columns = {}
    for name in data.column_names:
        array = arrow.single_chunk(data[name])
        if name == "kind" and table in TABLE_KINDS:
            array = _kind_numbers(table, array, folder)
        elif name in core and array.null_count:
            raise _damaged(f"{table}.{name} has rows without a value", folder)
        declared = core.get(name) or hub.ANNOTATION_TYPES.get(name) if table == "nodes" else None
        columns[name] = (
            array if declared in (None, array.type) else _cast(array, declared, name, folder)
        )
    schema = pa.schema([pa.field(n, a.type, nullable=n not in core) for n, a in columns.items()])
    return pa.table(list(columns.values()), schema=schema)


def _cast(array: pa.Array, declared: pa.DataType, name: str, folder: Path) -> pa.Array:
    """Return an annotation with the type that it has in memory."""
    try:
        return array.cast(declared)
    except pa.ArrowException as error:
        raise _damaged(
            f"its column {name!r} is {array.type}, not {declared}: {first_line(error)}", folder
        ) from error


def _kind_numbers(table: str, kind: pa.DictionaryArray, folder: Path) -> pa.Array:
    numbers = {k.name.lower(): int(k) for k in TABLE_KINDS[table]}
    texts = kind.dictionary.to_pylist()
    unknown = set(texts) - set(numbers)
    if unknown or kind.null_count:
        raise ReadError(
            f"{table}.kind has {sorted(unknown) or 'rows without a value'}",
            path=folder,
            hint="it may come from a newer version",
        )
    of_code = np.array([numbers[text] for text in texts] or [0], np.uint8)
    return arrow.array(of_code[arrow.to_numpy(kind)])


def _with_places(nodes: pa.Table, text: list[Array]) -> pa.Table:
    """Nodes of a file with where their arguments lie, which are added to `text`."""
    before = sum(len(buffer) for buffer in text)
    offsets, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for chunk in nodes[layout.ARGS].chunks:
        places, data = _offsets(chunk)
        offsets.append(places[:-1] + before)
        lengths.append(np.diff(places))
        before += len(data)
        text.append(data)
    columns = {
        "args_at": arrow.array(np.concatenate(offsets), pa.int64()),
        "args_len": arrow.array(np.concatenate(lengths), pa.int32()),
    }
    nodes = nodes.drop_columns([layout.ARGS])
    at = nodes.schema.get_field_index("correlation") + 1
    for name, array in columns.items():
        nodes = nodes.add_column(at, pa.field(name, array.type, nullable=False), array)
        at += 1
    return nodes


def _offsets(args: pa.Array) -> tuple[Array, Array]:
    """Offset of each value, the end of the last, and a writable copy of the bytes."""
    _, places, data = args.buffers()
    if places is None or not len(args):
        return np.zeros(len(args) + 1, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(places, np.int64)[args.offset : args.offset + len(args) + 1]
    if data is None or not data.size:
        return np.zeros_like(offsets), np.zeros(0, np.uint8)
    first, last = int(offsets[0]), int(offsets[-1])
    return offsets - first, np.array(np.frombuffer(data, np.uint8)[first:last])


def _in_order(samples: pa.Table) -> pa.Table:
    """Samples by series and time: ranks' files may hold series that take turns."""
    series = arrow.to_numpy(samples["series"])
    if np.all(series[:-1] <= series[1:]):
        return samples
    return arrow.take(samples, np.argsort(series, kind="stable"))


def _check_rows(folder: Path, table: str, data: pa.Table, expected: int) -> None:
    """Every row is there, in its place."""
    hint = f"a file of {table} is missing, or one of another trace lies there"
    if data.num_rows != expected:
        raise ReadError(
            f"it has {data.num_rows:,} rows of {table}, not {expected:,}", path=folder, hint=hint
        )
    if table in layout.NUMBERED:
        numbers = arrow.to_numpy(data[layout.NUMBERED[table]])
        if not np.array_equal(numbers, np.arange(expected)):
            raise ReadError(f"rows of {table} are out of place", path=folder, hint=hint)
