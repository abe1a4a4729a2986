"""Tables of communication that is matched across ranks: by instance, by group, and by rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import grouping
from chopper_interop.analyses.methods.communication import times as collective_times
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.communication.times import CommunicationTimes

_HIGH_QUANTILE = 0.95
"""Quantile of the columns ``*_p95_*``."""


def instance_rows(trace: Trace, times: CommunicationTimes, member: Array) -> pa.Table:
    """One row an instance with a selected member, and one for each unmatched selected member.

    Parameters
    ----------
    times
        Times of the trace's communication.
    member
        Mask of the selected members.
    """
    instances = times.instances
    used = gather.unique_codes(times.instance[member])
    alone = np.flatnonzero(member & (times.instance < 0))
    blank = np.full(len(alone), -1, np.int64)

    def both(of_instances: Array, of_members: Array = blank) -> Array:
        return np.concatenate([of_instances[used], of_members])

    rows = times.row[np.concatenate([instances.last[used], alone])]
    wait, longest = _waits(times, np.ones(len(times.row), np.bool_))
    put, got = (trace.integers(c, times.row[alone]) for c in ("bytes", "out_bytes"))
    speeds = [both(speed, blank * np.nan) for speed in collective_times.bandwidths(times)]
    kind = both(instances.kind, times.kind[alone])
    named = grouping.group_nodes(trace, rows, "group,iteration")
    start = both(instances.start, times.start[alone])
    columns = {
        "instance": arrow.negative_to_null(both(instances.number)),
        "collective": _texts(times.kinds, kind),
        "group": arrow.take(named.keys["group"], named.code),
        "iteration": arrow.take(named.keys["iteration"], named.code),
        "rank": arrow.negative_to_null(np.concatenate([used * 0 - 1, times.rank[alone]])),
        "size_bytes": arrow.negative_to_null(both(instances.size, times.size[alone])),
        "put_bytes": arrow.negative_to_null(both(instances.put, put)),
        "got_bytes": arrow.negative_to_null(both(instances.got, got)),
        "ranks": arrow.array(both(instances.ranks, blank * 0 + 1)),
        "group_size": arrow.negative_to_null(both(instances.group_size)),
        "hosts": arrow.negative_to_null(both(instances.hosts)),
        "start_ns": arrow.array(start),
        "last_start_ns": arrow.array(both(instances.last_start, times.start[alone])),
        "end_ns": arrow.array(both(instances.end, (times.start + times.dur)[alone])),
        "skew_ns": arrow.negative_to_null(both(instances.last_start - instances.start)),
        "late_rank": arrow.negative_to_null(
            both(np.where(instances.late_by > 0, times.rank[instances.last], -1))
        ),
        "late_by_ns": arrow.negative_to_null(both(instances.late_by)),
        "wait_ns": arrow.negative_to_null(both(wait)),
        "wait_max_ns": arrow.negative_to_null(both(longest)),
        "transfer_ns": arrow.negative_to_null(both(instances.transfer)),
        "transfer_min_ns": arrow.negative_to_null(both(instances.transfer_min)),
        "transfer_p50_ns": arrow.negative_to_null(both(instances.transfer_median)),
        "algbw_gbps": arrow.nan_to_null(speeds[0]),
        "busbw_gbps": arrow.nan_to_null(speeds[1]),
        "uncertainty_ns": arrow.negative_to_null(both(instances.uncertainty)),
    }
    return arrow.take(pa.table(columns), np.argsort(start, kind="stable"))


def _waits(times: CommunicationTimes, member: Array) -> tuple[Array, Array]:
    """Sum and maximum of the known waits of each instance's members; -1 if none is known."""
    count = len(times.instances)
    known = member & (times.instance >= 0) & (times.wait >= 0)
    total, longest = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    np.add.at(total, times.instance[known], times.wait[known])
    np.maximum.at(longest, times.instance[known], times.wait[known])
    return np.where(longest >= 0, total, -1), longest


def group_rows(
    trace: Trace,
    times: CommunicationTimes,
    member: Array,
    names: Sequence[str],
    iteration: Array | None,
) -> pa.Table:
    """One row a group of members.

    Parameters
    ----------
    trace, times, member
        As of `instance_rows`.
    names
        Keys: names of `grouping.GRAINS`, and ``bytes``, ``hosts``, ``instance``.
    iteration
        Step of each member's window, if steps were selected.
    """
    selected = np.flatnonzero(member)
    code, keys = _groups(trace, times, selected, names, iteration)
    count = keys.num_rows
    instance, wait, dur = times.instance[selected], times.wait[selected], times.dur[selected]
    matched, wait_known = instance >= 0, wait >= 0
    # each group has figures of its members, and of the instances that these are of, each once
    pair, _ = gather.distinct(code[matched], instance[matched])
    owner, number = code[matched][pair], instance[matched][pair]
    instances = times.instances
    algbw, busbw = (speed[number] for speed in collective_times.bandwidths(times))
    fast, shared = ~np.isnan(algbw), ~np.isnan(busbw)
    transfer = _Percentiles(owner, instances.transfer[number], count)
    skew = _Percentiles(owner, (instances.last_start - instances.start)[number], count)
    waits = _Percentiles(code[wait_known], wait[wait_known], count)
    durations = _Percentiles(code, dur, count)
    bus = _Percentiles(owner[shared], busbw[shared], count)
    is_late = instances.late_by[number] > 0
    late, share = _latest_rank(owner, times.rank[instances.last[number]], is_late, count)
    uncertain = instances.uncertainty[number]
    columns = {
        "collectives": arrow.array(np.bincount(owner, minlength=count)),
        "members": arrow.array(np.bincount(code, minlength=count)),
        "unmatched": arrow.array(np.bincount(code[~matched], minlength=count)),
        "duration_ns": durations.total(),
        "duration_p50_ns": durations.at(0.5),
        "duration_p95_ns": durations.at(_HIGH_QUANTILE),
        "wait_ns": waits.total(),
        "wait_max_ns": waits.at(1),
        "transfer_ns": transfer.total(),
        "transfer_min_ns": transfer.at(0),
        "transfer_p50_ns": transfer.at(0.5),
        "transfer_p95_ns": transfer.at(_HIGH_QUANTILE),
        "transfer_max_ns": transfer.at(1),
        "skew_p50_ns": skew.at(0.5),
        "skew_max_ns": skew.at(1),
        "size_bytes": _Percentiles(owner[fast], instances.size[number][fast], count).total(),
        "algbw_gbps": _Percentiles(owner[fast], algbw[fast], count).at(0.5),
        "busbw_gbps": bus.at(0.5),
        "busbw_min_gbps": bus.at(0),
        "busbw_max_gbps": bus.at(1),
        "late_rank": late,
        "late_share": share,
        "uncertainty_ns": _Percentiles(owner[uncertain >= 0], uncertain[uncertain >= 0], count).at(
            1
        ),
    }
    return pa.table({**{n: keys[n] for n in keys.column_names}, **columns})


