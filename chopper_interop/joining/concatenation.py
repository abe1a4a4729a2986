"""Concatenation of traces by the user: of different ranks, or of windows that follow each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from chopper_interop import build
from chopper_interop.arrays import arrow, nest
from chopper_interop.arrays.gather import is_any
from chopper_interop.edges import collectives
from chopper_interop.errors import AmbiguousRunError, UsageError
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.joining import rematch, windows
from chopper_interop.schemas.kinds import NESTING
from chopper_interop.schemas.meta import COMPUTED, LOCALTIME, ORDER, REALTIME, Meta, Rank
from chopper_interop.trace import Trace

STEPS_MOVED = Fault.info(
    "iterations-moved",
    "Training steps that were counted from 0 in each of several windows were counted on from one window "
    "to the next.",
)
_TOGETHER = "read their files together: chopper_interop.read aligns clocks"
_OF_ANY_HOST = (REALTIME, LOCALTIME, ORDER, COMPUTED)
"""Clocks that are not those of one machine alone."""
_COUNTED = "iterations-counted"


def concat(traces: Iterable[Trace], *, name: str | None = None) -> Trace:
    """Concatenate traces of different ranks, or of later windows of the same ranks, as one.

    Clocks: no time is changed, so all must be on one clock. To align clocks of ranks or of
    telemetry, `read` their files together instead.

    Ids: nodes, lanes, series and groups are renumbered; threads and streams that occur in several
    windows become one. Where correlation ids or counted steps of a window occur in an earlier one
    of its rank, they are counted on (a counted step that a window cuts becomes two). Collectives
    are matched over all ranks, with their edges. No other edges are added between windows.

    `meta`: sources, ranks, devices, issues, facts and clock relations of all, each once; relations
    to clocks that the traces have different ones of are left out.

    Parameters
    ----------
    traces
        Traces; one that is alone is returned as it is.
    name
        Name of the job; that of the first trace by default.

    Raises
    ------
    UsageError
        There are no traces, or they are on different clocks.
    AmbiguousRunError
        Two traces have the same rank at the same time, or as different processes: they are
        different runs, or hold the same events.

    Examples
    --------
    >>> import chopper_interop as ci
    >>> from chopper_interop.testing.samples import tiny_trace
    >>> trace = tiny_trace()
    >>> ci.concat([trace.between(0, 4_000), trace.between(4_000, 11_000)]).array("ts")
    array([   0, 1000, 3000, 4000, 9500])
    >>> ci.concat([trace, trace])
    Traceback (most recent call last):
    ...
    chopper_interop.errors.AmbiguousRunError: rank 0 is in both 'tiny' and 'tiny' at the same time \
(give traces of different ranks, or windows that follow each other)
    """
    given = list(traces) if isinstance(traces, Iterable) else []
    _refuse_others(given)
    if len(given) == 1:
        return given[0]
    for one, other in combinations(given, 2):
        _refuse_same_time(one, other)
    ordered = sorted(given, key=_first_start)
    log = IssueLog("job")
    parts = _with_iterations_apart(windows.with_ids_apart(ordered), log)
    parts = [_unmatched(part) for part in parts]
    whole = windows.with_lanes_once(build.concat(parts, _meta(ordered, name)))
    whole = _with_parents(whole)
    whole = collectives.match_collectives(collectives.name_collectives(whole), log)
    whole = collectives.add_collective_edges(whole, log)
    return whole.with_meta(issues=(*whole.meta.issues, *log))


def _refuse_others(traces: Sequence[Trace]) -> None:
    """Raise `UsageError` unless there are traces, on one clock."""
    if not traces or not all(isinstance(trace, Trace) for trace in traces):
        raise UsageError("concat takes a list of traces")
    clocks = sorted({trace.meta.clock for trace in traces})
    if len(clocks) > 1:
        raise UsageError(f"the traces are on different clocks: {', '.join(clocks)}", hint=_TOGETHER)
    hosts = sorted({rank.host for trace in traces for rank in trace.meta.ranks if rank.host})
    if clocks[0] not in _OF_ANY_HOST and len(hosts) > 1:
        raise UsageError(
            f"the traces are on the clocks ({clocks[0]}) of different machines: {', '.join(hosts)}",
            hint=_TOGETHER,
        )


def _refuse_same_time(one: Trace, other: Trace) -> None:
    """Raise `AmbiguousRunError` for a rank that starts nodes in both at the same time, or differs."""
    names = f"in both {one.meta.job!r} and {other.meta.job!r}"
    hint = "give traces of different ranks, or windows that follow each other"
    for rank in sorted({*one.ranks} & {*other.ranks}):
        a, b = (_process(trace.meta.ranks, rank) for trace in (one, other))
        if a and b and a != b:
            raise AmbiguousRunError(f"rank {rank} is {names}, as processes {a} and {b}", hint=hint)
        spans = sorted(_starts(trace, rank) for trace in (one, other))
        if spans[0][1] >= spans[1][0]:
            raise AmbiguousRunError(f"rank {rank} is {names} at the same time", hint=hint)


def _process(ranks: Iterable[Rank], rank: int) -> str:
    """Machine and id of a rank's process; empty if not known."""
    known = next((r for r in ranks if r.rank == rank and r.pid >= 0), None)
    return f"{known.host}:{known.pid}" if known else ""


