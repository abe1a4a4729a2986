"""Communication matched across ranks: transfer against waiting, bandwidth, and who comes late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import gaps, windows
from chopper_interop.columns import arrow
from chopper_interop.communication import instances as collective_instances
from chopper_interop.communication import summary as collective_summary
from chopper_interop.communication import tables as collective_tables
from chopper_interop.communication import times as collective_times
from chopper_interop.communication import tracelens
from chopper_interop.errors import NoSuchDefinitionsError
from chopper_interop.result import Result

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.communication.times import Times
    from chopper_interop.trace import Trace

__all__ = ["collectives"]

_COMPAT = ("", "tracelens")
_WHOLE = "all communication of the trace"
_CONVENTIONS = {
    "links": "all communication on GPUs counts, whether its launch is recorded or not",
    "memset": "fills are no communication",
    "copies": "copies between GPUs are no communication, unless a source tells that they are",
    "instances": "a collective, or a send and its receive, is measured by all members in the trace, "
    "whatever ranks and steps are chosen; it counts in each group in which it has a member",
    "wait": "until the last member has started; of broadcast and scatter until the root has, of a "
    "receive until its send has. Who sends waits only if it ends after the other side has started. "
    "Never longer than the member lasts: wait_ns + transfer_ns is its duration",
    "transfer": "of a collective from its last start to its last end; transfer_min_ns to its first "
    "end. Sums over groups of it count each collective once, of waits and durations each member",
    "bandwidth": "algbw = size / transfer, busbw = algbw times nccl-tests' factor; GB/s = 1e9 byte/s. "
    "Sizes as nccl-tests counts them, of an all-to-all the mean over ranks of what they put in; "
    "null for size 0, barriers and unknown sizes",
    "percentiles": "nearest rank: a value that occurs",
    "late": "who started last, alone: where several started last at once, nobody is late",
}
_OURS = ("wait", "transfer", "bandwidth", "percentiles", "late")


@dataclass(frozen=True)
class _Chosen:
    """Which members were asked about, and of which step their windows are."""

    member: Array
    iteration: Array | None


def collectives(  # what all analyses have, and sizes
    trace: Trace,
    *,
    by: str = "collective,group",
    sizes: bool = True,
    steps: str = "",
    ranks: str = "",
    compat: str = "",
) -> Result:
    """Transfer, waiting, bandwidth and arrival of collectives that are matched across ranks.

    Parameters
    ----------
    trace
        Any trace. Of one rank alone, only durations are known.
    by
        Names out of `grouping.GRAINS`, and ``bytes`` (power of two that the size is not below),
        ``hosts`` (number of hosts that its ranks are on), ``instance``, separated by commas.
        ``"instance"`` alone gives one row a collective, with its own columns.
    sizes
        Whether `bytes` is added to `by`.
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself, a member in
        the one that it starts in; else all of the trace.
    ranks
        These ranks, as ``0,4-7``; else all.
    compat
        ``"tracelens"``: what its NcclAnalyser says.

    Returns
    -------
    Result
        A row for each group: `collectives` and `members` of them that are in the trace,
        `unmatched` members that no other rank has a part in; nanoseconds: `duration_ns` and
        `wait_ns` summed over members, `wait_max_ns`; of the collectives `transfer_ns` summed and
        its percentiles, `skew_p50_ns` and `skew_max_ns` between first and last start; `size_bytes`
        summed over collectives of known bandwidth, `algbw_gbps` and `busbw_gbps` (median) and the
        least and most `busbw`; `late_rank`, which came last most often, in `late_share` of them (null if
        none did alone: where several start last at once, none is late);
        `uncertainty_ns` of their ranks' clocks to each other: waits below it mean nothing.

        By instance: `rank` of an unmatched member, `put_bytes` and `got_bytes` (the most of a
        member), `size_bytes`, `ranks` in the trace of `group_size`, `hosts`, `start_ns`,
        `last_start_ns`, `end_ns` (as ts), `skew_ns`, `late_rank` (null of several), by how much it was later than the
        one before (`late_by_ns`), `wait_ns` summed and `wait_max_ns`, `transfer_ns` and its least
        and median over members.

        The summary has the same of all, how many collectives lack members (`incomplete`), members
        that ended before that for which they must have waited (`ended_before_awaited`), members of
        which nothing tells for whom they wait (`wait_unknown`), collectives that transfer no longer
        than clocks are uncertain (`within_uncertainty`), those within one host and across hosts, and in `by_rank` how often each rank came last (`times_last`, of that by more
        than the uncertainty: `times_last_certain`), the waiting that it caused to others and its
        own.

    Notes
    -----
    Waiting and transfer as in Eliminating Multi-GPU Performance Taxes (arXiv 2511.02168); bandwidths
    by nccl-tests, doc/PERFORMANCE.md (2.13). Nodes get `wait_ns` and `transfer_ns`.
    """
    if compat not in _COMPAT:
        raise NoSuchDefinitionsError(
            f"compat={compat}: " + ("HTA has no analysis of collectives across ranks"
                                    if compat == "hta" else "no such definitions"),
            hint="there is compat=tracelens",
        )  # fmt: skip
    times = collective_times.of(trace)
    chosen = _chosen(trace, times, steps, ranks)
    notes = _notes(trace, times, chosen, steps)
    if compat:
        rows, summary, told = tracelens.of(trace, times, chosen.member, by)
        kept = {name: text for name, text in _CONVENTIONS.items() if name not in _OURS}
        return Result("collectives", rows, summary, told | kept, notes=notes)
    names = [name.strip() for name in by.split(",") if name.strip()]
    if names == ["instance"]:
        rows = collective_tables.each(trace, times, chosen.member)
    else:
        names += ["bytes"] * (sizes and "bytes" not in names)
        rows = collective_tables.grouped(trace, times, chosen.member, names, chosen.iteration)
    summary = collective_summary.of(times, chosen.member)
    known = _annotations(trace, times, chosen)
    return Result("collectives", rows, summary, _CONVENTIONS, known, notes)


def _chosen(trace: Trace, times: Times, steps: str, ranks: str) -> _Chosen:
    if not steps:
        return _Chosen(np.isin(times.rank, windows.chosen_ranks(trace, ranks)), None)
    iteration = np.full(len(times.row), -1, np.int64)
    member = np.zeros(len(times.row), np.bool_)
    found = windows.of_ranks(trace, steps, ranks)
    place, window = gaps.in_windows(trace, times.row, found)
    member[place] = True
    iteration[place] = np.array([w.iteration for w in found], np.int64)[window]
    return _Chosen(member, iteration)


def _notes(trace: Trace, times: Times, chosen: _Chosen, steps: str) -> dict[str, str]:
    told = {
        "window": f"training steps {steps}: what starts in the range that marks one"
        if steps
        else _WHOLE
    }
    if not chosen.member.any():
        told["no rows"] = "nothing communicates on a GPU" + (" in the window" if steps else "")
    elif len(trace.ranks) < 2:  # noqa: PLR2004
        told["blank"] = "there is one rank: waiting, transfer and bandwidth take several"
    left = np.count_nonzero(chosen.member & (times.instance < 0))
    told["left out"] = (
        f"{left} of {np.count_nonzero(chosen.member)} members of which no other rank is known to "
        "have a part: they count by their durations alone"
    )
    known = collective_instances.uncertainties(trace)
    if len(trace.ranks) > 1:
        told["clocks"] = (
            f"ranks' clocks are known to each other within {max(known.values())} ns (one standard "
            "deviation, the worst rank): waits and lateness below that mean nothing"
            if known
            else "nothing is told of how ranks' clocks relate: times count as they stand"
        )
    return told


def _annotations(trace: Trace, times: Times, chosen: _Chosen) -> dict[str, Any]:
    if not (times.wait >= 0).any():
        return {}
    told = {}
    for name, values in (("wait_ns", times.wait), ("transfer_ns", times.transfer)):
        column = np.full(trace.nodes.num_rows, -1, np.int64)
        column[times.row] = np.where(chosen.member, values, -1)
        told[name] = arrow.array(column, pa.int64(), mask=column < 0)
    return told
