"""Counterparts: the same operation in other training steps and on other ranks."""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array, gather, name_stems
from chopper_interop.arrays.compiled import jit, jit_in_place
from chopper_interop.arrays.gather import is_any
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.trace import Trace

ACROSS = ("iterations", "ranks", "both")
_CONTEXT = ("step_part", "phase", "layer")
"""Columns that distinguish operations of one name as well, where they are known."""
_FEW = 40
"""Members up to which a group is sorted by insertion. Chosen: groups are as large as the job has steps
or ranks, mostly few, and for those a call of argsort costs more than the sorting."""


def counterpart_groups(trace: Trace, *, across: str = "iterations") -> Array:
    """Number of each node's group of counterparts; -1 of nodes in no step.

    Counterparts have the same name, are called by a node of the same name (of GPU work: launched
    from there), for the same layer and phase, and on the same lane (on another rank: on its lane of
    that kind that is as early in the order of first use). Of several such nodes in a rank and step,
    the first goes with the first, and so on. Nodes that do not have a counterpart in each step by
    all of this are matched by less of it, if that gives one in each.

    Parameters
    ----------
    trace
        Without training steps no node has counterparts.
    across
        ``"iterations"``: of the same rank in other steps; ``"ranks"``: of other ranks in the same
        step; ``"both"``.

    Raises
    ------
    UsageError
        `across` is none of `ACROSS`.
    """
    if across not in ACROSS:
        raise UsageError(f"across={across}: that is unknown", hint=f"there are {', '.join(ACROSS)}")
    return trace.cached(f"counterparts.{across}", lambda of_trace: _match_all(of_trace, across))


def _match_all(trace: Trace, across: str) -> Array:
    """Groups of counterparts as `counterpart_groups`."""
    group = np.full(trace.nodes.num_rows, -1, np.int64)
    step = trace.integers("iteration")
    rows = np.flatnonzero(step >= 0)
    if not rows.size:
        return group
    step, rank = step[rows].astype(np.int32), trace.array("rank")[rows]
    common = [] if across == "both" else [rank if across == "iterations" else step]
    group[rows] = _matched(_keys(trace, rows, step, rank), common, rank, step)
    return group


def group_medians(
    values: Array,
    group: Array,
    *,
    counts: Array | None = None,
    apart: Array | None = None,
    between: bool = False,
) -> tuple[Array, Array]:
    """Median of the values of each one's group, an integer.

    Parameters
    ----------
    values
        One integer each.
    group
        Number of each one's group from 0 on; -1 is in none.
    counts
        Mask of the values that count; all if None.
    apart
        A label each: values of the same label do not count for each other. With steps as labels it
        is the median of the other steps.
    between
        Of an even number, the middle of the two in the middle, rounded down; else the lower of them.

    Returns
    -------
    median
        One for each, whether its own value counts or not; its own value where none counts.
    members
        Number of values that counted.
    """
    label = np.full(len(group), -1, np.int64)
    if apart is not None:
        labelled = np.flatnonzero(apart >= 0)
        label[labelled] = gather.distinct(apart[labelled])[1]
    counted = np.flatnonzero(group >= 0 if counts is None else (group >= 0) & counts)
    size = int(group.max(initial=-1)) + 1
    first, position = gather.group_rows(group[counted], size)
    grouped = np.flatnonzero(group >= 0)
    starts, of_group = gather.group_rows(group[grouped], size)
    values = np.ascontiguousarray(values, np.int64)
    median, members = values.copy(), np.zeros(len(group), np.int64)
    member = counted[position]
    sort_members(values, first, member)
    _, by_label = gather.group_rows(label[member] + 1, int(label.max(initial=-1)) + 2)
    by_label = by_label[gather.group_rows(group[member[by_label]], size)[1]]
    _write_medians(
        values, label, first, member, starts, grouped[of_group], by_label, between, median, members
    )
    return median, members


