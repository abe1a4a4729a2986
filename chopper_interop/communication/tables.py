"""Tables of communication that is matched across ranks: by instance, by group, and by rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import grouping
from chopper_interop.columns import arrow, gather
from chopper_interop.communication import times as collective_times
from chopper_interop.communication.times import known
from chopper_interop.edges import collectives
from chopper_interop.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.communication.times import Times
    from chopper_interop.trace import Trace

_WORST = 0.95


def each(trace: Trace, times: Times, member: Array) -> pa.Table:
    """One row a collective of which some member was asked about, and one an unmatched member.

    Parameters
    ----------
    trace
        Whose communication it is.
    times
        As `communication.times.of` gives it.
    member
        Which members were asked about.
    """
    them = times.instances
    used = gather.used(times.instance[member])
    alone = np.flatnonzero(member & (times.instance < 0))
    blank = np.full(len(alone), -1, np.int64)

    def both(of_instances: Array, of_members: Array = blank) -> Array:
        return np.concatenate([of_instances[used], of_members])

    place = np.concatenate([them.last[used], alone])
    rows = times.row[place]
    wait, most = _waits(times, np.ones(len(times.row), np.bool_))
    put, got = (collectives.numbers(trace, c, times.row[alone]) for c in ("bytes", "out_bytes"))
    speeds = [both(speed, blank * np.nan) for speed in collective_times.bandwidths(times)]
    kind = both(them.kind, times.kind[alone])
    named = grouping.of(trace, rows, "group,iteration")
    start = both(them.start, times.start[alone])
    columns = {
        "instance": known(both(them.number)),
        "collective": _texts(times.kinds, kind),
        "group": arrow.take(named.keys["group"], named.code),
        "iteration": arrow.take(named.keys["iteration"], named.code),
        "rank": known(np.concatenate([used * 0 - 1, times.rank[alone]])),
        "size_bytes": known(both(them.size, times.size[alone])),
        "put_bytes": known(both(them.put, put)),
        "got_bytes": known(both(them.got, got)),
        "ranks": arrow.array(both(them.ranks, blank * 0 + 1)),
        "group_size": known(both(them.group_size)),
        "hosts": known(both(them.hosts)),
        "start_ns": arrow.array(start),
        "last_start_ns": arrow.array(both(them.last_start, times.start[alone])),
        "end_ns": arrow.array(both(them.end, (times.start + times.dur)[alone])),
        "skew_ns": known(both(them.last_start - them.start)),
        "late_rank": known(both(np.where(them.late_by > 0, times.rank[them.last], -1))),
        "late_by_ns": known(both(them.late_by)),
        "wait_ns": known(both(wait)),
        "wait_max_ns": known(both(most)),
        "transfer_ns": known(both(them.transfer)),
        "transfer_min_ns": known(both(them.transfer_min)),
        "transfer_p50_ns": known(both(them.transfer_median)),
        "algbw_gbps": _reals(speeds[0]),
        "busbw_gbps": _reals(speeds[1]),
        "uncertainty_ns": known(both(them.uncertainty)),
    }
    return arrow.take(pa.table(columns), np.argsort(start, kind="stable"))


def _waits(times: Times, member: Array) -> tuple[Array, Array]:
    """Sum and most of what is known of the waits of each instance's members; -1 if nothing."""
    count = len(times.instances)
    mine = member & (times.instance >= 0) & (times.wait >= 0)
    total, most = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    np.add.at(total, times.instance[mine], times.wait[mine])
    np.maximum.at(most, times.instance[mine], times.wait[mine])
    return np.where(most >= 0, total, -1), most


