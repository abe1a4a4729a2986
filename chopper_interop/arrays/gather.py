"""Rows of columns, distinct, grouped or in order of a graph: what Arrow and numpy lack.

Grouping has one shape throughout. Rows have a group number from 0 to n - 1; what belongs to
group g is the slice ``[offsets[g]:offsets[g + 1]]`` of a second array::

    group    2 0 2 1 0        of rows 0 to 4
    offsets  0 2 3 5          n + 1 entries
    rows     1 4 | 3 | 0 2    group 0, 1, 2
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from chopper_interop.arrays import Array, arrow
from chopper_interop.arrays.compiled import jit, jit_in_place

_SLOTS_PER_ROW = 4
"""Distinct rows are found with a table of at most so many slots a row, else with hashes. Chosen:
more would take memory that is hardly filled, fewer would hash what a table does faster."""
_MIN_SLOTS = 1024
"""A table so small is worth it for any number of rows (chosen: 8 KiB)."""
_FEW_ROWS = 256
"""Rows up to which a dictionary of Python's is quicker than Arrow's: of three columns, measured, 8 rows take
15 µs and not 150, 256 rows 60 µs and not 190."""
_MAX_KEYS = 1 << 62
"""Possible distinct rows up to which one number stands for a row: 64 bits with a sign hold it."""
_FEW_MEMBERS = 8
"""Members up to which comparing with each is quicker than `numpy.isin`: measured, 4 µs a member less than
its 40 µs for few values, and as fast for many. Bytes that are looked up in a table instead take ten times as long."""
_ROWS_PER_RUN = 4
"""Rows of a run of equal ones from which on runs are numbered in place of rows (chosen: five of a thread follow each other in
real traces, and finding runs takes a twentieth of numbering rows)."""
_BYTES = 256
"""Values of a column of kinds, for which a table is the quickest test of many members."""
_COPIED_AT_ONCE = 1 << 25
"""Bytes of ranges that a call of a loop copies, during which an interrupt waits (chosen: a tenth of a second of a busy machine)."""


def distinct(*columns: Array) -> tuple[Array, Array]:
    """Distinct rows of integer columns.

    Parameters
    ----------
    columns
        At least one, all of the same length.

    Returns
    -------
    first
        Row of the first occurrence of each distinct row, in order of occurrence.
    code
        For each row, the number of its distinct row: an index of `first`.

    Examples
    --------
    ``distinct([7, 5, 7], [1, 1, 1])`` gives ``[0, 1]`` and ``[0, 1, 0]``.
    """
    columns = tuple(map(_integers, columns))
    count = len(columns[0])
    slots, is_few = _SLOTS_PER_ROW * count + _MIN_SLOTS, count <= _FEW_ROWS
    key, size = _combined_keys(columns, slots if is_few else _MAX_KEYS)
    if 0 < size <= slots:
        first, code = np.empty(min(size, count), np.int64), np.empty(count, np.int64)
        used = _distinct_keys(key, np.full(size, -1, np.int64), first, code)
        return first[:used].copy(), code
    if is_few:
        return _distinct_few(columns)
    columns = (key,) if size else columns  # each of several would be encoded, and then the pairs
    begins = _run_starts(columns)
    if _ROWS_PER_RUN * len(begins) <= count:
        first, code = distinct(*(column[begins] for column in columns))
        return begins[first], np.repeat(code, np.diff(begins, append=count))
    code = np.zeros(count, np.int64)
    for i, column in enumerate(columns):
        encoded = arrow.encoded(arrow.array(np.asarray(column, np.int64)))
        if i:
            both = code * len(encoded.dictionary) + arrow.to_numpy(encoded)
            encoded = arrow.encoded(arrow.array(both))
        code = arrow.to_numpy(encoded).astype(np.int64)
    # codes are given in order of occurrence, so that each is greater than all before its first
    first = np.flatnonzero(np.diff(np.maximum.accumulate(code), prepend=-1))
    return first, code


def _integers(column: Array) -> Array:
    """A column of integers as it is, unless that takes 64 bits or it has no sign: then as int64."""
    column = np.asarray(column)
    narrow = column.dtype.kind == "i" and column.dtype.itemsize < np.int64().itemsize
    return column if narrow else column.astype(np.int64, copy=False)


def _run_starts(columns: Sequence[Array]) -> Array:
    """Rows that differ from the row before, and the first."""
    is_other = np.ones(len(columns[0]), np.bool_)
    is_other[1:] = columns[0][1:] != columns[0][:-1]
    for column in columns[1:]:
        is_other[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(is_other)


def _distinct_few(columns: Sequence[Array]) -> tuple[Array, Array]:
    """`distinct` of few rows: each of Arrow's calls takes longer than all of them in a dictionary."""
    number: dict[tuple[int, ...], int] = {}
    rows = zip(*(column.tolist() for column in columns), strict=True)
    code = np.array([number.setdefault(row, len(number)) for row in rows], np.int64)
    first = np.flatnonzero(np.diff(np.maximum.accumulate(code), prepend=-1)) if code.size else code
    return first, code


