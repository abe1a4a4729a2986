"""Divide idle time of GPUs by cause: the host, the launch, another stream, another rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop import rank_batches
from chopper_interop.analyses.methods import options
from chopper_interop.analyses.methods.activity import gaps, grouping, host_waits, windows
from chopper_interop.analyses.methods.activity.totals import Totals
from chopper_interop.analyses.methods.activity.work_times import Known, WorkTimes, work_times
from chopper_interop.analyses.methods.communication import times as collective_times
from chopper_interop.analyses.methods.peers import idle as peers_idle
from chopper_interop.arrays import Array, arrow, gather, name_stems
from chopper_interop.result import Result
from chopper_interop.timing import start_latencies
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.windows import Window

__all__ = ["idle"]

CAUSES = (
    "host_late", "sync", "launch", "kernel_to_kernel", "event", "peer", "window", "unknown",
)  # fmt: skip
_OWN_GRAINS = ("device", "blame")
_COMPAT = ("", "hta")


def idle(  # noqa: PLR0913 # each choice is an option
    trace: Trace,
    *,
    by: str = "rank",
    steps: str = "",
    ranks: str = "",
    top: int = 10,
    compat: str = "",
    threshold_ns: int = 30_000,
) -> Result:
    """Divide idle time of GPUs by cause; the causes sum to the `idle_ns` of `temporal`.

    A gap is an interval in which nothing runs. It belongs to the work that ends it, and is divided
    in the order of time::

        end of the work before                      start of the work
        |-- host_late, sync --|-- event, peer --|-- launch, ... --|
                              call starts       awaited work ends

    ``host_late``, ``sync``
        Until the host began the call for that work. `sync` is the part that the calling thread
        spent in calls that wait for the GPU, `host_late` the rest.
    ``event``, ``peer``
        Then, until the last work had ended for which it waits by an event. `peer` is the part in
        which that other work itself waited for another rank (see the analysis `collectives`). Such
        gaps occur only on a stream, or on one of several GPUs of a rank: otherwise the GPU is busy
        with the other work.
    ``launch``, ``kernel_to_kernel``, ``unknown``
        The rest. `launch` if the host was late, or if the launch was still on its way when the gap
        began: of all that the work waited for, with minimum latencies of the trace, the launch came
        last (`timing.Timing.binding`), and the work began within 100 µs after it and its call; what is beyond is
        `unknown` then. Else `kernel_to_kernel` if shorter than `threshold_ns`, and
        `unknown` if longer. Gaps before work whose call is not known are `unknown` as well.
    ``window``
        Before the first and after the last work of the GPU (or stream) in the trace.

    Parameters
    ----------
    by
        Groups of rows: names of `grouping.GRAINS`, "device" and "blame", separated by commas. With
        "stream" gaps are those of each stream, with "device" those of each GPU, else times in which
        all GPUs of a rank are idle. They are grouped by the work that ends them; "blame" is the
        host operation that made it late.
    steps
        "each" training step, or "3,5-7", by itself; all of the trace if empty.
    ranks
        Ranks to include, "0,4-7"; all if empty.
    top
        Number of host operations that the summary lists under `blame`.
    compat
        "hta": Holistic Trace Analysis' breakdown of each stream into `host_wait_ns`,
        `kernel_wait_ns` and `other_ns`.
    threshold_ns
        Shorter gaps between kernels that were launched in time are attributed to the GPU itself.
        HTA calls it ``consecutive_kernel_delay``; the default is HTA's.

    Returns
    -------
    Result
        One row a group: `idle_ns`, its parts named above (`host_late_ns`, …) and `gaps`.
        `after_sync_ns` is the part of `host_late_ns` in gaps that began while the thread waited for
        the GPU, which therefore had run out of work. `comm_wait_ns` is not idle time: in it
        communication waited for another rank (see `collectives`), each moment counted once. Ranks
        without GPU work have no rows, even if they have training steps.

        The summary has the sums, and in `blame` the host operations that made GPUs wait: the
        innermost one on the launching thread that covers half or more of the late time, null where
        none does. Annotations of the work that ends a gap of its GPU: `idle_ns` and `idle_cause`,
        the cause with the largest part.

    Notes
    -----
    HTA assigns each gap of a stream as a whole to host wait, kernel wait (gaps under a threshold) or
    other (traceinsight 0.6.1, ``get_idle_time_breakdown``).
    """
    options.check_compat(compat, _COMPAT)
    options.check_at_least(0, top=top, threshold_ns=threshold_ns)
    all_windows = windows.rank_windows(trace, steps, ranks)
    if compat == "hta":
        return peers_idle.idle(trace, all_windows, steps, threshold_ns)
    names = [name.strip() for name in by.split(",") if name.strip()]
    grouping.parse_grains(by, _OWN_GRAINS)
    measured = _IdleTimes(trace, names, threshold_ns, stepped=bool(steps))
    for batch in windows.batches(trace, all_windows):
        measured.add(*batch)
    table, sums = measured.table()
    summary: dict[str, Any] = {name: int(values.sum()) for name, values in sums.items()}
    summary["blame"] = measured.blame(top)
    annotations = measured.annotations.joined()
    notes = _notes(trace, steps, measured)
    return Result("idle", table, summary, _conventions(names, threshold_ns), annotations, notes)


class _IdleTimes:
    """Figures of the groups of all batches of a trace so far, and annotations of its nodes."""

    def __init__(  # options
        self, trace: Trace, names: list[str], threshold_ns: int, *, stepped: bool
    ) -> None:
        self._trace = trace
        self._facts = _Facts(trace)
        self._names = names
        self._threshold_ns = threshold_ns
        asked = {"device": "device" in names, "iteration": stepped, "blame": "blame" in names}
        self._further: dict[str, Sequence[str] | None] = {
            name: None for name, is_key in asked.items() if is_key
        }
        plain = ",".join(name for name in names if name not in self._further)
        self._grains = grouping.parse_grains(plain)
        self._totals = Totals()
        self._blamed = Totals()
        self._resources = 0
        self.annotations = rank_batches.JoinedColumns(trace)
        self.work = self.unlinked = self.ranks = 0
        """Pieces of work, those of them without a known launch, and ranks with any."""

    def add(self, nodes: slice, part: Trace, all_windows: list[Window]) -> None:
        """Measure a batch."""
        rows = gaps.work_rows(part)
        works = work_times(part, rows, self._facts.of_batch(nodes))
        resources = _resources(part, rows, self._names)
        pieces = _idle_intervals(part, rows, resources, all_windows)
        parts = _divide_by_cause(works, pieces, self._threshold_ns)
        waits = _comm_waits(part, works, resources, all_windows)
        figures = _figures(pieces, parts, waits, works)
        names, codes = self._keys(part, works, pieces, parts, waits, all_windows)
        code, keys = grouping.keys_of(names, codes, len(pieces.at) + len(waits.at))
        self._totals.add(self._totals.numbers(keys)[code], **figures)
        self._add_blame(part, works, pieces, parts, resources)
        self.annotations.add(nodes, _annotations(part, works, self._threshold_ns))
        self.work += len(rows)
        self.unlinked += int(np.count_nonzero(works.ask == gaps.NO_TIME))
        rank = part.array("rank")[rows]
        self.ranks += int(np.count_nonzero(np.diff(rank)) + bool(len(rank)))

    def _keys(  # what was measured of a batch
        self,
        part: Trace,
        works: WorkTimes,
        pieces: _Intervals,
        parts: dict[str, Array],
        waits: _Intervals,
        all_windows: list[Window],
    ) -> tuple[tuple[str, ...], list[Array]]:
        """Names of the groups' keys, and their codes for each interval and wait."""
        all_at = np.concatenate([pieces.at, waits.at])
        nodes = works.row[all_at]
        codes = grouping.codes_of(part, nodes, self._grains)
        if "device" in self._further:
            codes.append(gaps.device_numbers(part, nodes).astype(np.int64))
        if "iteration" in self._further:
            number = np.array([window.iteration for window in all_windows], np.int64)
            codes.append(number[np.concatenate([pieces.window, waits.window])])
        if "blame" in self._further:
            blamed = np.where(parts["host_late"] > 0, works.blame[pieces.at], -1)
            codes.append(_name_codes(part, np.append(blamed, np.full(len(waits.at), -1))))
        return (*self._grains, *self._further), codes

    def _add_blame(
        self,
        part: Trace,
        works: WorkTimes,
        pieces: _Intervals,
        parts: dict[str, Array],
        resources: tuple[Array, int],
    ) -> None:
        """Add the host operations that made GPUs of a batch wait, with where each occurs first, by resource and time."""
        late = np.flatnonzero(parts["host_late"] > 0)
        at = pieces.at[late]
        code, keys = grouping.ordered_keys(("blame",), [_name_codes(part, works.blame[at])])
        is_numbered_by_batch = not {"stream", "device"} & set(self._names)
        resource = resources[0][at] + (self._resources if is_numbered_by_batch else 0)
        self._resources += resources[1]
        numbers = self._blamed.numbers(keys)[code]
        self._blamed.add(numbers, total=parts["host_late"][late], gaps=np.ones(len(late), np.int64))
        first = (resource << 32) + np.arange(len(late))  # of a resource all are in one batch
        self._blamed.least(numbers, first=first)

    def table(self) -> tuple[pa.Table, dict[str, Array]]:
        """Return the rows, and their figures."""
        keys, figures = self._totals.ordered()
        further = dict(self._further)
        if "blame" in further:
            *others, blame = keys.codes
            code, further["blame"] = _names_over_steps(self._trace, blame)
            number, keys = grouping.ordered_keys(keys.names, [*others, code])
            figures = {
                name: gather.group_sums(number, values, len(keys))
                for name, values in figures.items()
            }
        named = keys.table(self._trace, further=further)
        columns = {name: arrow.array(values) for name, values in figures.items()}
        return pa.table(
            dict(zip(named.column_names, named.columns, strict=True)) | columns
        ), figures

    def blame(self, top: int) -> list[dict[str, Any]]:
        """Return the host operations that made GPUs wait, the longest first, of equal ones the first to occur."""
        figures = self._blamed.figures()
        if not len(self._blamed.keys):
            return []
        name, names = _names_over_steps(self._trace, self._blamed.keys.codes[0])
        occurs = np.argsort(figures["first"])
        first, code = gather.distinct(name[occurs])
        total, count = (
            gather.group_sums(code, figures[of][occurs], len(first)) for of in ("total", "gaps")
        )
        name, total_ns = name[occurs][first], int(total.sum())
        return [
            {
                "operation": names[name[i]] if name[i] >= 0 else None,
                "host_late_ns": int(total[i]),
                "share": float(total[i] / total_ns),
                "gaps": int(count[i]),
            }
            for i in np.argsort(-total, kind="stable")[:top].tolist()
        ]


