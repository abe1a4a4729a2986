"""Writing a trace as a folder of Parquet files."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chopper_interop import progress
from chopper_interop.arrays import Array, arrow, gather, spill
from chopper_interop.converters.parquet import layout
from chopper_interop.io import outputs
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import TABLE_KINDS
from chopper_interop.trace import Trace

ROWS_PER_GROUP = 1 << 20
"""Rows of a row group: the default of Arrow."""
BYTES_PER_GROUP = 64 << 20
"""Bytes of arguments that are gathered at a time, at most. Chosen: bounds the memory in addition to the trace."""
_TASK = "writing Parquet"


def write(trace: Trace, path: Path) -> None:
    """Write a folder of Parquet files, a rank at a time.

    Parameters
    ----------
    path
        The folder, ``….parquet``.
    """
    progress.start(_TASK, trace.nodes.num_rows, "events")
    names = {layout.META, *layout.BY_RANK, *(f"{table}.parquet" for table in layout.WHOLE)}
    is_earlier_trace = (path / layout.META).is_file()
    with outputs.folder(
        path, owns=lambda there: is_earlier_trace and there.name in names
    ) as folder:
        for table in layout.BY_RANK:
            (folder / table).mkdir()
            _write_by_rank(trace, table, folder / table)
        for table in layout.WHOLE:
            data = _stored(table, getattr(trace, table), 0)
            with _writer(folder / f"{table}.parquet", table, data.schema) as writer:
                writer.write_table(data)
        (folder / layout.META).write_bytes(_meta(trace))


def _meta(trace: Trace) -> bytes:
    """Encode the trace's metadata with a checksum: a damaged digit would be a wrong number."""
    rows = {table: getattr(trace, table).num_rows for table in hub.TABLES}
    content = msgspec.json.encode({"rows": rows, "meta": trace.meta})
    head = {"format": layout.FORMAT, "version": layout.VERSION, "crc32": zlib.crc32(content)}
    return msgspec.json.encode(head | {"content": msgspec.Raw(content)})


def _write_by_rank(trace: Trace, table: str, folder: Path) -> None:
    """A file for each rank that has rows; one without rows if none has."""
    data: pa.Table = getattr(trace, table)
    for rank, rows in _rows_by_rank(trace, table):
        schema = None
        for at in _starts(trace, table, rows):
            chosen = rows[at]
            part = _stored(table, arrow.rows(data, chosen), int(chosen[0]) if chosen.size else 0)
            if table == "nodes":
                part = part.append_column(
                    pa.field(layout.ARGS, pa.large_binary()), _arguments(trace, chosen)
                )
                progress.advance(_TASK, len(chosen))
            if schema is None:
                schema = part.schema
                writer = _writer(folder / layout.file_of(rank), table, schema)
            writer.write_table(part, row_group_size=ROWS_PER_GROUP)
        writer.close()
        spill.release()


def _rows_by_rank(trace: Trace, table: str) -> Iterator[tuple[int, Array]]:
    """Yield the ranks in whose files rows of a table lie, ascending, and these rows; rank 0 if there are none."""
    has_rows = False
    if table == "samples":
        owner = trace.array("rank", "series")[trace.array("series", "samples")]
        by_rank = np.argsort(owner, kind="stable")  # once: not a pass over all samples a rank
        present, first = np.unique(owner[by_rank], return_index=True)
        parts = np.split(by_rank, first[1:])  # one without rows where there are no samples
        of_ranks = ((rank, parts[n]) for n, rank in enumerate(present.tolist()))
    else:
        nodes = trace.rank_rows.items()
        of_ranks = ((rank, _rows_of_nodes(trace, table, rows)) for rank, rows in nodes)
    for rank, rows in of_ranks:
        if rows.size:
            has_rows = True
            yield rank, rows
    if not has_rows:
        yield 0, np.empty(0, np.int64)


def _rows_of_nodes(trace: Trace, table: str, nodes: slice) -> Array:
    """Rows of a table that belong to some nodes; edges belong to the node that waits."""
    if table == "nodes":
        return np.arange(nodes.start, nodes.stop)
    column = "dst" if table == "edges" else "node"
    return trace.rows_to(table, column, nodes.start, nodes.stop)


def _starts(trace: Trace, table: str, rows: Array) -> Iterator[slice]:
    """Slices of a rank's rows, each written at a time; one at least."""
    step = ROWS_PER_GROUP
    if table != "nodes":
        yield from (slice(at, at + step) for at in range(0, max(len(rows), 1), step))
        return
    filled = np.cumsum(trace.array("args_len")[rows], dtype=np.int64)
    at = 0
    while True:
        before = filled[at - 1] if at else 0
        stop = int(np.searchsorted(filled, before + BYTES_PER_GROUP, "right"))
        stop = min(max(stop, at + 1), at + step)
        yield slice(at, stop)
        at = stop
        if at >= len(rows):
            return


def _stored(table: str, data: pa.Table, first: int) -> pa.Table:
    """Rows as they lie on disk: numbered, kinds as texts, dictionaries without unused entries."""
    columns = {}
    if table in layout.NUMBERED:
        columns[layout.NUMBERED[table]] = arrow.array(
            np.arange(first, first + data.num_rows, dtype=np.int32)
        )
    for name in data.column_names:
        if name not in layout.PLACES:
            array = arrow.single_chunk(data[name])
            columns[name] = _compact(array) if pa.types.is_dictionary(array.type) else array
    if table in TABLE_KINDS:
        columns["kind"] = _kind_names(table, columns["kind"])
    return pa.table(columns)


@cache
def _kinds(table: str) -> tuple[Array, pa.Array]:
    """Position of each number of a kind among the names of a table's kinds, and these; once for all ranks."""
    kinds = list(TABLE_KINDS[table])
    codes = np.zeros(256, np.int8)
    codes[[int(k) for k in kinds]] = np.arange(len(kinds))
    return codes, arrow.texts([k.name.lower() for k in kinds])


def _kind_names(table: str, kind: pa.Array) -> pa.DictionaryArray:
    codes, texts = _kinds(table)
    return pa.DictionaryArray.from_arrays(arrow.array(codes[arrow.to_numpy(kind)]), texts)


def _compact(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """Column of the same values with a dictionary of those alone that occur."""
    codes = arrow.to_numpy(column, -1)
    used = np.unique(codes)
    used = used[used >= 0]
    new = np.searchsorted(used, codes).astype(np.int32)
    return pa.DictionaryArray.from_arrays(
        arrow.array(new, mask=codes < 0), arrow.take(column.dictionary, used)
    )


def _arguments(trace: Trace, rows: Array) -> pa.Array:
    """Arguments of some nodes, null where there are none."""
    length = trace.array("args_len")[rows].astype(np.int64)
    text = trace.text
    data = gather.concatenate_ranges(
        text.buffers, text.starts, trace.array("args_at")[rows], length
    )
    offsets = np.concatenate([[0], np.cumsum(length)])
    known = np.packbits(length > 0, bitorder="little")
    buffers = [pa.py_buffer(known), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(rows), buffers)


def _writer(path: Path, table: str, schema: pa.Schema) -> pq.ParquetWriter:
    marked = schema.with_metadata({layout.KEY: f"{table}/{layout.VERSION}".encode()})
    return pq.ParquetWriter(path, marked, compression="zstd", write_page_checksum=True)