def grouped(
    trace: Trace, times: Times, member: Array, names: Sequence[str], iteration: Array | None
) -> pa.Table:
    """One row a group of members.

    Parameters
    ----------
    trace, times, member
        As of `each`.
    names
        By what: names of `grouping.GRAINS`, and ``bytes``, ``hosts``, ``instance``.
    iteration
        Of each member the step of its window, where steps were asked about.
    """
    which = np.flatnonzero(member)
    code, keys = _groups(trace, times, which, names, iteration)
    count = keys.num_rows
    instance, wait, dur = times.instance[which], times.wait[which], times.dur[which]
    matched, told = instance >= 0, wait >= 0
    pair, _ = gather.distinct(code[matched], instance[matched])
    owner, those = code[matched][pair], instance[matched][pair]
    them = times.instances
    algbw, busbw = (speed[those] for speed in collective_times.bandwidths(times))
    fast, shared = ~np.isnan(algbw), ~np.isnan(busbw)
    transfer = _Percentiles(owner, them.transfer[those], count)
    skew = _Percentiles(owner, (them.last_start - them.start)[those], count)
    waits = _Percentiles(code[told], wait[told], count)
    durations = _Percentiles(code, dur, count)
    bus = _Percentiles(owner[shared], busbw[shared], count)
    is_late = them.late_by[those] > 0
    late, share = _latest(owner, times.rank[them.last[those]], is_late, count)
    uncertain = them.uncertainty[those]
    columns = {
        "collectives": arrow.array(np.bincount(owner, minlength=count)),
        "members": arrow.array(np.bincount(code, minlength=count)),
        "unmatched": arrow.array(np.bincount(code[~matched], minlength=count)),
        "duration_ns": durations.total(),
        "duration_p50_ns": durations.at(0.5),
        "duration_p95_ns": durations.at(_WORST),
        "wait_ns": waits.total(),
        "wait_max_ns": waits.at(1),
        "transfer_ns": transfer.total(),
        "transfer_min_ns": transfer.at(0),
        "transfer_p50_ns": transfer.at(0.5),
        "transfer_p95_ns": transfer.at(_WORST),
        "transfer_max_ns": transfer.at(1),
        "skew_p50_ns": skew.at(0.5),
        "skew_max_ns": skew.at(1),
        "size_bytes": _Percentiles(owner[fast], them.size[those][fast], count).total(),
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
    trace: Trace, times: Times, which: Array, names: Sequence[str], iteration: Array | None
) -> tuple[Array, pa.Table]:
    """Code of each member's group, and their keys, ascending."""
    more: dict[str, Callable[[], Array]] = {
        "instance": lambda: _of_instance(times, times.instances.number, which),
        "hosts": lambda: _of_instance(times, times.instances.hosts, which),
        "bytes": lambda: _bucket(_of_instance(times, times.instances.size, which, times.size)),
    }
    plain = [name for name in names if name not in more and name != "job"]
    for name in plain:
        if name not in grouping.GRAINS:
            there = ", ".join((*grouping.GRAINS, *more))
            raise UsageError(
                f"by={','.join(names)}: there is no {name!r}", hint=f"there are {there}"
            )
    extra = {name: make() for name, make in more.items() if name in names}
    if iteration is not None:
        plain = [name for name in plain if name != "iteration"]
        extra = {"iteration": iteration[which], **extra}
    found = grouping.of(trace, times.row[which], ",".join(plain))
    keys = {name: found.keys[name] for name in found.keys.column_names if plain or not extra}
    columns = {"": found.code, **extra}
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
            {name: known(codes)} if name else {n: arrow.take(k, codes) for n, k in keys.items()}
        )
    return number[code], pa.table(shown)


def _of_instance(times: Times, values: Array, which: Array, alone: Array | None = None) -> Array:
    """What is known of each member's instance; of unmatched ones, of themselves."""
    instance = times.instance[which]
    own = alone[which] if alone is not None else np.full(len(which), -1, np.int64)
    return np.where(instance >= 0, np.append(values, -1)[instance], own)


def _bucket(size: Array) -> Array:
    """Powers of two that sizes are not below; 0 and unknown (-1) as they are."""
    _, exponent = np.frexp(np.maximum(size, 1).astype(np.float64))
    power = np.left_shift(np.int64(1), np.minimum(exponent - 1, 62).astype(np.int64))
    power = np.where(power > size, power >> 1, power)  # floats round up just below a power
    return np.where(size > 0, power, size)


class _Percentiles:
    """Values by group, null for groups without any."""

    def __init__(self, code: Array, value: Array, count: int) -> None:
        order = np.argsort(value, kind="stable")
        starts, self.value = gather.lists(code[order], value[order], count)
        self.first, self.count = starts[:-1], np.diff(starts)

    def at(self, share: float) -> Any:
        """The smallest value that so many are not above (nearest rank)."""
        nth = np.maximum(np.ceil(share * self.count).astype(np.int64) - 1, 0)
        none = self.count == 0
        padded = np.append(self.value, self.value.dtype.type(0))
        return arrow.array(padded[np.where(none, -1, self.first + nth)], mask=none)

    def total(self) -> Any:
        """Sums; integers stay exact."""
        upto = np.append(np.zeros(1, self.value.dtype), np.cumsum(self.value))
        total = upto[self.first + self.count] - upto[self.first]
        return arrow.array(total, mask=self.count == 0)


def _latest(owner: Array, rank: Array, is_late: Array, count: int) -> tuple[Any, Any]:
    """Which rank came last most often in each group (of equals the lowest), and in what share of all.

    Where several came last at once, none of them was late.
    """
    members = np.bincount(owner, minlength=count)
    owner, rank = owner[is_late], rank[is_late]
    first, code = gather.distinct(owner, rank)
    often = np.bincount(code, minlength=len(first))
    order = np.lexsort((-rank[first], often, owner[first]))
    best = np.full(count, -1, np.int64)
    best[owner[first][order]] = order  # of a group's the last is written last
    none = best < 0
    late = np.append(rank[first], -1)[best]
    share = np.append(often, 0)[best] / np.maximum(members, 1)
    return arrow.array(late, mask=none), arrow.array(share, mask=none)


def _texts(values: Sequence[str], code: Array) -> Any:
    return arrow.dictionary(code, values, mask=code < 0).cast(pa.string())


def _reals(values: Array) -> Any:
    return arrow.array(values, mask=np.isnan(values))