class _Facts:
    """Facts about GPU work that follow from all ranks of a job: least latencies, and waits for other ranks."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._least = start_latencies.least_times(trace)
        times = collective_times.communication_times(trace)
        waits = times.wait > 0
        self._waiting = times.row[waits], (times.start + times.wait)[waits]

    def of_batch(self, nodes: slice) -> Known:
        """Facts of a batch of ranks."""
        row, until = self._waiting
        waiting = slice(*np.searchsorted(row, [nodes.start, nodes.stop]))
        waited_until = np.full(nodes.stop - nodes.start, gaps.NO_TIME)
        waited_until[row[waiting] - nodes.start] = until[waiting]
        return Known(self._least, waited_until, host_waits.calls_among(self._trace, nodes))


@dataclass(frozen=True)
class _Intervals:
    """Intervals that belong to GPU work, each within one window.

    Parameters
    ----------
    at
        Index of the work.
    window
        Index of the window.
    start, end
        Start and end of the interval (ns).
    before
        Start of the gap that the interval is a part of.
    edge
        True if there is no work before it, or none after it.
    """

    at: Array
    window: Array
    start: Array
    end: Array
    before: Array
    edge: Array


def _resources(trace: Trace, rows: Array, names: list[str]) -> tuple[Array, int]:
    """Return the number of each piece's resource (stream, GPU or rank) and the count of resources."""
    if "stream" in names:
        return trace.array("lane")[rows].astype(np.int64), trace.lanes.num_rows
    if "device" in names:
        return gaps.gpu_numbers(trace, rows)
    first, code = gather.distinct(trace.array("rank")[rows])
    return code, len(first)


