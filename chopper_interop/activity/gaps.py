"""Time in which a GPU does nothing, and when the work behind it was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.activity import grouping
from chopper_interop.columns import arrow, gather
from chopper_interop.columns.compiled import jit
from chopper_interop.columns.members import is_any
from chopper_interop.errors import NoSuchDefinitionsError, UsageError
from chopper_interop.schemas.kinds import GPU_WORK, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from chopper_interop.activity.grouping import Groups
    from chopper_interop.activity.windows import Window
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

NEVER = int(np.iinfo(np.int64).min)
"""In place of a time: nothing came before, or nobody is known to have asked."""


def work_rows(trace: Trace, kinds: Iterable[Kind] = GPU_WORK) -> Array:
    """Rows of the GPU work of these kinds; within a rank in order of time."""
    return np.flatnonzero(is_any(trace.array("kind"), kinds))


def gpus(trace: Trace, rows: Array) -> tuple[Array, int]:
    """Number of the GPU of each of these nodes, and how many there are; not all need be used."""
    lanes = trace.lanes.num_rows
    if not lanes:
        return np.zeros(len(rows), np.int64), 0
    of = (trace.array(column, "lanes") for column in ("rank", "device"))
    first, code = gather.distinct(*of)
    return code[trace.array("lane")[rows]], len(first)


def devices(trace: Trace, rows: Array) -> Array:
    """Number of the device of each of these nodes, as its rank counts them."""
    lane = trace.array("lane")[rows]
    return trace.array("device", "lanes")[lane] if lane.size else lane


def asked(trace: Trace, rows: Array) -> Array:
    """When the call for each piece of GPU work began; `NEVER` where none is recorded."""
    call = trace.launch[rows]
    return np.where(call >= 0, trace.array("ts")[np.maximum(call, 0)], NEVER)


def is_first_of_call(trace: Trace, rows: Array) -> Array:
    """Which pieces of work were the first that their call launched: a graph launches many."""
    call = trace.launch[rows]
    place = np.arange(len(rows))
    first = np.zeros(trace.nodes.num_rows + 1, np.int64)  # the last is that of none
    first[call[::-1]] = place[::-1]  # of equal ones the first is written last
    return (call >= 0) & (first[call] == place)


@jit
def reach(group: Array, groups: int, start: Array, end: Array) -> Array:
    """When all work of the same group that started before each piece had ended; `NEVER` if none did.

    Parameters
    ----------
    group
        Number of the group of each piece.
    groups
        How many groups there are.
    start, end
        Times; starts ascend within a group.
    """
    last = np.full(groups, NEVER, np.int64)
    before = np.empty(len(start), np.int64)
    for i in range(len(start)):
        before[i] = last[group[i]]
        last[group[i]] = max(last[group[i]], end[i])
    return before


@jit
def previous(group: Array, groups: int, start: Array, end: Array) -> Array:  # noqa: ARG001 # as reach
    """End of the piece of the same group that started last before each; `NEVER` for the first."""
    last = np.full(groups, NEVER, np.int64)
    before = np.empty(len(end), np.int64)
    for i in range(len(end)):
        before[i] = last[group[i]]
        last[group[i]] = end[i]
    return before


def in_windows(trace: Trace, rows: Array, found: Sequence[Window]) -> tuple[Array, Array]:
    """Which of these nodes start in windows of their rank.

    Returns
    -------
    place, window
        Positions in `rows`, and the number of the window; once for each window that it starts in.
    """
    ts, rank = trace.array("ts")[rows], trace.array("rank")[rows]
    places, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for number, window in enumerate(found):
        low, high = np.searchsorted(rank, [window.rank, window.rank + 1])
        mine = ts[low:high]
        # the whole of a rank ends with its last work, which may begin there and take no time
        until = window.end_ns + (window.iteration < 0)
        first, stop = low + np.searchsorted(mine, np.array([window.start_ns, until]))
        here = np.arange(first, max(first, stop))
        places.append(here)
        numbers.append(np.full(len(here), number, np.int64))
    return np.concatenate(places), np.concatenate(numbers)


def overlapping(
    lists: tuple[Array, Array], start: Array, end: Array, rank: Array, found: Sequence[Window]
) -> tuple[Array, Array]:
    """Which stretches of time overlap which windows of their rank.

    Parameters
    ----------
    lists
        The stretches by what they are of, as `gather.places` gives them: both starts and ends ascend
        within one of these.
    start, end, rank
        Of each stretch.
    found
        Windows in order of rank.

    Returns
    -------
    at, window
        Positions of stretches, and numbers of windows; one each for every pair.
    """
    first, place = lists
    ranks, begins, ends = (
        np.array([getattr(window, name) for window in found], np.int64)
        for name in ("rank", "start_ns", "end_ns")
    )
    none = np.zeros(0, np.int64)
    at, numbers = [none], [none]
    for low, high in zip(first[:-1].tolist(), first[1:].tolist(), strict=True):
        if low == high:
            continue
        mine = place[low:high]
        here = slice(*np.searchsorted(ranks, rank[mine[0]] + np.arange(2)))
        since = np.searchsorted(end[mine], begins[here], "right")
        count = np.maximum(np.searchsorted(start[mine], ends[here], "left") - since, 0)
        nth = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        at.append(mine[np.repeat(since, count) + nth])
        numbers.append(np.repeat(np.arange(here.start, here.stop), count))
    return np.concatenate(at), np.concatenate(numbers)


def groups(trace: Trace, rows: Array, by: str, further: dict[str, Array | pa.Array]) -> Groups:
    """Groups of nodes as `grouping.of`, told apart by further columns too.

    Parameters
    ----------
    trace, rows, by
        As of `grouping.of`; what is named in `further` may stand in `by` and is taken from there.
    further
        A column for each: numbers, -1 for unknown, or an Arrow dictionary.
    """
    names = [name.strip() for name in by.split(",") if name.strip()]
    plain_by = ",".join(name for name in names if name not in further)
    plain = grouping.of(trace, rows, plain_by)
    if not further:
        return plain
    codes = [np.asarray(_codes(column), np.int64) for column in further.values()]
    first, code = gather.distinct(plain.code, *codes)
    order = np.lexsort((*(c[first] for c in reversed(codes)), plain.code[first]))
    number = np.empty(len(first), np.int64)
    number[order] = np.arange(len(first))
    keys = arrow.take(plain.keys, plain.code[first][order])
    if not grouping.grains(plain_by):
        keys = keys.drop_columns(["job"])
    columns = {name: keys[name] for name in keys.column_names}
    columns |= {name: _values(column, first[order]) for name, column in further.items()}
    return grouping.Groups(number[code], pa.table(columns))


def _codes(column: Array | pa.Array) -> Array:
    return arrow.numbers(column, -1) if isinstance(column, pa.Array) else column


def _values(column: Array | pa.Array, rows: Array) -> pa.Array:
    if isinstance(column, pa.Array):
        taken = arrow.take(column, rows)
        return taken.dictionary_decode() if pa.types.is_dictionary(taken.type) else taken
    used = np.asarray(column, np.int64)[rows]
    return arrow.array(used.astype(np.int32), mask=used < 0)


def chosen(option: str, text: str, known: Collection[str]) -> str:
    """A word that an option may be.

    Raises
    ------
    UsageError
        It is none of these.
    """
    if text not in known:
        raise UsageError(f"{option}={text}: there is no such", hint=_there_are(known))
    return text


def chosen_compat(text: str, known: Collection[str]) -> str:
    """The tool whose definitions are asked for.

    Raises
    ------
    NoSuchDefinitionsError
        It is none of these.
    """
    if text not in known:
        raise NoSuchDefinitionsError(f"compat={text}: there is no such", hint=_there_are(known))
    return text


def _there_are(known: Collection[str]) -> str:
    return f"there are {', '.join(repr(word) for word in known)}"
