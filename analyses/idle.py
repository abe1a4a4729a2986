"""Why GPUs did nothing: the host, the launch, another stream, another rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import gaps, grouping, host_waits, windows
from chopper_interop.columns import arrow, gather
from chopper_interop.columns.members import is_any
from chopper_interop.communication import times as collective_times
from chopper_interop.graph_chains import streams
from chopper_interop.peers import idle as peers_idle
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import GPU_LANES, EdgeKind
from chopper_interop.timing import latencies

if TYPE_CHECKING:
    from chopper_interop.activity.grouping import Groups
    from chopper_interop.activity.host_waits import Waits
    from chopper_interop.activity.windows import Window
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

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
    """Idle time of GPUs by cause: every nanosecond has one, and they sum to `temporal`'s `idle_ns`.

    A gap, in which nothing runs, belongs to the work that ends it. In the order of time it is split:

    ``host_late``, ``sync``
        Until the call that asked for that work began. `sync` is what of this the thread of the call
        spent in calls that wait for the GPU, `host_late` the rest.
    ``event``, ``peer``
        Then, until the work had ended for which it waits by an event and which ends last. `peer` is
        what of this that work was waiting itself for another rank, as `collectives` tells. Only
        streams, or one of several GPUs of a rank, have such gaps: on a GPU that one is busy.
    ``launch``, ``kernel_to_kernel``, ``unknown``
        The rest. `launch` if the host was late, or the launch was on its way when the gap began: of
        what the work waited for, with the least latencies that the trace shows, it was what came
        last (`timing.Timing.binding`). Else `kernel_to_kernel` below `threshold_ns`. What is
        longer, and what comes before work of which the call is not known, has no recorded reason.
    ``window``
        Before the first and behind the last work of the GPU (or stream) in the trace.

    Parameters
    ----------
    trace
        Any trace.
    by
        Granularity of the rows: names of `grouping.GRAINS`, "device" and "blame", separated by
        commas. With "stream" gaps are those of each stream, with "device" of each GPU, else times
        when all GPUs of a rank do nothing; they are grouped by the work that ends them, "blame" by
        the host's operation that made it late.
    steps
        All of the trace; "each" training step, or "3,5-7", by itself.
    ranks
        Ranks by numbers and ranges, "0,4-7"; all if empty.
    top
        How many of the operations that are to blame the summary lists.
    compat
        "hta": Holistic Trace Analysis' breakdown of each stream into `host_wait_ns`,
        `kernel_wait_ns` and `other_ns`.
    threshold_ns
        Below this the time from one kernel to the next, asked for before, is taken for that of the
        GPU itself; what HTA calls `consecutive_kernel_delay`, with its default.

    Returns
    -------
    Result
        One row a group: `idle_ns`, its parts named above (`host_late_ns`, …), `gaps`;
        `after_sync_ns`, the part of `host_late_ns` in gaps that began while the thread waited for
        the GPU, which so had run out of work; and beside it, not idle, `comm_wait_ns`: time in
        which communication waited for another rank, as `collectives` tells, each moment once. Ranks
        without any GPU work have no rows, even where their steps are marked. The summary
        has the sums, and in `blame` the operations of hosts that made GPUs wait: the innermost one on
        the launching thread that covers half or more of the late time, null where none does.

        Annotations `idle_ns` and `idle_cause`, what took most of it, of the work that ends a gap of
        its GPU.

    Notes
    -----
    HTA tells host wait, kernel wait (gaps under a threshold) and other by stream, each gap as a
    whole (traceinsight 0.6.1, `get_idle_time_breakdown`).
    """
    gaps.chosen_compat(compat, _COMPAT)
    found = windows.of_ranks(trace, steps, ranks)
    if compat == "hta":
        return peers_idle.idle(trace, found, steps, threshold_ns)
    names = [name.strip() for name in by.split(",") if name.strip()]
    grouping.grains(",".join(name for name in names if name not in _OWN_GRAINS))
    rows = gaps.work_rows(trace)
    works = _works(trace, rows)
    place, places = _places(trace, rows, names)
    pieces = _pieces(trace, rows, (place, places), found)
    parts = _parts(works, pieces, threshold_ns)
    waits = _comm_waits(trace, rows, (place, places), found)
    further: dict[str, Any] = {}
    every = np.concatenate([pieces.at, waits.at])
    if "device" in names:
        further["device"] = gaps.devices(trace, rows[every])
    if steps:
        number = np.array([window.iteration for window in found], np.int64)
        further["iteration"] = number[np.concatenate([pieces.window, waits.window])]
    if "blame" in names:
        late = parts["host_late"] > 0
        blamed = np.where(late, works.blame[pieces.at], -1)
        further["blame"] = _names(trace, np.append(blamed, np.full(len(waits.at), -1)))
    groups = gaps.groups(trace, rows[every], by, further)
    columns = _columns(groups, pieces, parts, waits, works)
    table = pa.table({name: groups.keys[name] for name in groups.keys.column_names} | columns)
    summary: dict[str, Any] = {name: int(arrow.numbers(c).sum()) for name, c in columns.items()}
    summary["blame"] = _blame(trace, works, pieces, parts, top)
    known = _annotations(trace, rows, works, threshold_ns)
    notes = _notes(trace, steps, works, rows)
    return Result("idle", table, summary, _conventions(names, threshold_ns), known, notes)


@dataclass(frozen=True)
class _Works:
    """What is known of when each piece of GPU work could have begun.

    Parameters
    ----------
    start, end
        When it ran.
    ask
        When the call for it began, no later than its start; `gaps.NEVER` if that is not known.
    bound
        Whether it was the launch that it waited for last, with the least times that the trace shows.
    thread
        Lane of that call, -1 if not known.
    event_end
        When what it waits for by an event had ended; `gaps.NEVER` for none.
    peer_start, peer_end
        While that was waiting for another rank.
    synced
        Waits of threads for GPUs.
    blame
        The host's operation that made it late.
    """

    start: Array
    end: Array
    ask: Array
    bound: Array
    thread: Array
    event_end: Array
    peer_start: Array
    peer_end: Array
    synced: Waits
    blame: Array
    before: Array


@dataclass(frozen=True)
class _Pieces:
    """Stretches of time that belong to GPU work, each in one window.

    Parameters
    ----------
    at
        Position of the work.
    window
        Number of the window.
    start, end
        Time.
    before
        When the gap began of which this is a part.
    edge
        Whether nothing comes before, or behind.
    """

    at: Array
    window: Array
    start: Array
    end: Array
    before: Array
    edge: Array


def _works(trace: Trace, rows: Array) -> _Works:
    start = trace.array("ts")[rows]
    end = start + trace.array("dur")[rows]
    called = gaps.asked(trace, rows)
    known = called != gaps.NEVER
    ask = np.where(known, np.minimum(called, start), gaps.NEVER)
    call = trace.launch[rows]
    thread = np.where(known, trace.array("lane")[np.maximum(call, 0)], -1)
    synced = host_waits.of(trace)
    gpu, gpus = gaps.gpus(trace, rows)
    before = gaps.reach(gpu, gpus, start, end)
    blame = host_waits.blamed(trace, synced, thread, before, ask)
    bound = known & _bound_by_launch(trace, rows)
    return _Works(start, end, ask, bound, thread, *_events(trace, rows), synced, blame, before)


def _bound_by_launch(trace: Trace, rows: Array) -> Array:
    """Which work started when its launch had reached the GPU, not when the work ahead had ended.

    As of `timing.Timing.binding`: what was reached last, with the least latency of its kind.
    """
    ts, dur = trace.array("ts"), trace.array("dur")
    src, dst, kind = (trace.array(c, "edges") for c in ("src", "dst", "kind"))
    on_gpu = is_any(trace.array("kind", "lanes"), GPU_LANES)
    before = streams(ts, dur, trace.array("lane"), on_gpu)
    told = latencies.of(trace, before)
    end = ts + dur
    ready = np.where(told.from_end | (kind == EdgeKind.EVENT), end[src], ts[src]) + told.least_ns
    of_kind = {}
    for what in (EdgeKind.LAUNCH, EdgeKind.EVENT):
        chosen = kind == what
        of_kind[what] = np.full(len(ts), gaps.NEVER)
        np.maximum.at(of_kind[what], dst[chosen], ready[chosen])
    behind = before[rows]
    gap = ts[rows] - end[behind]
    least = np.minimum(latencies.of_streams(ts, end, before), gap)
    free = np.where(behind >= 0, end[behind] + least, gaps.NEVER)
    return of_kind[EdgeKind.LAUNCH][rows] > np.maximum(free, of_kind[EdgeKind.EVENT][rows])


def _events(trace: Trace, rows: Array) -> tuple[Array, Array, Array]:
    """When what each waits for by an event ended, and while that waited for another rank."""
    drawn = np.flatnonzero(trace.array("kind", "edges") == EdgeKind.EVENT)
    src, dst = (trace.array(c, "edges")[drawn] for c in ("src", "dst"))
    end = trace.array("ts") + trace.array("dur")
    order = np.argsort(end[src], kind="stable")
    source = np.full(trace.nodes.num_rows, -1, np.int64)
    source[dst[order]] = src[order]  # of several the one that ends last is written last
    source = source[rows]
    known = source >= 0
    of = np.maximum(source, 0)
    until = _waited_until(trace)
    waits = known & (until[of] != gaps.NEVER)
    none = np.full(len(rows), gaps.NEVER)
    return (
        np.where(known, end[of], none),
        np.where(waits, trace.array("ts")[of], none),
        np.where(waits, until[of], none),
    )


def _waited_until(trace: Trace) -> Array:
    """Until when each node waited for other ranks, as `communication.times` tells; `NEVER` if it did not."""
    times = collective_times.of(trace)
    until = np.full(trace.nodes.num_rows, gaps.NEVER)
    waits = times.wait > 0
    until[times.row[waits]] = (times.start + times.wait)[waits]
    return until


def _places(trace: Trace, rows: Array, names: list[str]) -> tuple[Array, int]:
    """What a gap is of: a stream, a GPU, or all GPUs of a rank; and how many there may be."""
    if "stream" in names:
        return trace.array("lane")[rows].astype(np.int64), trace.lanes.num_rows
    if "device" in names:
        return gaps.gpus(trace, rows)
    first, code = gather.distinct(trace.array("rank")[rows])
    return code, len(first)


def _pieces(trace: Trace, rows: Array, places: tuple[Array, int], found: list[Window]) -> _Pieces:
    """All time of the windows in which places do nothing, by the work that ends it."""
    place, n = places
    start = trace.array("ts")[rows]
    end = start + trace.array("dur")[rows]
    before = gaps.reach(place, n, start, end)
    leads = before == gaps.NEVER
    last, reached = np.zeros(n, np.int64), np.full(n, gaps.NEVER)
    last[place] = np.arange(len(rows))  # of equal ones the last is written last
    np.maximum.at(reached, place, end)
    rank = trace.array("rank")[rows]
    begins, ends = _bounds(found)
    gap = np.flatnonzero(~leads & (start > before))
    inner, window = gaps.overlapping(
        gather.places(place[gap], n), before[gap], start[gap], rank[gap], found
    )
    head = np.flatnonzero(leads)
    always = np.full(len(head), gaps.NEVER), np.full(len(head), np.iinfo(np.int64).max)
    lead, of_lead = gaps.overlapping(gather.places(place[head], n), *always, rank[head], found)
    at, window = np.append(gap[inner], head[lead]), np.append(window, of_lead)
    since = np.maximum(before[at], begins[window])
    until = np.maximum(np.minimum(start[at], ends[window]), since)
    mine = place[head[lead]]
    behind = np.clip(reached[mine], begins[of_lead], ends[of_lead])
    trails = ends[of_lead] > behind
    mine, of_trail = mine[trails], of_lead[trails]
    return _Pieces(
        np.append(at, last[mine]),
        np.append(window, of_trail),
        np.append(since, behind[trails]),
        np.append(until, ends[of_trail]),
        np.append(before[at], reached[mine]),
        np.append(leads[at], np.ones(len(mine), bool)),
    )


def _bounds(found: list[Window]) -> tuple[Array, Array]:
    """Where windows begin and end."""
    return (
        np.array([window.start_ns for window in found], np.int64),
        np.array([window.end_ns for window in found], np.int64),
    )


def _parts(works: _Works, pieces: _Pieces, threshold_ns: int) -> dict[str, Array]:
    """How much of each piece is due to each cause."""
    at, since, until = pieces.at, pieces.start, pieces.end
    ask, event = works.ask[at], works.event_end[at]
    asked = np.clip(ask, since, until)
    lane = works.thread[at].astype(np.int64)
    sync = np.subtract(*(host_waits.waited_ns(works.synced, lane, to) for to in (asked, since)))
    ready = np.clip(event, asked, until)
    peer = np.minimum(works.peer_end[at], ready) - np.maximum(works.peer_start[at], asked)
    peer = np.where(works.peer_end[at] == gaps.NEVER, 0, np.maximum(peer, 0))
    rest = until - ready
    unlinked, launched = ask == gaps.NEVER, works.bound[at] | (ask > pieces.before)
    short = ~unlinked & ~launched & (rest < threshold_ns)
    parts = {
        "host_late": asked - since - sync,
        "sync": sync,
        "launch": np.where(launched, rest, 0),
        "kernel_to_kernel": np.where(short, rest, 0),
        "event": ready - asked - peer,
        "peer": peer,
        "window": np.zeros_like(rest),
        "unknown": np.where(launched | short, 0, rest),
    }
    parts = {name: np.where(pieces.edge, 0, values) for name, values in parts.items()}
    parts["window"] = np.where(pieces.edge, until - since, 0)
    return parts


def _comm_waits(
    trace: Trace, rows: Array, places: tuple[Array, int], found: list[Window]
) -> _Pieces:
    """Time in which communication waited for another rank, each moment of a place once."""
    place, n = places
    until = _waited_until(trace)[rows]
    at = np.flatnonzero(until != gaps.NEVER)
    start, until = trace.array("ts")[rows[at]], until[at]
    since = np.maximum(start, gaps.reach(place[at], n, start, until))
    some = until > since
    at, since, until = at[some], since[some], until[some]
    rank = trace.array("rank")[rows[at]]
    begins, ends = _bounds(found)
    which, window = gaps.overlapping(gather.places(place[at], n), since, until, rank, found)
    since = np.maximum(since[which], begins[window])
    until = np.minimum(until[which], ends[window])
    some = until > since
    since, until, at, window = since[some], until[some], at[which][some], window[some]
    return _Pieces(at, window, since, until, since, np.zeros(len(since), bool))


def _columns(
    groups: Groups, pieces: _Pieces, parts: dict[str, Array], waits: _Pieces, works: _Works
) -> dict[str, Any]:
    none = np.zeros(len(waits.at), np.int64)
    took = pieces.end - pieces.start
    drained = _began_in_sync(works, pieces)
    columns = {"idle_ns": took, **{f"{name}_ns": parts[name] for name in CAUSES}}
    columns["gaps"] = (took > 0).astype(np.int64)
    columns["after_sync_ns"] = np.where(drained, parts["host_late"], 0)
    summed = {name: groups.sums(np.append(values, none)) for name, values in columns.items()}
    waited = np.append(np.zeros(len(took), np.int64), waits.end - waits.start)
    summed["comm_wait_ns"] = groups.sums(waited)
    return {name: arrow.array(values) for name, values in summed.items()}


def _began_in_sync(works: _Works, pieces: _Pieces) -> Array:
    """Which gaps began while the thread that ended them waited for a GPU."""
    lane = works.thread[pieces.at].astype(np.int64)
    before = np.where(pieces.edge, pieces.start, pieces.before)
    at_, next_ = (host_waits.waited_ns(works.synced, lane, t) for t in (before, before + 1))
    return (next_ > at_) & ~pieces.edge


def _names(trace: Trace, nodes: Array) -> Any:
    code = np.where(nodes >= 0, trace.array("name")[np.maximum(nodes, 0)] if len(nodes) else 0, -1)
    return arrow.dictionary(code, trace.names(), mask=code < 0)


def _blame(
    trace: Trace, works: _Works, pieces: _Pieces, parts: dict[str, Array], top: int
) -> list[dict[str, Any]]:
    """Operations of hosts that made GPUs wait, the worst first."""
    late = np.flatnonzero(parts["host_late"] > 0)
    if not late.size:
        return []
    node = works.blame[pieces.at[late]]
    name = np.where(node >= 0, trace.array("name")[np.maximum(node, 0)], -1)
    first, code = gather.distinct(name)
    total = np.zeros(len(first), np.int64)
    np.add.at(total, code, parts["host_late"][late])
    count, whole = np.bincount(code, minlength=len(first)), int(total.sum())
    names = trace.names()
    return [
        {
            "operation": names[name[first[i]]] if name[first[i]] >= 0 else None,
            "host_late_ns": int(total[i]),
            "share": float(total[i] / whole),
            "gaps": int(count[i]),
        }
        for i in np.argsort(-total, kind="stable")[: max(top, 0)].tolist()
    ]


def _annotations(trace: Trace, rows: Array, works: _Works, threshold_ns: int) -> dict[str, Any]:
    """Idle time of its GPU before each, and what took most of it."""
    at = np.flatnonzero((works.before != gaps.NEVER) & (works.start > works.before))
    since, until = works.before[at], works.start[at]
    whole = _Pieces(at, at, since, until, since, np.zeros(len(at), bool))
    parts = _parts(works, whole, threshold_ns)
    most = np.argmax(np.stack([parts[name] for name in CAUSES]), axis=0)
    idle_ns = np.zeros(trace.nodes.num_rows, np.int64)
    cause = np.full(trace.nodes.num_rows, -1, np.int32)
    idle_ns[rows[at]], cause[rows[at]] = until - since, most
    unknown = np.ones(trace.nodes.num_rows, bool)
    unknown[rows] = works.before == gaps.NEVER
    return {
        "idle_ns": arrow.array(idle_ns, mask=unknown),
        "idle_cause": arrow.dictionary(cause, CAUSES, mask=cause < 0),
    }


def _conventions(names: list[str], threshold_ns: int) -> dict[str, str]:
    what = "a stream" if "stream" in names else "a GPU" if "device" in names else "a rank's GPUs"
    return {
        "idle": f"times at which none of the work of {what} runs",
        "links": "all GPU work counts, whether its launch is recorded or not; gaps before what is "
        "without are unknown",
        "memset": "counts as work",
        "copies": "count as work",
        "short gaps": f"kernel_to_kernel if below {threshold_ns:,} ns and asked for before; longer "
        "ones are unknown",
    }


def _notes(trace: Trace, steps: str, works: _Works, rows: Array) -> dict[str, str]:
    whole = "from the first start to the last end of a rank's GPU work"
    told = {"window": windows.described(steps, whole)}
    if unlinked := int(np.count_nonzero(works.ask == gaps.NEVER)):
        told["links"] = (
            f"{unlinked:,} of {len(rows):,} pieces of work are without a recorded launch"
        )
    with_work = np.count_nonzero(np.diff(trace.array("rank")[rows])) + bool(len(rows))
    if without := len(trace.ranks) - with_work:
        told["left out"] = f"{without:,} ranks without GPU work have no rows"
    if not len(rows):
        told["no rows"] = "the trace has no GPU work"
    elif "instance" not in trace.nodes.column_names:
        told["peers"] = "collectives are not matched between ranks: peer and comm_wait_ns are 0"
    return told