def _idle_intervals(
    trace: Trace, rows: Array, resources: tuple[Array, int], all_windows: list[Window]
) -> _Intervals:
    """Return all time of the windows in which resources are idle, by the work that ends it.

    Three kinds of intervals: gaps between two pieces of work, time before the first work (`leads`)
    and time after the last work of a resource (`trails`).
    """
    resource, n = resources
    start = trace.array("ts")[rows]
    end = start + trace.array("dur")[rows]
    before = gaps.latest_end_before(resource, n, end)
    leads = before == gaps.NO_TIME
    last, reached = np.zeros(n, np.int64), np.full(n, gaps.NO_TIME)
    last[resource] = np.arange(len(rows))  # the last work of each resource is written last
    np.maximum.at(reached, resource, end)
    rank = trace.array("rank")[rows]
    begins, ends = _bounds(all_windows)
    gap = np.flatnonzero(~leads & (start > before))
    inner, window = windows.overlapping_windows(
        gather.group_rows(resource[gap], n), before[gap], start[gap], rank[gap], all_windows
    )
    head = np.flatnonzero(leads)
    always = np.full(len(head), gaps.NO_TIME), np.full(len(head), np.iinfo(np.int64).max)
    lead, of_lead = windows.overlapping_windows(
        gather.group_rows(resource[head], n), *always, rank[head], all_windows
    )
    at, window = np.append(gap[inner], head[lead]), np.append(window, of_lead)
    since = np.maximum(before[at], begins[window])
    until = np.maximum(np.minimum(start[at], ends[window]), since)
    resource_of_lead = resource[head[lead]]
    behind = np.clip(reached[resource_of_lead], begins[of_lead], ends[of_lead])
    trails = ends[of_lead] > behind
    resource_of_lead, of_trail = resource_of_lead[trails], of_lead[trails]
    return _Intervals(
        np.append(at, last[resource_of_lead]),
        np.append(window, of_trail),
        np.append(since, behind[trails]),
        np.append(until, ends[of_trail]),
        np.append(before[at], reached[resource_of_lead]),
        np.append(leads[at], np.ones(len(resource_of_lead), bool)),
    )