@jit
def _write_medians(  # noqa: PLR0913, PLR0917 # columns
    values: Array,
    label: Array,
    first: Array,
    member: Array,
    starts: Array,
    row: Array,
    by_label: Array,
    between: bool,  # noqa: FBT001
    median: Array,
    members: Array,
) -> None:
    """Write medians of each group's members, whose values ascend, for all rows of the group.

    Compiled: the median without the values of one's own label is another one for each label.

    Parameters
    ----------
    values, label
        Of each row; label -1 is shared with none.
    first, member
        Rows that count in group g are ``member[first[g]:first[g + 1]]``, ascending by value.
    starts, row
        All rows of group g are ``row[starts[g]:starts[g + 1]]``.
    by_label
        Places of `member`, group by group in order of their labels, and of a label ascending.
    between
        As of `group_medians`.
    median, members
        Written here.
    """
    for g in range(len(first) - 1):
        low, high = first[g], first[g + 1]
        for k in range(starts[g], starts[g + 1]):
            i = row[k]
            if k > starts[g] and label[row[k - 1]] == label[i]:  # neighbours often agree
                members[i] = members[row[k - 1]]
                if members[i]:
                    median[i] = median[row[k - 1]]
                continue
            own, stop = low, low
            if label[i] >= 0:
                own = _first_of_label(label, member, by_label, low, high, label[i])
                stop = _first_of_label(label, member, by_label, own, high, label[i] + 1)
            count = high - low - (stop - own)
            members[i] = count
            if count:
                lower = _nth_but(by_label[own:stop], low, (count - 1) // 2)
                median[i] = values[member[lower]]
                if between:
                    upper = _nth_but(by_label[own:stop], low, count // 2)
                    median[i] += (values[member[upper]] - values[member[lower]]) // 2


@jit_in_place
def _first_of_label(
    label: Array, member: Array, by_label: Array, low: int, high: int, wanted: int
) -> int:
    """First of a group's places, which are in order of their members' labels, whose label is this or a higher one.

    Compiled: a search of each row's label among the members of its group.
    """
    while low < high:
        middle = (low + high) // 2
        if label[member[by_label[middle]]] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@jit_in_place
def _nth_but(own: Array, low: int, n: int) -> int:
    """Place from `low` on that has `n` others before it, not counting the places of `own`, which ascend.

    Compiled: each of those that are not behind it moves it by one.
    """
    place = low + n
    for other in own:
        if other <= place:
            place += 1
    return place


@jit
def sort_members(values: Array, first: Array, member: Array) -> None:
    """Sort the members of each group, ``member[first[k]:first[k + 1]]``, by their values in place.

    Compiled: one sort for each of many small groups.
    """
    for g in range(len(first) - 1):
        low, high = first[g], first[g + 1]
        if high - low > _FEW:
            part = member[low:high].copy()
            for k, moved in enumerate(np.argsort(values[part])):
                member[low + k] = part[moved]
            continue
        for k in range(low + 1, high):
            moved = member[k]
            m = k
            while m > low and values[member[m - 1]] > values[moved]:
                member[m] = member[m - 1]
                m -= 1
            member[m] = moved


def _matched(keys: list[list[Array]], common: list[Array], rank: Array, step: Array) -> Array:
    """Groups by the first of the keys; rows that are not in all steps by it, by a later one if so.

    Parameters
    ----------
    keys
        Sets of columns that counterparts have in common, the strictest first.
    common
        Columns that counterparts must have in common always: the rank, the step, or none.
    rank, step
        Of each row.
    """
    count = len(rank)
    _, rank_step = gather.distinct(rank, step)  # a number for each step of each rank
    first, _ = gather.distinct(rank_step)
    _, scope = gather.distinct(*(common or [np.zeros(count, np.int64)]))
    # a complete group has one row in each step of a rank that has the same common columns
    expected = np.bincount(scope[first])[scope]
    group = np.full(count, -1, np.int64)
    left: Array | slice = slice(None)  # without copies of all columns
    groups = 0
    for key in keys:
        _, key_code = gather.distinct(*(column[left] for column in key))
        nth = occurrences(key_code, rank_step[left])
        _, code = gather.distinct(key_code, scope[left], nth)
        complete = np.bincount(code)[code] == expected[left]
        assigned = complete | (group[left] < 0)
        of_left = group[left]
        of_left[assigned] = groups + code[assigned]
        group[left] = of_left
        groups += int(code.max()) + 1
        left = np.flatnonzero(~complete) if isinstance(left, slice) else left[~complete]
        if not left.size:
            break
    return group


def _keys(trace: Trace, rows: Array, step: Array, rank: Array) -> list[list[Array]]:
    """Columns that counterparts have in common, and fewer and fewer of them.

    A range that ends with a call may as well end before it by the profiler's clock, and programs
    take streams from a pool in turns; so caller and lane need not agree.
    """
    stem = _stems(trace, rows, step)
    caller = trace.array("parent")[rows]
    call = trace.launch[rows]
    launched = call >= 0
    caller[launched] = trace.array("parent")[call[launched]]
    node_stem = np.full(trace.nodes.num_rows + 1, -1, np.int32)  # the last: of no caller
    node_stem[rows] = stem
    context = [trace.integers(name, rows).astype(np.int32) for name in _CONTEXT if trace.has(name)]
    lane = _lane_roles(trace, rows, rank)
    return [
        [stem, lane, *context, node_stem[caller]],
        [stem, lane, *context],
        [stem, *context],
        [stem],
    ]


def _stems(trace: Trace, rows: Array, step: Array) -> Array:
    """Names as numbers; those that end with the number of their step, without it."""
    names = trace.names()
    name = trace.array("name")[rows]
    without, number = name_stems.split_numbers(names)
    texts: dict[str, int] = {}
    stem = [texts.setdefault(text, len(names) + len(texts)) for text in without]
    return np.where(number[name] == step, np.array(stem, np.int32)[name], name)


def _lane_roles(trace: Trace, rows: Array, rank: Array) -> Array:
    """Number of each node's lane among its rank's lanes of that kind, in order of first use in steps.

    Lanes with GPU work are numbered apart from those without; the kind is part of the number.
    """
    lane = trace.array("lane")[rows]
    work = is_any(trace.array("kind")[rows], GPU_WORK)
    first, code = gather.distinct(lane, rank, work)
    kind = trace.array("kind", "lanes")[lane[first]]
    order = np.lexsort((trace.array("ts")[rows[first]], work[first], kind, rank[first]))
    # lanes stand in order within each rank, kind and class: number them from 0 in each of these
    key = np.stack([rank[first], kind, work[first]])[:, order]
    begins = np.ones(len(order), bool)
    begins[1:] = (key[:, 1:] != key[:, :-1]).any(axis=0)
    since = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    role = np.empty(len(order), np.int32)
    role[order] = np.arange(len(order)) - since
    return (role * 2 + work[first])[code] * 16 + trace.array("kind", "lanes")[lane]


def occurrences(key: Array, rank_step: Array) -> Array:
    """Count the rows before each that have the same key in the same step of the rank."""
    _, code = gather.distinct(key, rank_step)
    first, row = gather.group_rows(code, int(code.max(initial=-1)) + 1)
    nth = np.empty(len(key), np.int64)
    nth[row] = np.arange(len(key)) - first[code[row]]
    return nth
