"""GPUs of a job side by side: telemetry of each, and how its work compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.analyses.methods.activity import selected_work, windows
from chopper_interop.analyses.methods.communication import stages
from chopper_interop.analyses.methods.communication import summary as collective_summary
from chopper_interop.analyses.methods.communication import times as collective_times
from chopper_interop.analyses.methods.communication.stage_times import StageTimes
from chopper_interop.analyses.methods.fleet import means as gpu_means
from chopper_interop.arrays import Array, gather, statistics
from chopper_interop.grouping import by_key
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.windows import Window
    from chopper_interop.analyses.methods.fleet.places import GpuPlace

    Row = dict[str, Any]

MEASURED = tuple(gpu_means.QUANTITIES)
"""Columns by telemetry."""
_LATE = ("rank", "collectives", "late_share", "times_last_certain", "caused_wait_ns")


def gpu_rows(
    trace: Trace, places: Sequence[GpuPlace], steps: str = "", ranks: str = ""
) -> list[Row]:
    """Each GPU of each rank in each of its windows, with how it differs from the others.

    Parameters
    ----------
    places
        Its GPUs, with `fleet.means.quantities` of telemetry.
    steps, ranks
        As of `windows.rank_windows`, the same that the windows of the places are of.

    Returns
    -------
    list
        Columns by name; what is not known is None or missing. `name` is what people call the GPU.
    """
    work = _Work(trace, places, steps, ranks)
    edge = not gpu_means.has_hotspot(places)
    result: list[Row] = []
    for place in places:
        means = gpu_means.window_means(place, edge=edge)
        for rank in place.gpu.ranks or (-1,):
            times = work.kernel_times(place, rank)
            for i, window in enumerate(place.windows):
                row: Row = {
                    name: statistics.finite_or_none(values[i])
                    for name, values in means.values.items()
                }
                row |= _place(place, rank, window)
                row |= {
                    "telemetry_ns": means.resolution_ns or None,
                    "source": means.source or None,
                }
                if rank >= 0:
                    row["kernel_time_ns"] = times.get(window.iteration, 0)
                result.append(row | work.delays_of_rank(rank, window.iteration))
    _compare(result, work.peers)
    return result


def _place(place: GpuPlace, rank: int, window: Window) -> Row:
    numbers = {"rank": rank, "device": place.device, "gpu_index": place.index}
    numbers["iteration"] = window.iteration
    known = {name: number if number >= 0 else None for name, number in numbers.items()}
    name = f"rank {rank}" if rank >= 0 else place.name
    return known | {"host": place.host or None, "name": name}


class _Work:
    """Work of ranks, by training step if steps are requested, else in total."""

    def __init__(self, trace: Trace, places: Sequence[GpuPlace], steps: str, ranks: str) -> None:
        self._trace = trace
        self.peers: dict[int, int] = {}
        self._leads: dict[tuple[int, int], Lead] = {}
        self._unit = np.full(trace.nodes.num_rows, _OUTSIDE, np.int64)
        self._late: dict[tuple[int, int], Row] = {}
        if not any(place.gpu.ranks for place in places):
            return
        chosen = selected_work.select_work(trace, steps, ranks)
        unit = _units(trace, chosen.rows, chosen.windows, stepped=bool(steps))
        self._unit[chosen.rows] = unit
        every = peer_groups(trace)
        self.peers = {rank: every[rank] for rank in windows.chosen_ranks(trace, ranks)}
        self._leads = rank_leads(trace, chosen.rows, unit, self.peers)
        self._late = _late(trace, chosen.windows, list(self.peers), stepped=bool(steps))

    def kernel_times(self, place: GpuPlace, rank: int) -> dict[int, int]:
        """Durations of a rank's kernels on a GPU, summed, by step."""
        if rank < 0:
            return {}
        piece = self._trace.rank_rows[rank]
        kernels = place.gpu.rows[slice(*np.searchsorted(place.gpu.rows, [piece.start, piece.stop]))]
        kernels = kernels[self._trace.array("kind")[kernels] == Kind.KERNEL]
        first, code = gather.distinct(self._unit[kernels])
        total = gather.group_sums(code, self._trace.array("dur")[kernels], len(first))
        return dict(zip(self._unit[kernels[first]].tolist(), total.tolist(), strict=True))

    def delays_of_rank(self, rank: int, unit: int) -> Row:
        """Leads and lateness of a rank."""
        lead = self._leads.get((rank, unit))
        result: Row = {}
        if lead is not None:
            result = {
                "lead_sum_ns": lead.total_ns, "lead_median_ns": lead.median_ns,
                "lead_kernels": lead.kernels, "last_kernels": lead.last,
            }  # fmt: skip
        return result | self._late.get((rank, unit), {})


