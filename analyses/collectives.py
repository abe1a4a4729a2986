"""Measure communication that is matched across ranks: waiting, transfer, bandwidth, late ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.communication import instances as collective_instances
from chopper_interop.analyses.methods.communication import summary as collective_summary
from chopper_interop.analyses.methods.communication import tables as collective_tables
from chopper_interop.analyses.methods.communication import times as collective_times
from chopper_interop.analyses.methods.communication import tracelens
from chopper_interop.arrays import Array, arrow
from chopper_interop.errors import NoSuchDefinitionsError
from chopper_interop.result import Result
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.communication.times import CommunicationTimes

__all__ = ["collectives"]

_COMPAT = ("", "tracelens")
_ALL = "all communication of the trace"
_CONVENTIONS = {
    "links": "all communication on GPUs counts, whether its launch is recorded or not",
    "memset": "fills are no communication",
    "copies": "copies between GPUs are no communication, unless the source marks them as such",
    "instances": "a collective, or a send and its receive, is measured by all members in the trace, "
    "whatever ranks and steps are chosen; it counts in each group in which it has a member",
    "wait": "until the last member has started; for broadcast and scatter until the root has, for a "
    "receive until its send has. A sender waits only if it ends after the other side has started. "
    "A wait is never longer than the member lasts: wait_ns + transfer_ns is its duration",
    "transfer": "of a collective from its last start to its last end; transfer_min_ns to its first "
    "end. Its sum over a group counts each collective once; sums of waits and durations count each "
    "member",
    "bandwidth": "algbw = size / transfer, busbw = algbw times nccl-tests' factor; GB/s = 1e9 byte/s. "
    "Sizes as nccl-tests counts them, for an all-to-all the mean over ranks of the bytes they put in; "
    "null for size 0, barriers and unknown sizes",
    "percentiles": "nearest rank: a value that occurs",
    "late": "the member that started last, alone: where several started last at once, none is late",
}
_NOT_IN_TRACELENS = ("wait", "transfer", "bandwidth", "percentiles", "late")
"""Conventions that do not hold for `compat=tracelens`."""


@dataclass(frozen=True)
class _SelectedMembers:
    """Mask of the members that were asked about, and the step of each (None without steps)."""

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
    """Measure transfer, waiting, bandwidth and arrival of collectives across ranks.

    Parameters
    ----------
    trace
        Any trace. In a trace of one rank only durations are known.
    by
        Groups of rows: names out of `grouping.GRAINS`, ``bytes`` (the size rounded down to a power
        of two), ``hosts`` (number of hosts that its ranks are on) and ``instance``, separated by
        commas. ``"instance"`` alone gives one row a collective, with its own columns.
    sizes
        Add `bytes` to `by`.
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself. A member belongs to the
        step in which it starts. All of the trace if empty.
    ranks
        Ranks to include, as ``0,4-7``; all if empty.
    compat
        ``"tracelens"``: the figures of TraceLens' NcclAnalyser.

    Returns
    -------
    Result
        A row for each group, times in nanoseconds:

        - `collectives` and their `members` in the trace; `unmatched` members of collectives in
          which no other rank takes part
        - `duration_ns` and `wait_ns` summed over members, `wait_max_ns`
        - `transfer_ns` summed over collectives, with percentiles
        - `skew_p50_ns` and `skew_max_ns` between first and last start
        - `size_bytes` summed over collectives of known bandwidth; `algbw_gbps` and `busbw_gbps`
          (medians), minimum and maximum of `busbw`
        - `late_rank`, the rank that came last most often, and `late_share`, in how many of them.
          Null if no rank came last alone
        - `uncertainty_ns` of their ranks' clocks to each other: shorter waits mean nothing

        By instance:

        - `rank` of an unmatched member; `put_bytes` and `got_bytes` (maximum over members),
          `size_bytes`; `ranks` in the trace out of `group_size`; `hosts`
        - `start_ns`, `last_start_ns`, `end_ns` since the trace's origin, `skew_ns`
        - `late_rank` (null of several) and `late_by_ns`, how much later it was than the one before
        - `wait_ns` summed and `wait_max_ns`; `transfer_ns`, with minimum and median over members

        The summary has the same figures for all, and these counts: collectives that lack members
        (`incomplete`), members that ended before those they must have waited for
        (`ended_before_awaited`), members for which it is not known what they wait for
        (`wait_unknown`), collectives that transfer no longer than clocks are uncertain
        (`within_uncertainty`), those within one host and across hosts. `by_rank` says how often each
        rank came last (`times_last`, by more than the uncertainty: `times_last_certain`), how long
        others waited for it, and how long it waited.

    Notes
    -----
    Waiting and transfer as in Eliminating Multi-GPU Performance Taxes (arXiv 2511.02168); bandwidths
    by nccl-tests, doc/PERFORMANCE.md (2.13). Nodes are annotated with `wait_ns` and `transfer_ns`.
    """
    if compat not in _COMPAT:
        raise NoSuchDefinitionsError(
            f"compat={compat}: " + ("HTA has no analysis of collectives across ranks"
                                    if compat == "hta" else "no such definitions"),
            hint="there is compat=tracelens",
        )  # fmt: skip
    times = collective_times.communication_times(trace)
    selected = _select_members(trace, times, steps, ranks)
    notes = _notes(trace, times, selected, steps)
    if compat:
        rows, summary, conventions = tracelens.tracelens_tables(trace, times, selected.member, by)
        shared = {
            name: text for name, text in _CONVENTIONS.items() if name not in _NOT_IN_TRACELENS
        }
        return Result("collectives", rows, summary, conventions | shared, notes=notes)
    names = [name.strip() for name in by.split(",") if name.strip()]
    if names == ["instance"]:
        rows = collective_tables.instance_rows(trace, times, selected.member)
    else:
        names += ["bytes"] * (sizes and "bytes" not in names)
        rows = collective_tables.group_rows(
            trace, times, selected.member, names, selected.iteration
        )
    summary = collective_summary.summarize(times, selected.member)
    annotations = _annotations(trace, times, selected)
    return Result("collectives", rows, summary, _CONVENTIONS, annotations, notes)


def _select_members(
    trace: Trace, times: CommunicationTimes, steps: str, ranks: str
) -> _SelectedMembers:
    if not steps:
        return _SelectedMembers(np.isin(times.rank, windows.chosen_ranks(trace, ranks)), None)
    iteration = np.full(len(times.row), -1, np.int64)
    member = np.zeros(len(times.row), np.bool_)
    rank_windows = windows.rank_windows(trace, steps, ranks)
    selected_at, window_of = windows.starting_in_windows(trace, times.row, rank_windows)
    member[selected_at] = True
    iteration[selected_at] = np.array([w.iteration for w in rank_windows], np.int64)[window_of]
    return _SelectedMembers(member, iteration)


def _notes(
    trace: Trace, times: CommunicationTimes, selected: _SelectedMembers, steps: str
) -> dict[str, str]:
    notes = {
        "window": f"training steps {steps}: what starts in the range that marks one"
        if steps
        else _ALL
    }
    if not selected.member.any():
        notes["no rows"] = "nothing communicates on a GPU" + (" in the window" if steps else "")
    elif len(trace.ranks) < 2:  # noqa: PLR2004
        notes["blank"] = "there is one rank: waiting, transfer and bandwidth need several"
    unmatched = np.count_nonzero(selected.member & (times.instance < 0))
    notes["left out"] = (
        f"{unmatched} of {np.count_nonzero(selected.member)} members of collectives in which no other "
        "rank is known to take part: only their durations count"
    )
    return notes | collective_instances.clock_notes(trace, "waits and lateness")


def _annotations(
    trace: Trace, times: CommunicationTimes, selected: _SelectedMembers
) -> dict[str, Any]:
    if not (times.wait >= 0).any():
        return {}
    columns = {}
    for name, values in (("wait_ns", times.wait), ("transfer_ns", times.transfer)):
        column = np.full(trace.nodes.num_rows, -1, np.int64)
        column[times.row] = np.where(selected.member, values, -1)
        columns[name] = arrow.negative_to_null(column, pa.int64())
    return columns