def unique(values: Array) -> Array:
    """Distinct values, ascending. numpy's own imports masked arrays for it, which takes a twentieth of a small conversion."""
    ascending = np.sort(values, axis=None)
    return ascending[np.append(True, ascending[1:] != ascending[:-1])[: len(ascending)]]


def among(values: Array, members: Array) -> Array:
    """Mark the values that are among some, such as rows among rows; `numpy.isin` sorts both where they are sparse."""
    return find(np.sort(members), values) >= 0


def unique_codes(codes: Array) -> Array:
    """Codes from 0 on that occur, ascending; for small numbers, such as codes of texts."""
    has_code = np.zeros(max(int(codes.max()), -1) + 1 if len(codes) else 0, np.bool_)
    _mark(np.ascontiguousarray(codes), has_code)
    return np.flatnonzero(has_code)


@jit_in_place
def _mark(codes: Array, has_code: Array) -> None:
    """Mark codes from 0 on. Compiled: numpy makes three arrays of millions of codes, and counts them."""
    for code in codes:
        if code >= 0:
            has_code[code] = True


def _combined_keys(columns: Sequence[Array], at_most: int) -> tuple[Array, int]:
    """One number for each row, below the size that is returned; size 0 if there would be more than so many.

    The values of a column are digits of a number whose base is the column's range. One column from 0 on is its own
    key, which must not be written.
    """
    count = len(columns[0])
    key: Array | None = None
    is_own = False
    size = min(count, 1)
    for column in columns if count else ():
        low, high = int(column.min()), int(column.max())
        size *= high - low + 1
        if size > at_most:
            return np.empty(0, np.int64), 0
        if high == low:
            continue
        if key is None:
            # a loop is compiled again for arrays with gaps, and for those that cannot be written
            key = np.require(column, np.int64, ("C", "W"))
            if low:
                key = key - low if key is column else np.subtract(key, low, out=key)
            is_own = key is not column
            continue
        if is_own:  # in place: a new array would cost as much in page faults
            key *= high - low + 1
        else:
            key, is_own = key * (high - low + 1), True
        key += column
        key -= low
    return np.zeros(count, np.int64) if key is None else key, size


@jit_in_place
def _distinct_keys(key: Array, code_of: Array, first: Array, code: Array) -> int:
    """`distinct` of keys, by a table with a slot of -1 for each possible key; return the number of `first`.

    Compiled: numpy needs the order of the first occurrences, and sorts for it. Arrays come from numpy, which asks for
    large pages: those that a loop makes take a page fault for each 4 KiB.
    """
    count = 0
    for row in range(len(key)):
        known = code_of[key[row]]
        if known < 0:
            known = code_of[key[row]] = count
            first[count] = row
            count += 1
        code[row] = known
    return count


