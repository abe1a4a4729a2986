"""Figures of all communication of a trace, and of each rank: who comes late, who waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns import gather

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.communication.times import Times


def of(times: Times, member: Array) -> dict[str, Any]:
    """Figures of all collectives of which some member was asked about, and of each rank."""
    them = times.instances
    used = gather.used(times.instance[member])
    matched = member & (times.instance >= 0)
    told = member & (times.wait >= 0)
    uncertain, hosts = them.uncertainty[used], them.hosts[used]
    any_told, any_used = bool(told.any()), bool(used.size)
    return {
        "collectives": int(used.size),
        "members": int(np.count_nonzero(member)),
        "unmatched": int(np.count_nonzero(member & ~matched)),
        "incomplete": int(np.count_nonzero(them.ranks[used] < them.group_size[used])),
        "wait_unknown": int(np.count_nonzero(matched & ~told)),
        "ended_before_awaited": int(np.count_nonzero(times.is_early & member)),
        "within_uncertainty": int(np.count_nonzero(them.transfer[used] <= uncertain)),
        "within_a_host": int(np.count_nonzero(hosts == 1)),
        "across_hosts": int(np.count_nonzero(hosts > 1)),
        "duration_ns": int(times.dur[member].sum()),
        "wait_ns": int(times.wait[told].sum()) if any_told else None,
        "transfer_ns": int(them.transfer[used].sum()) if any_used else None,
        "skew_max_ns": int((them.last_start - them.start)[used].max()) if any_used else None,
        "uncertainty_ns": int(uncertain.max()) if (uncertain >= 0).any() else None,
        "by_rank": by_rank(times, member),
    }


def by_rank(times: Times, member: Array) -> list[dict[str, Any]]:
    """How often each rank came last, the waiting that it caused to others, and its own."""
    them = times.instances
    used = gather.used(times.instance[member])
    of_used = np.zeros(len(them) + 1, np.bool_)
    of_used[used] = True
    there = of_used[times.instance]
    first, code = gather.distinct(times.rank)
    count = len(first)

    def sums(which: Array, owner: Array, values: Array) -> Array:
        total = np.zeros(count, np.int64)
        np.add.at(total, owner[which], values[which])
        return total

    def often(owner: Array) -> Array:
        return np.bincount(owner, minlength=count)

    late, told = code[them.last[used]], member & (times.wait >= 0)
    is_late = them.late_by[used] > 0
    certain = them.late_by[used] > np.maximum(them.uncertainty[used], 0)
    cause = code[times.waited_for]
    blamed = member & (times.waited_for >= 0) & (cause != code)
    pair, _ = gather.distinct(code[there], times.instance[there])
    waited = often(code[told]) > 0
    columns = {
        "rank": times.rank[first],
        "collectives": often(code[there][pair]),
        "times_last": often(late[is_late]),
        "times_last_certain": often(late[certain]),
        "caused_wait_ns": sums(blamed, cause, times.wait),
        "wait_ns": sums(told, code, times.wait),
        "duration_ns": sums(member, code, times.dur),
    }
    shown = np.flatnonzero(often(code[there | member]))
    rows = []
    for i in shown[np.argsort(times.rank[first][shown])].tolist():
        row: dict[str, Any] = {name: int(values[i]) for name, values in columns.items()}
        row["late_share"] = row["times_last"] / row["collectives"] if row["collectives"] else None
        row["wait_ns"] = row["wait_ns"] if waited[i] else None
        rows.append(row)
    return rows
