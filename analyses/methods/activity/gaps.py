"""Gaps in which a GPU does nothing, and calls for the work behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import grouping
from chopper_interop.arrays import arrow, gather
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.gather import is_any
from chopper_interop.errors import NoSuchDefinitionsError, OptionError, similar
from chopper_interop.schemas.kinds import GPU_WORK, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from chopper_interop.analyses.methods.activity.grouping import Groups
    from chopper_interop.analyses.methods.activity.windows import Window
    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace

NO_TIME = int(np.iinfo(np.int64).min)
"""In place of a time: nothing came before, or no call is known."""


def work_rows(trace: Trace, kinds: Iterable[Kind] = GPU_WORK) -> Array:
    """Rows of the GPU work of these kinds, within a rank in order of time."""
    return np.flatnonzero(is_any(trace.array("kind"), kinds))


def gpu_numbers(trace: Trace, rows: Array) -> tuple[Array, int]:
    """Number of the GPU of each of these nodes, and the count of GPUs; not all need be used."""
    lanes = trace.lanes.num_rows
    if not lanes:
        return np.zeros(len(rows), np.int64), 0
    keys = (trace.array(column, "lanes") for column in ("rank", "device"))
    first, code = gather.distinct(*keys)
    return code[trace.array("lane")[rows]], len(first)


def device_numbers(trace: Trace, rows: Array) -> Array:
    """Number of the device of each of these nodes, as its rank counts them."""
    lane = trace.array("lane")[rows]
    return trace.array("device", "lanes")[lane] if lane.size else lane


def call_times(trace: Trace, rows: Array) -> Array:
    """Start of the call that launched each piece of GPU work; `NO_TIME` where none is recorded."""
    call = trace.launch[rows]
    return np.where(call >= 0, trace.array("ts")[np.maximum(call, 0)], NO_TIME)


def is_first_of_call(trace: Trace, rows: Array) -> Array:
    """Mark the pieces of work that were the first of their call: launching a graph starts many."""
    call = trace.launch[rows]
    position = np.arange(len(rows))
    first = np.zeros(trace.nodes.num_rows + 1, np.int64)  # the last entry is that of no call
    first[call[::-1]] = position[::-1]  # written backwards, so that the first of a call remains
    return (call >= 0) & (first[call] == position)


@jit
def latest_end_before(group: Array, groups: int, start: Array, end: Array) -> Array:
    """Latest end of the work of the same group that started before each piece; `NO_TIME` of none.

    Compiled: a running maximum for each of many interleaved groups.

    Parameters
    ----------
    group
        Number of the group of each piece.
    groups
        Number of groups.
    start, end
        Times; starts ascend within a group.
    """
    last = np.full(groups, NO_TIME, np.int64)
    before = np.empty(len(start), np.int64)
    for i in range(len(start)):
        before[i] = last[group[i]]
        last[group[i]] = max(last[group[i]], end[i])
    return before


@jit
def previous_end(group: Array, groups: int, start: Array, end: Array) -> Array:  # noqa: ARG001 # as above
    """End of the piece of the same group that started last before each; `NO_TIME` for the first.

    Parameters as of `latest_end_before`, for which it stands in where a tool defines gaps so.
    """
    last = np.full(groups, NO_TIME, np.int64)
    before = np.empty(len(end), np.int64)
    for i in range(len(end)):
        before[i] = last[group[i]]
        last[group[i]] = end[i]
    return before


def starting_in_windows(
    trace: Trace, rows: Array, rank_windows: Sequence[Window]
) -> tuple[Array, Array]:
    """Nodes that start in windows of their rank.

    Returns
    -------
    position, window
        Positions in `rows`, and numbers of windows; one pair for each window that a node starts in.
    """
    ts, rank = trace.array("ts")[rows], trace.array("rank")[rows]
    positions, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for number, window in enumerate(rank_windows):
        low, high = np.searchsorted(rank, [window.rank, window.rank + 1])
        rank_ts = ts[low:high]
        # a window of all of a rank ends with its last work, which may begin there and take no time
        until = window.end_ns + (window.iteration < 0)
        first, stop = low + np.searchsorted(rank_ts, np.array([window.start_ns, until]))
        inside = np.arange(first, max(first, stop))
        positions.append(inside)
        numbers.append(np.full(len(inside), number, np.int64))
    return np.concatenate(positions), np.concatenate(numbers)


def overlapping_windows(
    lists: tuple[Array, Array],
    start: Array,
    end: Array,
    rank: Array,
    rank_windows: Sequence[Window],
) -> tuple[Array, Array]:
    """Pairs of intervals and the windows of their rank that they overlap.

    Parameters
    ----------
    lists
        Intervals by lane or the like, as `gather.group_rows` gives them: within each of these lists all
        are of one rank, and both starts and ends ascend.
    start, end, rank
        Of each interval.
    rank_windows
        Windows in order of rank.

    Returns
    -------
    at, window
        Positions of intervals, and numbers of windows; one each for every pair.
    """
    first, interval = lists
    ranks, begins, ends = (
        np.array([getattr(window, name) for window in rank_windows], np.int64)
        for name in ("rank", "start_ns", "end_ns")
    )
    empty = np.zeros(0, np.int64)
    at, numbers = [empty], [empty]
    for low, high in zip(first[:-1].tolist(), first[1:].tolist(), strict=True):
        if low == high:
            continue
        listed = interval[low:high]
        same_rank = slice(*np.searchsorted(ranks, rank[listed[0]] + np.arange(2)))
        # each window overlaps a row of neighbours in the list: from the first that ends after the
        # window's start to the last that begins before its end
        since = np.searchsorted(end[listed], begins[same_rank], "right")
        count = np.maximum(np.searchsorted(start[listed], ends[same_rank], "left") - since, 0)
        nth = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        at.append(listed[np.repeat(since, count) + nth])
        numbers.append(np.repeat(np.arange(same_rank.start, same_rank.stop), count))
    return np.concatenate(at), np.concatenate(numbers)


def group_nodes_with(
    trace: Trace, rows: Array, by: str, further: dict[str, Array | pa.Array]
) -> Groups:
    """Groups of nodes as `grouping.group_nodes`, distinguished by further columns too.

    Parameters
    ----------
    trace, rows, by
        As of `grouping.group_nodes`; what is named in `further` may stand in `by` and is taken from there.
    further
        A column for each: numbers, -1 for unknown, or an Arrow dictionary.
    """
    names = [name.strip() for name in by.split(",") if name.strip()]
    plain_by = ",".join(name for name in names if name not in further)
    plain = grouping.group_nodes(trace, rows, plain_by)
    if not further:
        return plain
    codes = [np.asarray(_codes(column), np.int64) for column in further.values()]
    # number distinct rows of codes in ascending order, the first column counting most
    first, code = gather.distinct(plain.code, *codes)
    order = np.lexsort((*(c[first] for c in reversed(codes)), plain.code[first]))
    number = np.empty(len(first), np.int64)
    number[order] = np.arange(len(first))
    keys = arrow.take(plain.keys, plain.code[first][order])
    if not grouping.parse_grains(plain_by):
        keys = keys.drop_columns(["job"])
    columns = {name: keys[name] for name in keys.column_names}
    columns |= {name: _values(column, first[order]) for name, column in further.items()}
    return grouping.Groups(number[code], pa.table(columns))


def _codes(column: Array | pa.Array) -> Array:
    """Numbers that distinguish the values of a column; -1 for unknown."""
    return arrow.to_numpy(column, -1) if isinstance(column, pa.Array) else column


def _values(column: Array | pa.Array, rows: Array) -> pa.Array:
    """Values of a column at these rows, null where unknown."""
    if isinstance(column, pa.Array):
        values = arrow.take(column, rows)
        return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    used = np.asarray(column, np.int64)[rows]
    return arrow.array(used.astype(np.int32), mask=used < 0)


def check_choice(
    option: str, text: str, known: Collection[str], error: type[OptionError] = OptionError
) -> str:
    """Check that an option is one of the known words, and return it.

    Raises
    ------
    OptionError
        It is none of them; of class `error`.
    """
    if text not in known:
        hint = similar(text, (word for word in known if word))
        raise error(f"{option}={text}: there is no {text!r}", hint=hint)
    return text


def check_compat(text: str, known: Collection[str]) -> str:
    """Check that the option `compat` is one of the known tools, and return it.

    Raises
    ------
    NoSuchDefinitionsError
        It is none of them.
    """
    return check_choice("compat", text, known, NoSuchDefinitionsError)