def _groups(
    trace: Trace,
    times: CommunicationTimes,
    selected: Array,
    names: Sequence[str],
    iteration: Array | None,
) -> tuple[Array, pa.Table]:
    """Code of each member's group, and their keys, ascending."""
    more: dict[str, Callable[[], Array]] = {
        "instance": lambda: _instance_values(times, times.instances.number, selected),
        "hosts": lambda: _instance_values(times, times.instances.hosts, selected),
        "bytes": lambda: _bucket(
            _instance_values(times, times.instances.size, selected, times.size)
        ),
    }
    plain = [name for name in names if name not in more and name != "job"]
    grouping.parse_grains(",".join(names), more)
    extra = {name: make() for name, make in more.items() if name in names}
    if iteration is not None:
        plain = [name for name in plain if name != "iteration"]
        extra = {"iteration": iteration[selected], **extra}
    groups = grouping.group_nodes(trace, times.row[selected], ",".join(plain))
    keys = {name: groups.keys[name] for name in groups.keys.column_names if plain or not extra}
    columns = {"": groups.code, **extra}
    if iteration is not None:
        columns = {"iteration": columns.pop("iteration"), **columns}
    first, code = gather.distinct(*columns.values())
    order = np.lexsort([values[first] for values in reversed(columns.values())])
    number = np.empty(len(first), np.int64)
    number[order] = np.arange(len(first))
    shown: dict[str, Any] = {}
    for name, values in columns.items():
        codes = values[first][order]
        shown |= (
            {name: arrow.negative_to_null(codes)}
            if name
            else {n: arrow.take(k, codes) for n, k in keys.items()}
        )
    return number[code], pa.table(shown)


def _instance_values(
    times: CommunicationTimes, values: Array, selected: Array, unmatched: Array | None = None
) -> Array:
    """Value of each selected member's instance; of unmatched members their own value, or -1."""
    instance = times.instance[selected]
    own = np.full(len(selected), -1, np.int64) if unmatched is None else unmatched[selected]
    return np.where(instance >= 0, np.append(values, -1)[instance], own)


def _bucket(size: Array) -> Array:
    """Largest power of two up to each size; 0 and unknown (-1) stay."""
    _, exponent = np.frexp(np.maximum(size, 1).astype(np.float64))
    power = np.left_shift(np.int64(1), np.minimum(exponent - 1, 62).astype(np.int64))
    power = np.where(power > size, power >> 1, power)  # floats round up just below a power
    return np.where(size > 0, power, size)


class _Percentiles:
    """Values by group, null for groups without any."""

    def __init__(self, code: Array, value: Array, count: int) -> None:
        order = np.argsort(value, kind="stable")
        starts, self.value = gather.group_values(code[order], value[order], count)
        self.first, self.count = starts[:-1], np.diff(starts)

    def at(self, share: float) -> Any:
        """Smallest value of each group that at least this share is not above (nearest rank)."""
        nth = np.maximum(np.ceil(share * self.count).astype(np.int64) - 1, 0)
        empty = self.count == 0
        padded = np.append(self.value, self.value.dtype.type(0))
        return arrow.array(padded[np.where(empty, -1, self.first + nth)], mask=empty)

    def total(self) -> Any:
        """Sum of each group; integers stay exact."""
        upto = np.append(np.zeros(1, self.value.dtype), np.cumsum(self.value))
        total = upto[self.first + self.count] - upto[self.first]
        return arrow.array(total, mask=self.count == 0)


def _latest_rank(owner: Array, rank: Array, is_late: Array, count: int) -> tuple[Any, Any]:
    """Rank that came last most often in each group (of equals the lowest), and its share of all.

    Where several came last at once, none of them was late.
    """
    members = np.bincount(owner, minlength=count)
    owner, rank = owner[is_late], rank[is_late]
    first, code = gather.distinct(owner, rank)
    often = np.bincount(code, minlength=len(first))
    order = np.lexsort((-rank[first], often, owner[first]))
    best = np.full(count, -1, np.int64)
    best[owner[first][order]] = order  # the last of each group is written last and stays
    absent = best < 0
    late = np.append(rank[first], -1)[best]
    share = np.append(often, 0)[best] / np.maximum(members, 1)
    return arrow.array(late, mask=absent), arrow.array(share, mask=absent)


def _texts(values: Sequence[str], code: Array) -> Any:
    return arrow.dictionary(code, values).cast(pa.string())