def _bounds(all_windows: list[Window]) -> tuple[Array, Array]:
    """Return starts and ends of windows."""
    return (
        np.array([window.start_ns for window in all_windows], np.int64),
        np.array([window.end_ns for window in all_windows], np.int64),
    )


def _divide_by_cause(works: WorkTimes, pieces: _Intervals, threshold_ns: int) -> dict[str, Array]:
    """Divide each interval by cause, in the order of time that `idle` describes."""
    at, since, until = pieces.at, pieces.start, pieces.end
    ask, event = works.ask[at], works.event_end[at]
    called = np.clip(ask, since, until)
    lane = works.thread[at].astype(np.int64)
    sync = np.subtract(*(host_waits.waited_ns(works.synced, lane, to) for to in (called, since)))
    ready = np.clip(event, called, until)
    peer = np.minimum(works.peer_end[at], ready) - np.maximum(works.peer_start[at], called)
    peer = np.where(works.peer_end[at] == gaps.NO_TIME, 0, np.maximum(peer, 0))
    rest = until - ready
    unlinked, launched = ask == gaps.NO_TIME, works.bound[at] | (ask > pieces.before)
    short = ~unlinked & ~launched & (rest < threshold_ns)
    launch = np.where(launched, np.clip(works.reached[at], ready, until) - ready, 0)
    parts = {
        "host_late": called - since - sync,
        "sync": sync,
        "launch": launch,
        "kernel_to_kernel": np.where(short, rest, 0),
        "event": ready - called - peer,
        "peer": peer,
        "window": np.zeros_like(rest),
        "unknown": np.where(short, 0, rest - launch),
    }
    parts = {name: np.where(pieces.edge, 0, values) for name, values in parts.items()}
    parts["window"] = np.where(pieces.edge, until - since, 0)
    return parts


def _comm_waits(
    trace: Trace, works: WorkTimes, resources: tuple[Array, int], all_windows: list[Window]
) -> _Intervals:
    """Return the time in which communication waited for another rank, once for each resource."""
    resource, n = resources
    at = np.flatnonzero(works.waited_until != gaps.NO_TIME)
    start, until = works.start[at], works.waited_until[at]
    since = np.maximum(start, gaps.latest_end_before(resource[at], n, until))
    nonempty = until > since
    at, since, until = at[nonempty], since[nonempty], until[nonempty]
    rank = trace.array("rank")[works.row[at]]
    begins, ends = _bounds(all_windows)
    piece, window = windows.overlapping_windows(
        gather.group_rows(resource[at], n), since, until, rank, all_windows
    )
    since = np.maximum(since[piece], begins[window])
    until = np.minimum(until[piece], ends[window])
    nonempty = until > since
    at, window = at[piece][nonempty], window[nonempty]
    since, until = since[nonempty], until[nonempty]
    return _Intervals(at, window, since, until, since, np.zeros(len(since), bool))


def _figures(
    pieces: _Intervals, parts: dict[str, Array], waits: _Intervals, works: WorkTimes
) -> dict[str, Array]:
    """Figures of each interval, and of each wait of communication behind them."""
    no_wait = np.zeros(len(waits.at), np.int64)
    length = pieces.end - pieces.start
    after_sync = _began_in_sync(works, pieces)
    columns = {"idle_ns": length, **{f"{name}_ns": parts[name] for name in CAUSES}}
    columns["gaps"] = (length > 0).astype(np.int64)
    columns["after_sync_ns"] = np.where(after_sync, parts["host_late"], 0)
    figures = {name: np.append(values, no_wait) for name, values in columns.items()}
    figures["comm_wait_ns"] = np.append(np.zeros_like(length), waits.end - waits.start)
    return figures