_OUTSIDE = -2
"""Unit of what was not asked about."""


def _units(trace: Trace, rows: Array, chosen: Sequence[Window], *, stepped: bool) -> Array:
    """Step of each node, by what asked for it, else by where it starts; one for all otherwise."""
    if not stepped:
        return np.full(len(rows), windows.NO_STEP, np.int64)
    unit = trace.integers("iteration", rows)
    left = np.flatnonzero(unit < 0)
    if left.size:
        inside, window = windows.starting_in_windows(trace, rows[left], chosen)
        unit[left[inside]] = np.array([one.iteration for one in chosen], np.int64)[window]
    return unit


def _late(
    trace: Trace, chosen: Sequence[Window], ranks: Sequence[int], *, stepped: bool
) -> dict[tuple[int, int], Row]:
    """Count how often each rank comes last into collectives, by step."""
    times = collective_times.communication_times(trace)
    if stepped:
        position, of_window = windows.starting_in_windows(trace, times.row, chosen)
        step = np.array([w.iteration for w in chosen], np.int64)[of_window]
        by_step = collective_summary.summarize_ranks_by_step(times, position, step)
    else:
        member = np.isin(times.rank, ranks)
        by_step = {windows.NO_STEP: collective_summary.summarize_ranks(times, member)}
    return {
        (row["rank"], number): {name: row[name] for name in _LATE}
        for number, rows in by_step.items()
        for row in rows
        if row["collectives"]
    }


def _compare(rows: Sequence[Row], peers: dict[int, int]) -> None:
    """Put how each GPU differs from the others of its step into its row."""
    for same in grouped(rows, "iteration"):
        for name in MEASURED:
            (stem, unit), middle = parted(name), statistics.finite_median(values(same, name))
            for row in same:
                value = row.get(name)
                if value is None:
                    continue
                row[f"{stem}_difference_{unit}"] = value - middle
                if unit != "share" and middle > 0:
                    row[f"{stem}_ratio"] = value / middle
        for alike in by_key(same, lambda row: peers.get(row["rank"], 0)).values():
            times = values(alike, "kernel_time_ns")
            for row, others in zip(alike, statistics.medians_of_others(times), strict=True):
                own = row.get("kernel_time_ns")
                row["slowdown_factor"] = (
                    float(own / others) if own is not None and others > 0 else None
                )


def values(rows: Sequence[Row], name: str) -> Array:
    """A column; NaN for what is not known."""
    values = [row.get(name) for row in rows]
    return np.array([np.nan if value is None else value for value in values], float)


def grouped(rows: Sequence[Row], *names: str) -> list[list[Row]]:
    """Rows with equal values together, in order of occurrence."""
    return list(by_key(rows, lambda row: tuple(row.get(name) for name in names)).values())


def parted(name: str) -> tuple[str, str]:
    """A column's name without its unit, and that."""
    first, _, unit = name.rpartition("_")
    return first, unit


