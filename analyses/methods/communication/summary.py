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
    position = np.flatnonzero(member)
    return summarize_ranks_by_step(times, position, np.zeros(len(position), np.int64)).get(0, [])


def summarize_ranks_by_step(
    times: CommunicationTimes, position: Array, step: Array
) -> dict[int, list[dict[str, Any]]]:
    """Figures of each rank, as `summarize_ranks` of the members of each step, in one pass over all steps.

    Parameters
    ----------
    position, step
        Pairs of a member and a number, not negative, of a step that it is of.

    Returns
    -------
    dict
        By step, ascending, the rows of its ranks, ascending.
    """
    instances = times.instances
    ranks = gather.unique(times.rank)
    code, count = np.searchsorted(ranks, times.rank), len(ranks)
    position, step = _distinct_pairs(position, step)
    instance = times.instance[position]
    used, used_step = _distinct_pairs(instance[instance >= 0], step[instance >= 0])
    # all members of the instances of a step, also those of other steps
    first, by_instance = gather.group_rows(times.instance + 1, len(instances) + 1)
    members = first[used + 2] - first[used + 1]
    shown = by_instance[gather.consecutive(first[used + 1], members)]
    shown_cell = np.repeat(used_step, members) * count + code[shown]
    own_cell = step * count + code[position]
    cells = gather.unique(np.append(shown_cell, own_cell))

    def sums(cell: Array, values: Array) -> Array:
        return gather.group_sums(np.searchsorted(cells, cell), values, len(cells))

    def counts(cell: Array) -> Array:
        return np.bincount(np.searchsorted(cells, cell), minlength=len(cells))

    late = used_step * count + code[instances.last[used]]
    is_late = instances.late_by[used] > 0
    certain = instances.late_by[used] > np.maximum(instances.uncertainty[used], 0)
    wait_known = times.wait[position] >= 0
    cause = code[times.waited_for[position]]
    blamed = (times.waited_for[position] >= 0) & (cause != code[position])
    pair, _ = gather.distinct(shown_cell, times.instance[shown])
    waiting = position[wait_known]
    columns = {
        "rank": ranks[cells % max(count, 1)],
        "collectives": counts(shown_cell[pair]),
        "times_last": counts(late[is_late]),
        "times_last_certain": counts(late[certain]),
        "caused_wait_ns": sums((step * count + cause)[blamed], times.wait[position[blamed]]),
        "wait_ns": sums(own_cell[wait_known], times.wait[waiting]),
        "duration_ns": sums(own_cell, times.dur[position]),
    }
    any_wait = counts(own_cell[wait_known]) > 0
    rows: dict[int, list[dict[str, Any]]] = {}
    all_values = zip(*(column.tolist() for column in columns.values()), strict=True)
    for of_step, known, values in zip(
        (cells // max(count, 1)).tolist(), any_wait.tolist(), all_values, strict=True
    ):
        row: dict[str, Any] = dict(zip(columns, values, strict=True))
        row["late_share"] = row["times_last"] / row["collectives"] if row["collectives"] else None
        row["wait_ns"] = row["wait_ns"] if known else None
        rows.setdefault(of_step, []).append(row)
    return rows


def _distinct_pairs(values: Array, step: Array) -> tuple[Array, Array]:
    first, _ = gather.distinct(values, step)
    return values[first], step[first]