def _began_in_sync(works: WorkTimes, pieces: _Intervals) -> Array:
    """Mark gaps that began while the thread that ended them waited for a GPU."""
    lane = works.thread[pieces.at].astype(np.int64)
    before = np.where(pieces.edge, pieces.start, pieces.before)
    waited_at, waited_after = (
        host_waits.waited_ns(works.synced, lane, t) for t in (before, before + 1)
    )
    return (waited_after > waited_at) & ~pieces.edge


def _name_codes(trace: Trace, nodes: Array) -> Array:
    """Code of each node's name: twice the number of the name, one more if it ends with its step's; -1 without a node."""
    code = np.full(len(nodes), -1, np.int64)
    known = nodes >= 0
    name = trace.array("name")[nodes[known]].astype(np.int64)
    used = gather.unique_codes(name)
    texts = trace.names()
    _, ends = name_stems.split_numbers(texts[i] for i in used.tolist())
    of_step = ends[np.searchsorted(used, name)] == trace.integers("iteration", nodes[known])
    code[known] = 2 * name + of_step
    return code


def _names_over_steps(trace: Trace, codes: Array) -> tuple[Array, list[str]]:
    """Codes of names of those of `_name_codes`, and the names: ``ProfilerStep#`` of every step is one."""
    names = trace.names()
    known = codes >= 0
    name, of_step = codes >> 1, codes & 1
    used = gather.unique_codes(name)
    stems, _ = name_stems.split_numbers(names[i] for i in used.tolist())
    code_of_stem: dict[str, int] = {}
    merged = np.array(
        [code_of_stem.setdefault(s, len(names) + len(code_of_stem)) for s in stems], np.int64
    )
    result = np.full(len(codes), -1, np.int64)
    at = np.searchsorted(used, name[known])
    result[known] = np.where(of_step[known] == 1, merged[at], name[known])
    return result, [*names, *code_of_stem]


def _annotations(trace: Trace, works: WorkTimes, threshold_ns: int) -> dict[str, Any]:
    """Return idle time of the GPU before each node, and the cause of its largest part."""
    rows = works.row
    at = np.flatnonzero((works.before != gaps.NO_TIME) & (works.start > works.before))
    since, until = works.before[at], works.start[at]
    all_gaps = _Intervals(at, at, since, until, since, np.zeros(len(at), bool))
    parts = _divide_by_cause(works, all_gaps, threshold_ns)
    largest = np.argmax(np.stack([parts[name] for name in CAUSES]), axis=0)
    idle_ns = np.zeros(trace.nodes.num_rows, np.int64)
    cause = np.full(trace.nodes.num_rows, -1, np.int32)
    idle_ns[rows[at]], cause[rows[at]] = until - since, largest
    unknown = np.ones(trace.nodes.num_rows, bool)
    unknown[rows] = works.before == gaps.NO_TIME
    return {
        "idle_ns": arrow.array(idle_ns, mask=unknown),
        "idle_cause": arrow.dictionary(cause, CAUSES),
    }


def _conventions(names: list[str], threshold_ns: int) -> dict[str, str]:
    resource = (
        "a stream" if "stream" in names else "a GPU" if "device" in names else "a rank's GPUs"
    )
    return {
        "idle": f"times in which no work of {resource} runs",
        "links": "all GPU work counts, whether its launch is recorded or not; gaps before work "
        "without a recorded launch are unknown",
        "memset": "counts as work",
        "copies": "count as work",
        "short gaps": f"kernel_to_kernel if below {threshold_ns:,} ns and launched in time; longer "
        "ones are unknown",
    }


def _notes(trace: Trace, steps: str, measured: _IdleTimes) -> dict[str, str]:
    notes = windows.work_notes(trace, steps)
    if measured.unlinked:
        notes["links"] = (
            f"{measured.unlinked:,} of {measured.work:,} pieces of work have no recorded launch"
        )
    if ranks_without_work := len(trace.ranks) - measured.ranks:
        notes["left out"] = f"{ranks_without_work:,} ranks without GPU work have no rows"
    if not measured.work:
        notes["no rows"] = "the trace has no GPU work"
    elif not trace.has("instance"):
        notes["peers"] = "collectives are not matched between ranks: no wait for a peer is known"
    return notes