class Lead(NamedTuple):
    """Lead of a rank over the last of its peers.

    Parameters
    ----------
    kernels
        Number of its kernels that all peers have as well.
    total_ns, median_ns
        Over these, the time by which each started before the last rank's: sum and median (of an
        even number the lower).
    last
        Number of them that this rank was the last to start.
    """

    kernels: int
    total_ns: int
    median_ns: int
    last: int


def peer_groups(trace: Trace) -> dict[int, int]:
    """A number for each rank that it shares with those that do the same: its stage, else 0."""
    number_of = dict.fromkeys(trace.ranks, 0)
    if not stages.is_exchange(trace).any():
        return number_of
    for line in stages.find_pipelines(trace, StageTimes(trace).first_starts()):
        for number, same in enumerate(line.stages):
            number_of |= dict.fromkeys(same, number)
    return number_of


def rank_leads(
    trace: Trace, rows: Array, period: Array, peer: Mapping[int, int]
) -> dict[tuple[int, int], Lead]:
    """Leads of each rank in each period; of ranks alone there are none.

    Kernels are the same that have the same name and are the same one of that name in their training
    step (without steps, in their period). Names whose counts differ among peers are left out.

    Parameters
    ----------
    trace
        Ranks on one clock.
    rows
        Nodes; of these, kernels that compute count.
    period
        The step, or other period of time, that each belongs to.
    peer
        Number of each rank: those with equal numbers are compared.
    """
    kernel = trace.array("kind")[rows] == Kind.KERNEL
    rows, period = rows[kernel], period[kernel].astype(np.int64)
    step = trace.integers("iteration", rows) if trace.has("iteration") else period
    rank = trace.array("rank")[rows]
    ranks = sorted(peer)
    of_rank = np.array([peer[r] for r in ranks], np.int64)
    place = np.searchsorted(ranks, rank)
    result: dict[tuple[int, int], Lead] = {}
    for number in sorted(set(peer.values())):
        members = [r for r in ranks if peer[r] == number]
        of_group = np.flatnonzero(of_rank[place] == number)
        if len(members) > 1 and of_group.size:
            keys = (period[of_group], step[of_group], trace.array("name")[rows[of_group]])
            start = trace.array("ts")[rows[of_group]]
            result |= _of_peers(members, np.searchsorted(members, rank[of_group]), keys, start)
    return result


def _of_peers(
    ranks: list[int], place: Array, keys: tuple[Array, ...], start: Array
) -> dict[tuple[int, int], Lead]:
    """Leads of ranks that do the same; `place` is that of each kernel's rank among them."""
    count = len(ranks)
    first, code = gather.distinct(*keys)
    count_of_rank = np.bincount(code * count + place, minlength=len(first) * count).reshape(
        -1, count
    )
    is_everywhere = (count_of_rank == count_of_rank[:, :1]).all(axis=1)
    used = np.flatnonzero(is_everywhere[code])
    key = place[used] * len(first) + code[used]
    order = used[gather.group_rows(key, count * len(first))[1]]  # starts of a rank ascend
    table = start[order].reshape(count, -1)  # each rank has the same kernels in the same order
    period = keys[0][order[: table.shape[1]]]
    lead = table.max(axis=0) - table
    last = _last(table)
    result = {}
    first, code = gather.distinct(period)
    offsets, column = gather.group_rows(code, len(first))
    for k, number in enumerate(period[first].tolist()):
        these = column[offsets[k] : offsets[k + 1]] if len(first) > 1 else slice(None)
        part = lead[:, these]
        at = (part.shape[1] - 1) // 2
        middle = np.partition(part, at, axis=1)[:, at]
        for i, rank in enumerate(ranks):
            result[rank, number] = Lead(
                part.shape[1], int(part[i].sum()), int(middle[i]), int(last[i, these].sum())
            )
    return result


def _last(table: Array) -> Array:
    """Mark the rank that alone was the last to start each kernel."""
    is_last = table == table.max(axis=0)
    return is_last & (is_last.sum(axis=0) == 1)