def concatenate_ranges(buffers: Sequence[Array], starts: Array, at: Array, length: Array) -> Array:
    """Byte ranges of a text that lies in several buffers, one behind the other.

    Parameters
    ----------
    buffers, starts
        The text's pieces, and the offset in the text at which each begins.
    at, length
        The ranges, as offsets in the text; none crosses from one piece into the next.
    """
    target = np.cumsum(length) - length
    out = np.empty(int(np.sum(length)), np.uint8)
    piece_of = np.searchsorted(starts, at, "right") - 1
    for piece in np.unique(piece_of[length > 0]).tolist():  # of thousands, a rank's are in one
        rows = np.flatnonzero((piece_of == piece) & (length > 0))
        borders = np.flatnonzero(np.diff(target[rows] // _COPIED_AT_ONCE)) + 1
        for some in np.split(rows, borders):
            _copy(buffers[piece], at[some] - starts[piece], target[some], length[some], out)
    return out


@jit_in_place
def _copy(buffer: Array, source: Array, target: Array, length: Array, out: Array) -> None:
    """Copy byte ranges; compiled, as most are too short for a numpy call each."""
    for row in range(len(source)):
        for k in range(length[row]):
            out[target[row] + k] = buffer[source[row] + k]


def joined(parts: Sequence[Array]) -> Array:
    """Whole numbers of several arrays, one behind the other; none if there are no arrays."""
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def consecutive(first: Array, count: Array) -> Array:
    """Whole numbers from each `first` on, `count` of them, one run behind the other.

    Examples
    --------
    >>> consecutive(np.array([5, 0, 7]), np.array([2, 0, 3])).tolist()
    [5, 6, 7, 8, 9]
    """
    before = np.cumsum(count) - count
    return np.arange(int(count.sum())) + np.repeat(first - before, count)


def group_values(group: Array, values: Array, n: int) -> tuple[Array, Array]:
    """Values sorted by group: those of group g are ``values[offsets[g]:offsets[g + 1]]``.

    Parameters
    ----------
    group
        Number of each value's group, from 0 to n - 1.
    values
        As many values.
    n
        How many groups there are.

    Returns
    -------
    offsets, values
        `offsets` has n + 1 entries; within a group values keep their order.
    """
    offsets, rows = group_rows(group, n)
    return offsets, values[rows]


def group_rows(group: Array, n: int, dtype: type[np.integer] = np.int64) -> tuple[Array, Array]:
    """Rows of each group: those of group g are ``rows[offsets[g]:offsets[g + 1]]``, ascending.

    Parameters
    ----------
    group
        Number of each row's group, from 0 to n - 1.
    n
        How many groups there are.
    dtype
        Of both results; it can hold the number of rows.

    Returns
    -------
    offsets, rows
        `offsets` has n + 1 entries; see the picture at the head of this module.
    """
    offsets, rows = np.zeros(n + 1, dtype), np.empty(len(group), dtype)
    np.cumsum(np.bincount(group, minlength=n), dtype=dtype, out=offsets[1:])
    _counting_sort(np.ascontiguousarray(group), offsets[:-1].copy(), rows)
    return offsets, rows


@jit_in_place
def _counting_sort(group: Array, next_free: Array, rows: Array) -> None:
    """Write the rows sorted by group, in one pass: `next_free` is where the next row of each group goes."""
    for row in range(len(group)):
        rows[next_free[group[row]]] = row
        next_free[group[row]] += 1


def group_sums(group: Array, values: Array, n: int) -> Array:
    """Sum of the whole numbers of each group, exact.

    Parameters
    ----------
    group
        Number of each value's group, from 0 to n - 1.
    values
        Whole numbers.
    n
        How many groups there are.
    """
    return _sums(np.ascontiguousarray(group, np.int64), np.ascontiguousarray(values, np.int64), n)


@jit
def _sums(group: Array, values: Array, n: int) -> Array:
    """Sums of int64; `np.bincount` with weights would round them to doubles."""
    total = np.zeros(n, np.int64)
    for i in range(len(group)):
        total[group[i]] += values[i]
    return total


def blocked_by_cycles(offsets: Array, dependents: Array) -> Array:
    """Mark the nodes of a graph that can never start: those on cycles, and all behind them.

    Parameters
    ----------
    offsets, dependents
        Nodes that depend on node i: ``dependents[offsets[i]:offsets[i + 1]]``.
    """
    blocked = np.ones(len(offsets) - 1, np.bool_)
    blocked[topological_order(offsets, dependents)] = False
    return blocked


@jit
def topological_order(offsets: Array, dependents: Array) -> Array:
    """Nodes of a graph, each behind all that it depends on; those blocked by cycles are left out.

    Kahn's algorithm: `order` is its queue as well, as nodes leave it in the order of their
    entry. One pass over nodes and edges.

    Parameters
    ----------
    offsets, dependents
        Nodes that depend on node i: ``dependents[offsets[i]:offsets[i + 1]]``.
    """
    n = len(offsets) - 1
    missing = np.zeros(n, np.int32)  # dependencies of each node that are not in order yet
    for node in dependents:
        missing[node] += 1
    order = np.empty(n, np.int32)
    queued = 0
    for node in range(n):
        if missing[node] == 0:
            order[queued] = node
            queued += 1
    done = 0
    while done < queued:
        node = order[done]
        done += 1
        for e in range(offsets[node], offsets[node + 1]):
            missing[dependents[e]] -= 1
            if missing[dependents[e]] == 0:
                order[queued] = dependents[e]
                queued += 1
    return order[:queued]


def find(ascending: Array, wanted: Array) -> Array:
    """Place of the first value that equals each wanted one, by binary search; -1 where there is none.

    With -1 behind rows in that order, the places select them: ``np.append(rows, -1)[find(…)]``.

    Examples
    --------
    >>> import numpy as np
    >>> find(np.array([2, 5, 5, 9]), np.array([5, 1, 9, 10]))
    array([ 1, -1,  3, -1])
    """
    if not len(ascending):
        return np.full(len(wanted), -1, np.int64)
    at = np.searchsorted(ascending, wanted)
    np.minimum(at, len(ascending) - 1, out=at)
    at[ascending[at] != wanted] = -1
    return at


def preceding_rows(group: Array, time: Array, of_group: Array, at: Array) -> Array:
    """For each question the last row of its group that is not later; -1 if there is none.

    Parameters
    ----------
    group, time
        Rows.
    of_group, at
        Questions. Times may be any numbers, so that no key is made of group and time.
    """
    order = np.lexsort((time, group))
    rows = (np.ascontiguousarray(column[order], np.int64) for column in (group, time))
    questions = (np.ascontiguousarray(column, np.int64) for column in (of_group, at))
    return _preceding_rows(order, *rows, *questions)


# Compiled, as of millions of questions each is a search; numpy would sort rows and questions together.
@jit
def _preceding_rows(order: Array, group: Array, time: Array, of_group: Array, at: Array) -> Array:
    """`preceding_rows` of rows in the order of group and time; `order` is what is returned of them."""
    preceding = np.full(len(at), -1, np.int64)
    for i in range(len(at)):
        low, high = 0, len(order)  # rows before `low` are not later, those from `high` on are
        while low < high:
            k = (low + high) // 2
            if group[k] < of_group[i] or (group[k] == of_group[i] and time[k] <= at[i]):
                low = k + 1
            else:
                high = k
        if low and group[low - 1] == of_group[i]:
            preceding[i] = order[low - 1]
    return preceding


@jit
def running_max(group: Array, values: Array) -> Array:
    """Largest of the values so far in each row of rows of one group::

        group    0 0 0 1 1          result   2 5 5 1 3
        values   2 5 4 1 3

    Compiled: on one axis, as of `numpy.maximum.accumulate`, groups behind each other may be more than 64 bits hold.
    """
    result = values.copy()
    for i in range(1, len(values)):
        if group[i] == group[i - 1]:
            result[i] = max(result[i], result[i - 1])
    return result


def nearest_ancestor(node: Array, parent: Array, wanted: Array) -> Array:
    """Nearest of nodes and their ancestors that is wanted; -1 where there is none.

    Parameters
    ----------
    node
        Rows, -1 for none.
    parent
        Row of the parent of each row, -1 for none.
    wanted
        Mask of rows.

    Examples
    --------
    >>> import numpy as np
    >>> parent = np.array([-1, 0, 1, -1])
    >>> nearest_ancestor(np.array([2, 3, -1]), parent, np.array([True, False, False, False]))
    array([ 0, -1, -1])
    """
    node = node.astype(np.int64)
    while True:
        climbs = (node >= 0) & ~wanted[node]
        if not climbs.any():
            return node
        node[climbs] = parent[node[climbs]]


def is_any(values: Array, members: Iterable[int]) -> Array:
    """Mark the values that are one of `members`, such as kinds of nodes in ``GPU_WORK``.

    Parameters
    ----------
    values
        Numbers, of any shape.
    members
        Numbers or members of an `IntEnum`.

    Returns
    -------
    Array
        Truth values, of the shape of `values`.
    """
    numbers = [int(member) for member in members]
    if 0 < len(numbers) <= _FEW_MEMBERS:
        marks: Array = values == numbers[0]
        for number in numbers[1:]:
            marks |= values == number
        return marks
    if values.dtype != np.uint8:
        return np.isin(values, numbers)
    is_member = np.zeros(_BYTES, np.bool_)
    is_member[[number for number in numbers if 0 <= number < _BYTES]] = True
    return is_member[values]
