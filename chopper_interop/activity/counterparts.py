"""The same operation in other training steps and on other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import arrow, gather, numbered
from chopper_interop.columns.compiled import jit
from chopper_interop.columns.members import is_any
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import GPU_WORK

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

ACROSS = ("iterations", "ranks", "both")
_PLACE = ("step_part", "phase", "layer")
"""What else tells operations of one name apart, where it is known."""
_FEW = 40


def of(trace: Trace, *, across: str = "iterations") -> Array:
    """A number for each node that it shares with its counterparts; -1 of what is in no step.

    Counterparts have the same name, called by the same name (of GPU work: launched from there), for
    the same layer and phase, on the same lane (of another rank: the lane of its kind that was used
    so early), and are the same one of those within their rank and step. What has not one in each
    step so has them by less of this, if that gives one in each.

    Parameters
    ----------
    trace
        Any trace. Without training steps no node has counterparts.
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
    return trace.kept(f"counterparts.{across}", lambda of: _of(of, across))


def _of(trace: Trace, across: str) -> Array:
    group = np.full(trace.nodes.num_rows, -1, np.int64)
    if "iteration" not in trace.nodes.column_names:
        return group
    step = arrow.numbers(trace.nodes["iteration"], -1)
    rows = np.flatnonzero(step >= 0)
    if not rows.size:
        return group
    step, rank = step[rows].astype(np.int64), trace.array("rank")[rows].astype(np.int64)
    same = [] if across == "both" else [rank if across == "iterations" else step]
    group[rows] = _matched(_keys(trace, rows, step, rank), same, rank, step)
    return group


def medians(
    values: Array,
    group: Array,
    *,
    counts: Array | None = None,
    apart: Array | None = None,
    between: bool = False,
) -> tuple[Array, Array]:
    """Median of the members of each one's group, an integer.

    Parameters
    ----------
    values
        A number each.
    group
        Which are together, numbers from 0 on; -1 is alone.
    counts
        Whose numbers count; those of all if None.
    apart
        A number each: those who share it do not count for each other. So with steps as numbers it is
        the median of the other steps.
    between
        Of two in the middle what is half way, rounded down; else the lower.

    Returns
    -------
    median
        One for each, whether its own number counts or not; its own number where nobody's counts.
    members
        How many counted.
    """
    label = np.full(len(group), -1, np.int64) if apart is None else apart.astype(np.int64)
    used = group >= 0 if counts is None else (group >= 0) & counts
    size = int(group.max(initial=-1)) + 1
    rows = np.flatnonzero(used)
    first, place = gather.places(group[rows], size)
    mine = np.flatnonzero(group >= 0)
    asked, of_group = gather.places(group[mine], size)
    values = np.ascontiguousarray(values, np.int64)
    median, members = values.copy(), np.zeros(len(group), np.int64)
    member = rows[place]
    ascend(values, first, member)
    _medians(values, label, first, member, asked, mine[of_group], between, median, members)
    return median, members


@jit
def _medians(  # noqa: C901, PLR0913, PLR0917 # columns
    values: Array,
    label: Array,
    first: Array,
    member: Array,
    asked: Array,
    mine: Array,
    between: bool,  # noqa: FBT001
    median: Array,
    members: Array,
) -> None:
    """Write the medians of the members of each group, who ascend, for those of it who ask."""
    for g in range(len(first) - 1):
        low, high = first[g], first[g + 1]
        for k in range(asked[g], asked[g + 1]):
            i = mine[k]
            if k > asked[g] and label[mine[k - 1]] == label[i]:  # neighbours often agree
                members[i] = members[mine[k - 1]]
                if members[i]:
                    median[i] = median[mine[k - 1]]
                continue
            other = 0
            for m in range(low, high):
                other += label[i] < 0 or label[member[m]] != label[i]
            members[i] = other
            seen = 0
            lower = np.int64(0)
            for m in range(low, high):
                if label[i] >= 0 and label[member[m]] == label[i]:
                    continue
                seen += 1
                if seen == (other + 1) // 2:
                    lower = values[member[m]]
                    median[i] = lower
                if seen == other // 2 + 1:
                    if between:
                        median[i] = lower + (values[member[m]] - lower) // 2
                    break