def _starts(trace: Trace, rank: int) -> tuple[int, int]:
    """First and last start of a rank's nodes, on the clock of the trace."""
    ts = trace.array("ts")[trace.rank_rows[rank]]
    return trace.meta.origin_ns + int(ts[0]), trace.meta.origin_ns + int(ts[-1])


def _first_start(trace: Trace) -> int:
    return min((_starts(trace, rank)[0] for rank in trace.ranks), default=trace.meta.origin_ns)


def _with_iterations_apart(traces: Sequence[Trace], log: IssueLog) -> list[Trace]:
    """Traces in order of time whose counted steps go on after those of earlier ones of a rank."""
    apart, last = [], dict.fromkeys((r for trace in traces for r in trace.ranks), -1)
    for trace in traces:
        iteration = trace.integers("iteration")
        known = iteration >= 0
        counted = any(issue.code == _COUNTED for issue in trace.meta.issues)
        after = max((last[rank] for rank in trace.ranks), default=-1) + 1
        first = int(iteration[known].min()) if known.any() else after
        if counted and first < after:
            iteration = np.where(known, iteration + after - first, iteration)
            masked = np.ma.masked_array(iteration.astype(np.int32), ~known)
            trace = trace.with_columns(iteration=arrow.nan_to_null(masked))  # noqa: PLW2901
            log.add(STEPS_MOVED, 1, f"from {after} on")
        for rank, rows in trace.rank_rows.items():
            last[rank] = max(last[rank], int(iteration[rows].max()))
        apart.append(trace)
    return apart


def _unmatched(trace: Trace) -> Trace:
    """The trace without matches of its collectives; its clocks stay as aligned by them."""
    if not rematch.has_matches(trace):
        return trace
    return rematch.without_matches(trace).with_meta(clocks=trace.meta.clocks)


def _with_parents(trace: Trace) -> Trace:
    """The trace with each call's caller, which may be in an earlier window."""
    nests = is_any(trace.array("kind", "lanes"), NESTING)
    parent = nest.parents(trace.array("lane"), trace.array("ts"), trace.array("dur"), nests)
    return replace(trace, nodes=arrow.replace_column(trace.nodes, "parent", parent))


def _meta(traces: Sequence[Trace], name: str | None) -> Meta:
    metas = [trace.meta for trace in traces]
    ranks = {rank.rank: rank for meta in reversed(metas) for rank in meta.ranks}
    log = IssueLog()
    log.extend(dict.fromkeys(issue for meta in metas for issue in meta.issues))
    offsets = dict.fromkeys(offset for meta in metas for offset in meta.offsets)
    named = [offset.clock for offset in offsets]
    return replace(
        metas[0],
        job=name or metas[0].job,
        run=metas[0].run if len({meta.run for meta in metas}) == 1 else "",
        ranks=tuple(ranks[number] for number in sorted(ranks)),
        offsets=tuple(offset for offset in offsets if named.count(offset.clock) == 1),
        clocks=tuple(dict.fromkeys(fit for meta in metas for fit in meta.clocks)),
        devices=tuple(dict.fromkeys(device for meta in metas for device in meta.devices)),
        device_matches=tuple(dict.fromkeys(m for meta in metas for m in meta.device_matches)),
        sources=tuple(dict.fromkeys(source for meta in metas for source in meta.sources)),
        facts={key: value for meta in reversed(metas) for key, value in meta.facts.items()},
        issues=tuple(log),
    )
