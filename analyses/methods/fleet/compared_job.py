"""Figures of a job's ranks, links and steps: what holds it up, why, and the gain without it."""

from __future__ import annotations

from typing import Any

import numpy as np

from chopper_interop.analyses.methods.activity import counterparts, grouping
from chopper_interop.analyses.methods.communication import instances as collective_instances
from chopper_interop.analyses.methods.communication import summary as collective_summary
from chopper_interop.analyses.methods.communication import times as collective_times
from chopper_interop.analyses.methods.fleet import links as fleet_links
from chopper_interop.analyses.methods.fleet.slowdowns import Slowdowns
from chopper_interop.analyses.methods.timing.job_replay import JobReplay
from chopper_interop.arrays import Array, gather, intervals, statistics
from chopper_interop.arrays.gather import is_any
from chopper_interop.percents import percent
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

_COMPUTE = (Kind.KERNEL, Kind.MEMSET)
MAX_REPLAYS = 16
"""Largest number of ranks, links, or operations of a rank that are replaced in turn.

Chosen: each takes a replay of the whole graph. Those with the largest excess are replaced, so that only
small gains are unknown.
"""
PERSISTENT_SHARE = 0.75
"""Share of the steps in which a persistent straggler is slow. Chosen: a few fast steps are tolerated."""
MIN_GAIN_SHARE = 0.001
"""Share of the job's time that a straggler must cost. Chosen: less is within the noise of any run."""
_DELAYS_MATTER = 0.02
"""Difference of the slow-downs with and without delays that is a warning. Chosen: the slow-down of most
jobs is a few percent, so that a difference of 2 % decides what it is said to be."""
_MUCH_MORE = 2
"""How many times the gain of one slow rank that of several is, for them to be named. Chosen: one explains less than half."""
GAIN_COLUMNS = {"gpu": "gain_ns", "host": "host_gain_ns", "delays": "delay_gain_ns"}
"""Cause of a rank's lateness, and the column of the gain without it."""


