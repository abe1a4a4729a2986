"""Work on some ranks of a trace at a time, so that memory does not grow with the number of ranks.

Many ranks may be few nodes: a batch has as many ranks as have a million nodes together, so that what a call
costs is not paid for each rank. Batches are the same whether arrays lie in memory or in files, and no result depends on
them: what is taken from other ranks is looked up in all batches first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, arrow, gather, spill
from chopper_interop.schemas import hub
from chopper_interop.tables import merged_rows
from chopper_interop.trace import Trace

MAX_NODES = 1 << 20
"""Nodes of the ranks of a batch, unless one rank has more. Chosen: columns of a few megabytes each, on which
calls take milliseconds."""
_BLOCK = 1 << 17
"""Nodes that are looked at, at a time. Chosen: a megabyte for each column that is made of them, which uses the same memory
again and stays in the processor's cache."""


_LOOKED_AT = 32
"""Bytes of a node of a block that are mapped then (chosen: four of its columns)."""


def batches(trace: Trace, *, by_host: bool = False) -> Iterator[tuple[slice, Trace]]:
    """Yield the rows of the nodes of each batch, and the trace of these alone; of one batch the trace itself.

    Its tables but nodes, edges and counters are whole. With `by_host` ranks of a host are in one batch, and
    all ranks are where series are of no rank, as ranks of a host may share GPUs and their telemetry.
    """
    of_ranks = _of_hosts(trace) if by_host else trace.rank_rows.values()
    rows_of_batches = merged_rows(of_ranks, MAX_NODES)
    if len(rows_of_batches) < 2:  # noqa: PLR2004
        yield slice(0, trace.nodes.num_rows), trace
        return
    for rows in rows_of_batches:
        yield rows, trace.of_rows(rows)
        spill.release()


def spans(trace: Trace) -> list[slice]:
    """Rows of the nodes of each batch."""
    return trace.rank_spans(MAX_NODES)


def blocks(trace: Trace) -> Iterator[slice]:
    """Yield the rows of all nodes, some at a time, whichever ranks they are of."""
    count = trace.nodes.num_rows
    for at in range(0, count, _BLOCK):
        rows = slice(at, min(at + _BLOCK, count))
        yield rows
        spill.copied(_LOOKED_AT * (rows.stop - rows.start))


def _of_hosts(trace: Trace) -> list[slice]:
    """Rows of each host, of all nodes if ranks of hosts take turns or series are of no rank."""
    host = {rank.rank: rank.host for rank in trace.meta.ranks}
    rows: dict[str, slice] = {}
    for rank, of_rank in trace.rank_rows.items():
        name = host.get(rank, "")
        before = rows.get(name, slice(of_rank.start, of_rank.start))
        if before.stop != of_rank.start or (trace.array("rank", "series") < 0).any():
            return [slice(0, trace.nodes.num_rows)]
        rows[name] = slice(before.start, of_rank.stop)
    return list(rows.values())


def with_columns(
    trace: Trace, derive: Callable[[Trace], dict[str, pa.Array]], *, by_host: bool = False
) -> Trace:
    """Return the trace with columns of nodes that a function derives of each batch.

    Parameters
    ----------
    trace
        Any trace.
    derive
        Returns columns to add or to replace, by name. A column that it does not return of some batch keeps
        the values that it has there.
    by_host
        As of `batches`.
    """
    joined = JoinedColumns(trace)
    for rows, part in batches(trace, by_host=by_host):
        columns = derive(part)
        if part is trace:
            return trace.with_columns(**columns) if columns else trace
        joined.add(rows, columns)
    return trace.with_columns(**joined.joined())


class JoinedColumns:
    """Columns of the nodes of a trace that are derived batch by batch, in files if arrays are."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._pieces: dict[str, list[pa.Array | int]] = {}
        self._rows: list[slice] = []

    def add(self, rows: slice, columns: dict[str, pa.Array]) -> None:
        """Add columns of the next batch; of one that it lacks the values of the trace stay."""
        for name in columns.keys() - self._pieces.keys():
            self._pieces[name] = [_present(self._trace, name, before) for before in self._rows]
        for name, of_batches in self._pieces.items():
            derived = columns.get(name)
            of_batches.append(
                _present(self._trace, name, rows) if derived is None else spill.kept_column(derived)
            )
        self._rows.append(rows)

    def joined(self) -> dict[str, pa.Array]:
        """Whole columns by name, in the order of columns of nodes."""
        count = self._trace.nodes.num_rows
        columns = {}
        order = [*self._trace.nodes.column_names, *hub.ANNOTATION_TYPES]
        for name in sorted(self._pieces, key=order.index):
            pieces = self._pieces[name]
            kind = next(part.type for part in pieces if not isinstance(part, int))
            is_whole = len(pieces) == 1 and count > 0
            columns[name] = pieces[0] if is_whole else spill.joined_column(pieces, count, kind)
        return columns


def _present(trace: Trace, name: str, rows: slice) -> pa.Array | int:
    """Values that a column has in some rows; their number if there is no such column."""
    count = rows.stop - rows.start
    if not trace.has(name):
        return count
    return arrow.single_chunk(trace.nodes[name]).slice(rows.start, count)


def rows_where(trace: Trace, column: str, is_chosen: Callable[[Array], Array]) -> Array:
    """Rows of the nodes whose value in a core column is chosen, found block by block."""
    values = trace.array(column)
    return gather.joined(
        [np.flatnonzero(is_chosen(values[rows])) + rows.start for rows in blocks(trace)]
    )


def nodes_at(trace: Trace, rows: Array) -> pa.Table:
    """The nodes in some rows, taken column by column: of all columns at once, few rows would map all of their pages."""
    columns = {}
    for name, column in zip(trace.nodes.column_names, trace.nodes.columns, strict=True):
        columns[name] = arrow.take(arrow.single_chunk(column), rows)
        spill.gathered(column.nbytes, len(rows))
    return pa.table(columns, schema=trace.nodes.schema)


def known_rows(trace: Trace, column: str) -> Array:
    """Rows of the nodes that have a value in a column, found block by block."""
    if not trace.has(column):
        return np.empty(0, np.int64)
    values = arrow.single_chunk(trace.nodes[column])
    starts = range(0, len(values), MAX_NODES)
    return gather.joined(
        [np.flatnonzero(arrow.is_valid(values.slice(at, MAX_NODES))) + at for at in starts]
    )


def with_values(trace: Trace, column: str, rows: Array, values: pa.Array) -> Trace:
    """Return the trace with values of some rows, which are ascending, in a column; others stay, or are null."""
    count = trace.nodes.num_rows
    pieces: list[pa.Array | int] = []
    for at in range(0, count, MAX_NODES):
        block = slice(at, min(at + MAX_NODES, count))
        first, last = np.searchsorted(rows, [block.start, block.stop]).tolist()
        old = _present(trace, column, block)
        pieces.append(_replaced(old, block, rows[first:last], values.slice(first, last - first)))
    return trace.with_columns(**{column: spill.joined_column(pieces, count, values.type)})


def _replaced(old: pa.Array | int, block: slice, rows: Array, values: pa.Array) -> pa.Array | int:
    """A block of a column with other values in some rows."""
    if not rows.size:
        return old
    size = block.stop - block.start
    before = pa.nulls(size, values.type) if isinstance(old, int) else old
    both = pa.chunked_array([before, values]).unify_dictionaries()
    source = np.arange(size)
    source[rows - block.start] = size + np.arange(len(rows))
    return arrow.take(arrow.single_chunk(both), source)