@jit
def ascend(values: Array, first: Array, member: Array) -> None:
    """Put the members of each group, ``member[first[k]:first[k + 1]]``, in order of their values."""
    for g in range(len(first) - 1):
        low, high = first[g], first[g + 1]
        if high - low > _FEW:
            part = member[low:high].copy()
            member[low:high] = part[np.argsort(values[part])]
            continue
        for k in range(low + 1, high):
            moved = member[k]
            m = k
            while m > low and values[member[m - 1]] > values[moved]:
                member[m] = member[m - 1]
                m -= 1
            member[m] = moved


def _matched(keys: list[list[Array]], same: list[Array], rank: Array, step: Array) -> Array:
    """Groups by the first of the keys; of what is not in all steps so, by others if it is then."""
    count = len(rank)
    ways = same or [np.zeros(count, np.int64)]
    _, where = gather.distinct(rank, step)
    first, _ = gather.distinct(where)
    _, way = gather.distinct(*ways)
    expected = np.bincount(way[first])[way]
    group = np.full(count, -1, np.int64)
    left = np.arange(count)
    known = 0
    for key in keys:
        _, what = gather.distinct(*(column[left] for column in key))
        number = _how_manyth(what, where[left])
        _, found = gather.distinct(what, way[left], number)
        whole = np.bincount(found)[found] == expected[left]
        taken = whole | (group[left] < 0)
        group[left[taken]] = known + found[taken]
        known += int(found.max()) + 1
        left = left[~whole]
        if not left.size:
            break
    return group


def _keys(trace: Trace, rows: Array, step: Array, rank: Array) -> list[list[Array]]:
    """What counterparts have in common, and less and less of it.

    A range that ends with a call may as well end before it by the profiler's clock, and programs
    take streams from a pool in turns.
    """
    stem = _stems(trace, rows, step)
    caller = trace.array("parent")[rows]
    call = trace.launch[rows]
    launched = call >= 0
    caller[launched] = trace.array("parent")[call[launched]]
    named = np.full(trace.nodes.num_rows + 1, -1, np.int64)  # the last one of what has no caller
    named[rows] = stem
    names = [name for name in _PLACE if name in trace.nodes.column_names]
    place = [arrow.numbers(trace.nodes[n], -1)[rows].astype(np.int64) for n in names]
    lane = _roles(trace, rows, rank)
    return [
        [stem, lane, *place, named[caller]],
        [stem, lane, *place],
        [stem, *place],
        [stem],
    ]


def _stems(trace: Trace, rows: Array, step: Array) -> Array:
    """Names as numbers; those that end with the number of their step, without it."""
    names = trace.names()
    name = trace.array("name")[rows].astype(np.int64)
    without, number = numbered.split(names)
    texts: dict[str, int] = {}
    stem = [texts.setdefault(text, len(names) + len(texts)) for text in without]
    return np.where(number[name] == step, np.array(stem, np.int64)[name], name)


def _roles(trace: Trace, rows: Array, rank: Array) -> Array:
    """Which of its rank's lanes of a kind each node is on, in the order in which steps use them."""
    lane = trace.array("lane")[rows]
    work = is_any(trace.array("kind")[rows], GPU_WORK)
    first, code = gather.distinct(lane, rank, work)
    kind = trace.array("kind", "lanes")[lane[first]]
    order = np.lexsort((trace.array("ts")[rows[first]], work[first], kind, rank[first]))
    key = np.stack([rank[first], kind, work[first]])[:, order]
    begins = np.ones(len(order), bool)
    begins[1:] = (key[:, 1:] != key[:, :-1]).any(axis=0)
    since = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    role = np.empty(len(order), np.int64)
    role[order] = np.arange(len(order)) - since
    return (role * 2 + work[first])[code] * 16 + trace.array("kind", "lanes")[lane]


def _how_manyth(what: Array, where: Array) -> Array:
    """How many like it were in the same step of the rank before each."""
    _, code = gather.distinct(what, where)
    first, place = gather.places(code, int(code.max(initial=-1)) + 1)
    number = np.empty(len(what), np.int64)
    number[place] = np.arange(len(what)) - first[code[place]]
    return number