class ComparedJob:
    """A job with what it takes to compare its ranks and links."""

    def __init__(self, trace: Trace, steps: str, threshold: float) -> None:
        self.trace, self.threshold = trace, threshold
        self.replay = replay = JobReplay(trace, steps)
        self.slowdowns = Slowdowns(replay)
        kind = trace.array("kind")
        in_steps = np.isin(trace.integers("iteration"), replay.iterations)
        self._rows = np.flatnonzero(is_any(kind, (*_COMPUTE, Kind.MEMCPY)) & in_steps)
        self._edge_rank = trace.array("rank")[replay.node].astype(np.int64)
        local = kind[replay.node] != Kind.COMM
        group = counterparts.counterpart_groups(trace, across="ranks")[replay.node]
        self._group = np.where(local, group, -1)
        self._peers, members = self._medians_of_others(self._edge_rank)
        self._matched = members > 0
        uncertainty = collective_instances.rank_uncertainties(trace)
        self.clock_error_ns = max(uncertainty.values(), default=0)
        self.min_gain_ns = max(MIN_GAIN_SHARE * self.slowdowns.before_ns, self.clock_error_ns, 1)

    def notes(self) -> dict[str, str]:
        """Remarks on the result."""
        slow = self.slowdowns
        matched, own = self._matched, self.replay.own_ns
        total = max(int(self.trace.array("dur")[self._rows].sum()), 1)
        notes = {
            "counterparts": f"{np.count_nonzero(matched):,} of {len(self._rows):,} operations have "
            f"counterparts, with {percent(own[matched].sum() / total)} of the time; the others stay as measured"
        }
        kept, removed = slow.factor_with_delays, slow.factor
        if kept and removed and abs(kept / removed - 1) > _DELAYS_MATTER:
            notes["warning"] = (
                f"the slow-down is {removed:.3f} without unexplained delays and {kept:.3f} with them: "
                "what they wait for is not in the trace, and they bind once other work is shorter"
            )
        return notes

    def rank_rows(self, *, causes_alone: bool = False) -> list[dict[str, Any]]:
        """Figures of all ranks.

        Parameters
        ----------
        causes_alone
            Leave out figures that decide no cause, and the gains of what can be none: each takes a replay of the whole
            graph.
        """
        trace, ranks = self.trace, self.trace.ranks
        rows, iterations = self._rows, self.replay.iterations
        index = np.searchsorted(ranks, trace.array("rank")[rows])
        step = np.searchsorted(iterations, trace.integers("iteration", rows))
        is_kernel = trace.array("kind")[rows] == Kind.KERNEL
        times = np.zeros((len(ranks), len(iterations)), np.int64)
        np.add.at(times, (index[is_kernel], step[is_kernel]), trace.array("dur")[rows[is_kernel]])
        slow = _ratio_to_others(times) >= self.threshold
        slowdown = _ratio_to_others(times.sum(axis=1))
        excess = self._by_rank(np.where(self._matched, self.replay.own_ns - self._peers, 0))
        replayed = _largest(excess)
        waited_for = self._waited_for()
        awaited = [self._is_awaited(waited_for.get(rank, {})) for rank in ranks]
        none = [None] * len(ranks)
        compute = none if causes_alone else _compute_times(trace, rows, index, len(ranks))
        alone = none if causes_alone else self.slowdowns.by_rank
        caused, unexplained = (self._of_nodes(ns) for ns in self.replay.delays())
        more_delayed = unexplained - statistics.medians_of_others(unexplained)
        lateness = none if causes_alone and not any(awaited) else self._host_lateness()
        late_host = _largest(np.array([late or 0 for late in lateness]))
        delayed = _largest(unexplained)
        total_gain = self.slowdowns.before_ns - self.slowdowns.even_ns
        figures = []
        edge_index = np.searchsorted(ranks, self._edge_rank)[self._matched]
        matched = np.bincount(edge_index, minlength=len(ranks))
        is_slower = (self.replay.own_ns > self._peers)[self._matched]
        slower = np.bincount(edge_index, is_slower, len(ranks))
        for k, rank in enumerate(ranks):
            gain = None
            if k in replayed:
                gain = self._gain(self._matched & (self._edge_rank == rank))
            persistent = None
            if len(iterations) > 1:
                is_mostly_slow = slow[k].mean() >= PERSISTENT_SHARE
                persistent = bool(slowdown[k] >= self.threshold and is_mostly_slow)
            row = {
                "rank": rank,
                "dp_rank": int(self.slowdowns.places.dp_rank[k]),
                "stage": int(self.slowdowns.places.stage[k]),
                "kernel_time_ns": int(times[k].sum()),
                "compute_ns": compute[k],
                "slowdown_factor": statistics.finite_or_none(slowdown[k]),
                "excess_ns": int(excess[k]),
                "slower_share": float(slower[k] / matched[k]) if matched[k] else None,
                "gain_ns": gain,
                "gain_share": gain / total_gain if gain is not None and total_gain > 0 else None,
                "alone_slowdown_factor": alone[k],
                "host_late_ns": lateness[k],
                "host_gain_ns": None,
                "delay_gain_ns": None,
                "caused_delay_ns": int(caused[k]),
                "unexplained_delay_ns": int(unexplained[k]),
                "times_last": waited_for.get(rank, {}).get("times_last"),
                "caused_wait_ns": waited_for.get(rank, {}).get("caused_wait_ns"),
                "steps": len(iterations),
                "steps_slow": int(slow[k].sum()),
                "persistent": persistent,
            }
            is_slow = self._is_slow(row, more_delayed[k])
            counts = {cause: slow or not causes_alone for cause, slow in is_slow.items()}
            if k in late_host and lateness[k] is not None and counts["host"]:
                row["host_gain_ns"] = self.replay.host.gain_ns(rank)
            if k in delayed and counts["delays"]:
                row["delay_gain_ns"] = self._delay_gain(rank)
            figures.append(row | {"cause": self._cause(row, is_slow)})
        return figures

    def slow_ranks(self, rows: list[dict[str, Any]]) -> tuple[list[int], int] | None:
        """Several ranks with slow GPUs, and the gain if all of them were as the others.

        None where that is nothing, or where one of them alone gives half of it.
        """
        slow = [row for row in rows if (row["slowdown_factor"] or 0) >= self.threshold]
        ranks = [row["rank"] for row in slow if row["excess_ns"] > 0]
        waits = sum(row["caused_wait_ns"] or 0 for row in slow)
        if len(ranks) <= 1 or waits < self.min_gain_ns:
            return None
        is_slow = np.isin(self._edge_rank, ranks)
        # they are no measure of each other
        others, members = self._medians_of_others(np.where(is_slow, ranks[0], self._edge_rank))
        gain = self._gain(is_slow & (members > 0), others)
        alone = max(row["gain_ns"] or 0 for row in slow)
        return (ranks, gain) if gain >= max(self.min_gain_ns, _MUCH_MORE * alone) else None

    def _is_awaited(self, row: dict[str, Any]) -> bool:
        """True unless other ranks hardly waited for this one in collectives, of which `row` has the figures."""
        waited_ns = row.get("caused_wait_ns")
        return waited_ns is None or waited_ns >= self.min_gain_ns

    def _is_slow(self, row: dict[str, Any], more_delayed_ns: float) -> dict[str, bool]:
        """By cause whether a rank is slow so that it may hold others up; of none if they hardly waited for it.

        By delays where there are more unexplained ones than on other ranks, by `more_delayed_ns`.
        """
        is_awaited = self._is_awaited(row)
        return {
            "gpu": is_awaited and (row["slowdown_factor"] or 0) >= self.threshold,
            "host": is_awaited and (row["host_late_ns"] or 0) > self.clock_error_ns,
            "delays": is_awaited and bool(more_delayed_ns >= self.min_gain_ns),
        }

    def _cause(self, row: dict[str, Any], is_slow: dict[str, bool]) -> str | None:
        """The cause with the largest gain, of those by which the rank is slow; None if none counts.

        Unexplained delays are the cause only where no recorded one is.
        """
        gains = {cause: row[column] or 0 for cause, column in GAIN_COLUMNS.items()}
        possible = [cause for cause in gains if is_slow[cause] and gains[cause] >= self.min_gain_ns]
        return max(possible, key=lambda cause: (cause != "delays", gains[cause]), default=None)

    def _medians_of_others(self, label: Array) -> tuple[Array, Array]:
        """Median time of the counterparts of other labels, and their number."""
        own = self.replay.own_ns
        return counterparts.group_medians(own, self._group, apart=label, between=True)

    def _gain(self, mask: Array, times_ns: Array | None = None) -> int:
        """Time the job would gain if operations took that of their counterparts, or these times."""
        times_ns = self._peers if times_ns is None else times_ns
        own = np.where(mask, times_ns, self.replay.own_ns)
        return self.slowdowns.before_ns - int(self.replay.lengths(own).sum())

    def _delay_gain(self, rank: int) -> int:
        measured = int(self.replay.measured_ns.sum())
        return measured - int(self.replay.without_delays_of(rank).sum())

    def _by_rank(self, values: Array) -> Array:
        """Sums of values of `JobReplay.edge` by rank."""
        total = np.zeros(len(self.trace.ranks), np.int64)
        np.add.at(total, np.searchsorted(self.trace.ranks, self._edge_rank), values)
        return total

    def _of_nodes(self, values: Array) -> Array:
        """Sums of values of all nodes by rank."""
        return np.array([values[rows].sum() for rows in self.trace.rank_rows.values()])

    def _host_lateness(self) -> list[int | None]:
        """Median lateness of each rank's launches against those of other ranks; None without any."""
        host, launch = self.replay.host, np.unique(self.trace.launch[self.replay.node])
        launch = launch[(launch >= 0) & host.known[launch]]
        rank = np.searchsorted(self.trace.ranks, self.trace.array("rank")[launch])
        offsets, late = gather.group_values(rank, host.late_ns[launch], len(self.trace.ranks))
        of_ranks = np.split(late, offsets[1:-1])
        return [round(float(np.median(late))) if late.size else None for late in of_ranks]

    def _waited_for(self) -> dict[int, dict[str, Any]]:
        """Figures of `collectives` for each rank, over the steps."""
        times = collective_times.communication_times(self.trace)
        in_steps = np.isin(self.trace.integers("iteration", times.row), self.replay.iterations)
        return {row["rank"]: row for row in collective_summary.summarize_ranks(times, in_steps)}

    def link_rows(self) -> list[dict[str, Any]]:
        """Figures of all links that transfer anything."""
        links = fleet_links.links(self.slowdowns)
        own, count = self.replay.own_ns, len(links.ranks)

        def sums(mask: Array, values: Array) -> Array:
            return gather.group_sums(links.code[mask], values[mask], count)

        transferred, transfers = links.code >= 0, np.ones(len(own), np.int64)
        number, compared = sums(transferred, transfers), sums(links.compared, transfers)
        transfer_ns, compared_ns = sums(transferred, own), sums(links.compared, own)
        others_ns = sums(links.compared, links.others_ns)
        excess = compared_ns - others_ns
        replayed = _largest(excess)
        rows = []
        for k, ranks in enumerate(links.ranks):
            if not number[k]:
                continue
            others = int(others_ns[k])
            gain = None
            if compared[k] and k in replayed:
                gain = self._gain(links.compared & (links.code == k), links.others_ns)
            rows.append(
                {
                    "ranks": ",".join(map(str, ranks)),
                    "instances": int(links.instances[k]),
                    "transfer_ns": int(transfer_ns[k]),
                    "slowdown_factor": int(compared_ns[k]) / others if others > 0 else None,
                    "excess_ns": int(excess[k]) if compared[k] else None,
                    "gain_ns": gain,
                }
            )
        return rows

    def slowest_link(self, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
        """The slow link without which the job would gain most; None if none counts."""
        slow = [
            row
            for row in rows
            if (row["gain_ns"] or 0) >= self.min_gain_ns
            and (row["slowdown_factor"] or 0) >= self.threshold
        ]
        return max(slow, key=lambda row: int(row["gain_ns"]), default=None)

    def slowest_stage(self) -> int | None:
        """The stage without which the job would gain most; None without a pipeline, or if none counts."""
        parts = [(part.gain_ns or 0, part.key) for part in self.slowdowns.by_stage]
        gain, stage = max(parts)
        return int(stage) if len(parts) > 1 and gain >= self.min_gain_ns else None

    def step_rows(self) -> list[dict[str, Any]]:
        """Slow-downs of all steps."""
        replay, ideal = self.replay, self.slowdowns.ideal_ns
        columns = [
            replay.measured_steps_ns, replay.lengths(each=True), replay.lengths(ideal, each=True),
            replay.lengths(ideal, each=True, delays=True),
        ]  # fmt: skip
        values = zip(replay.iterations, *(column.tolist() for column in columns), strict=True)
        return [
            {
                "iteration": number, "measured_ns": measured, "before_ns": before, "even_ns": even,
                "job_slowdown_factor": before / even if even > 0 else None,
                "job_slowdown_with_delays_factor": measured / kept if kept > 0 else None,
            }
            for number, measured, before, even, kept in values
        ]  # fmt: skip

    def operation_rows(self, selected: list[int]) -> list[dict[str, Any]]:
        """Compare the operations of each rank with those of its peers."""
        edges = np.flatnonzero(self._matched)
        node, own, peers = self.replay.node[edges], self.replay.own_ns[edges], self._peers[edges]
        pairs = grouping.group_nodes(self.trace, node, "rank,operation")
        operations = grouping.group_nodes(self.trace, node, "operation")
        times, of_peers = pairs.sums(own), pairs.sums(peers)
        operation_of_pair = np.zeros(len(pairs), np.int64)
        operation_of_pair[pairs.code] = operations.code
        uneven = operations.sums(np.abs(own - self.slowdowns.ideal_ns[edges]))
        masks = [np.zeros(len(self._matched), bool) for _ in range(2)]

        def gains(code: Array, excess: Array, gain: Any) -> list[int | None]:
            gained: list[int | None] = [None] * len(excess)
            for k in _largest(excess):
                masks[0][:] = False
                masks[0][edges[code == k]] = True
                gained[k] = gain(masks[0])
            return gained

        even_gain = gains(operations.code, uneven, self.slowdowns.gain)
        gain = gains(pairs.code, times - of_peers, self._gain)
        slower = np.bincount(pairs.code, own > peers, len(pairs))
        number = np.bincount(pairs.code, minlength=len(pairs))
        keys = zip(pairs.keys["rank"].to_pylist(), pairs.keys["operation"].to_pylist(), strict=True)
        return [
            {
                "rank": rank, "operation": operation, "operations": int(number[k]),
                "time_ns": int(times[k]),
                "slowdown_factor": int(times[k]) / int(of_peers[k]) if of_peers[k] > 0 else None,
                "excess_ns": int(times[k] - of_peers[k]),
                "slower_share": float(slower[k] / number[k]),
                "gain_ns": gain[k], "even_gain_ns": even_gain[operation_of_pair[k]],
            }
            for k, (rank, operation) in enumerate(keys)
            if rank in selected
        ]  # fmt: skip


def _largest(excess: Array) -> set[int]:
    """Indices of the largest values, of as many as are replayed."""
    return set(np.argsort(-excess, kind="stable")[:MAX_REPLAYS].tolist())


def _ratio_to_others(times: Array) -> Array:
    """Each row's number by the median of the other rows'; NaN where that is 0."""
    columns = times.reshape(len(times), -1).T
    others = np.stack([statistics.medians_of_others(c) for c in columns], 1).reshape(times.shape)
    return np.divide(times, others, out=np.full(times.shape, np.nan), where=others > 0)


def _compute_times(trace: Trace, rows: Array, rank_index: Array, count: int) -> list[int]:
    """Time of each rank in which a kernel or fill runs."""
    is_compute = is_any(trace.array("kind")[rows], _COMPUTE)
    ts, dur = trace.array("ts"), trace.array("dur")
    offsets, rows = gather.group_values(rank_index[is_compute], rows[is_compute], count)
    return [
        intervals.total_length(intervals.union(ts[of_rank], ts[of_rank] + dur[of_rank]))
        for of_rank in np.split(rows, offsets[1:-1])
    ]
