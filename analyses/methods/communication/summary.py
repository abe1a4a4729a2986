"""Figures of all communication of a trace, and of each rank: lateness and waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.arrays import Array, gather

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.communication.times import CommunicationTimes


def summarize(times: CommunicationTimes, member: Array) -> dict[str, Any]:
    """Figures of all collectives with a selected member, and of each rank.

    Parameters
    ----------
    member
        Mask of the selected members.
    """
    instances = times.instances
    used = gather.unique_codes(times.instance[member])
    matched = member & (times.instance >= 0)
    wait_known = member & (times.wait >= 0)
    uncertain, hosts = instances.uncertainty[used], instances.hosts[used]
    any_wait, any_used = bool(wait_known.any()), bool(used.size)
    return {
        "collectives": int(used.size),
        "members": int(np.count_nonzero(member)),
        "unmatched": int(np.count_nonzero(member & ~matched)),
        "incomplete": int(np.count_nonzero(instances.ranks[used] < instances.group_size[used])),
        "wait_unknown": int(np.count_nonzero(matched & ~wait_known)),
        "ended_before_awaited": int(np.count_nonzero(times.is_early & member)),
        "within_uncertainty": int(np.count_nonzero(instances.transfer[used] <= uncertain)),
        "within_a_host": int(np.count_nonzero(hosts == 1)),
        "across_hosts": int(np.count_nonzero(hosts > 1)),
        "duration_ns": int(times.dur[member].sum()),
        "wait_ns": int(times.wait[wait_known].sum()) if any_wait else None,
        "transfer_ns": int(instances.transfer[used].sum()) if any_used else None,
        "skew_max_ns": int((instances.last_start - instances.start)[used].max())
        if any_used
        else None,
        "uncertainty_ns": int(uncertain.max()) if (uncertain >= 0).any() else None,
        "by_rank": summarize_ranks(times, member),
    }


def summarize_ranks(times: CommunicationTimes, member: Array) -> list[dict[str, Any]]:
    """Number of times each rank came last, waiting that it caused to others, and its own waiting."""
    instances = times.instances
    used = gather.unique_codes(times.instance[member])
    of_used = np.zeros(len(instances) + 1, np.bool_)
    of_used[used] = True
    shown_instance = of_used[times.instance]
    first, code = gather.distinct(times.rank)
    count = len(first)

    def sums(which: Array, owner: Array, values: Array) -> Array:
        total = np.zeros(count, np.int64)
        np.add.at(total, owner[which], values[which])
        return total

    def counts(owner: Array) -> Array:
        return np.bincount(owner, minlength=count)

    late, wait_known = code[instances.last[used]], member & (times.wait >= 0)
    is_late = instances.late_by[used] > 0
    certain = instances.late_by[used] > np.maximum(instances.uncertainty[used], 0)
    cause = code[times.waited_for]
    blamed = member & (times.waited_for >= 0) & (cause != code)
    pair, _ = gather.distinct(code[shown_instance], times.instance[shown_instance])
    any_wait = counts(code[wait_known]) > 0
    columns = {
        "rank": times.rank[first],
        "collectives": counts(code[shown_instance][pair]),
        "times_last": counts(late[is_late]),
        "times_last_certain": counts(late[certain]),
        "caused_wait_ns": sums(blamed, cause, times.wait),
        "wait_ns": sums(wait_known, code, times.wait),
        "duration_ns": sums(member, code, times.dur),
    }
    shown = np.flatnonzero(counts(code[shown_instance | member]))
    rows = []
    for i in shown[np.argsort(times.rank[first][shown])].tolist():
        row: dict[str, Any] = {name: int(values[i]) for name, values in columns.items()}
        row["late_share"] = row["times_last"] / row["collectives"] if row["collectives"] else None
        row["wait_ns"] = row["wait_ns"] if any_wait[i] else None
        rows.append(row)
    return rows
