"""Counter tracks of a Perfetto trace as series."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters import perfetto_read_kinds as kinds
from chopper_interop.converters.perfetto_counters import DISPATCH_SOURCE
from chopper_interop.converters.perfetto_read_events_decode import COUNTER
from chopper_interop.converters.perfetto_read_tracks import Track, Tracks
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chopper_interop.build import TraceBuilder
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.perfetto_about import About
    from chopper_interop.converters.perfetto_read_events_decode import Events
    from chopper_interop.converters.perfetto_read_lists_decode import Lists

AS_SAMPLES = Fault(
    "counters-as-samples",
    Severity.INFO,
    "Values of counter tracks became samples.",
    events=True,
)
DRAWN = Fault(
    "counters-drawn-again",
    Severity.INFO,
    "Counter tracks that our writer draws of what slices carry were not taken twice.",
    events=True,
)
NOT_FINITE = Fault(
    "counter-not-finite",
    Severity.LOSS,
    "Values of counters that are no finite numbers were left out.",
    events=True,
)
WHOLE = Fault(
    "counter-values-whole",
    Severity.INFO,
    "rocprofv3 writes hardware counters to this format without their decimals; its CSV, JSON or "
    "rocpd has them.",
)
BYTES_ROUNDED = Fault(
    "counter-bytes-rounded",
    Severity.INFO,
    "rocprofv3 writes bytes that are copied and allocated in whole KiB.",
)

_CONSTANT = " (constant)"
_OUR_GPU = re.compile(r"GPU (\d+)")
_ROUNDED = re.compile(r"(COPY BYTES to|ALLOCATE BYTES on|FREE BYTES|SCRATCH MEMORY on)")


def samples(  # noqa: PLR0913, PLR0917 # columns of one table
    builder: TraceBuilder, events: Events, lists: Lists, ts: Array, keep: Array, tracks: Tracks,
    ranks: Mapping[int, int], source: str, issues: IssueLog, about: About, *, ours: bool,
) -> None:  # fmt: skip
    """Add the series of all counter tracks.

    Parameters
    ----------
    builder
        Where they go.
    events, lists, ts, keep
        What was decoded, the events' times on the trace's clock, and which events have one.
    tracks
        The tracks.
    ranks
        Process id → rank.
    source
        Tool that wrote the trace.
    issues
        Where it is told what became of them.
    about
        What our own writer says of it.
    ours
        Whether our own writer wrote it.
    """
    rows = np.flatnonzero((events.type == COUNTER) & keep)
    whole = events.number[rows]
    value = np.where(events.real[rows], whole.view(np.float64), whole.astype(np.float64))
    further = np.flatnonzero(keep[lists.counter_event])
    of_event = lists.counter_event[further]
    uuid = np.concatenate([events.track[rows], lists.counter_track[further]])
    when = np.concatenate([ts[rows], ts[of_event]])
    value = np.concatenate([value, lists.counter_value[further]])
    order = np.lexsort((when, uuid))
    uuid, when, value = uuid[order], when[order], value[order]
    bounds = np.flatnonzero(np.append(uuid[1:] != uuid[:-1], True)) + 1
    start = 0
    for stop in bounds.tolist() if len(uuid) else []:
        _series(builder, tracks, int(uuid[start]), when[start:stop], value[start:stop], ranks,
                source, issues, about.uncertainty_ns.get(int(uuid[start]), 0), ours=ours)  # fmt: skip
        start = stop


def _series(  # noqa: PLR0913, PLR0917 # columns of one table
    builder: TraceBuilder, tracks: Tracks, uuid: int, ts: Array, value: Array,
    ranks: Mapping[int, int], source: str, issues: IssueLog, uncertainty_ns: int, *, ours: bool,
) -> None:  # fmt: skip
    line = tracks.line(uuid)
    track = line[0] if line else Track(name=f"track {uuid}")
    names = [t.name for t in line[1:] if t.name]
    if ours and names and names[0] == DISPATCH_SOURCE:
        issues.add(DRAWN, len(ts))
        return
    if track.incremental:
        value = np.cumsum(value)
    value = value * track.multiplier
    finite = np.isfinite(value)
    issues.add(NOT_FINITE, np.count_nonzero(~finite), track.name)
    issues.add(AS_SAMPLES, np.count_nonzero(finite))
    if kinds.WHOLE_COUNTER.match(track.name):
        issues.add(WHOLE, 1, track.name)
    if source == kinds.ROCPROF and _ROUNDED.match(track.name):
        issues.add(BYTES_ROUNDED, 1, track.name)
    if ours and names:
        source = names[0].removesuffix(_CONSTANT)
    row = builder.series(
        _rank(tracks, uuid, ranks),
        track.name,
        track.unit,
        source,
        device=_device(track.name, names),
        uncertainty_ns=uncertainty_ns,
    )
    builder.samples(row, ts[finite], value[finite])


def _rank(tracks: Tracks, uuid: int, ranks: Mapping[int, int]) -> int:
    pid = tracks.owner(uuid)
    if pid in ranks:
        return ranks[pid]
    known = set(ranks.values()) - {-1}
    return known.pop() if len(known) == 1 and pid not in tracks.processes else -1


def _device(name: str, parents: list[str]) -> int:
    """The GPU that a counter's track or the groups around it name."""
    if kinds.COUNTER_OF_HOST.search(name):
        return -1
    for text in (*parents, name):
        told = _OUR_GPU.match(text) if text != name else kinds.COUNTER_DEVICE.search(text)
        if told:
            return int(next(filter(None, told.groups())))
    return -1
