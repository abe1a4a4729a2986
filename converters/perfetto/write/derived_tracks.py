"""Tracks of slices that stand for no event of the input.

On a GPU iterations, phases, layers, exposed and idle time; for the job, and on the ranks concerned, the
places of which analyses speak, a lane for each kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import arrow, intervals
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.perfetto.write import events_encode as encode
from chopper_interop.schemas.kinds import GPU_WORK, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chopper_interop.arrays.types import Array
    from chopper_interop.schemas.meta import Mark
    from chopper_interop.trace import Trace


SPAN_COLUMNS = {"iterations": "iteration", "phases": "phase", "layers": "layer"}
"""Tracks of a GPU that are made of columns, and these."""
EXPOSED, IDLE = "exposed communication", "idle"
DERIVED_TRACKS = (*SPAN_COLUMNS, EXPOSED, IDLE)
"""Tracks of a GPU, from the top."""
_OF_RANK = "finding"
"""Name of the lane on a rank; not that of the group, by which the UI finds the group."""
_MAX_RANKS = 8
"""Ranks that a mark is drawn on. Chosen: one that speaks of more speaks of the job."""
_COMPUTE = (Kind.KERNEL, Kind.MEMSET)
"""Kinds of work that hide communication, as the analysis `overlap` counts them."""


@dataclass(frozen=True)
class NamedSlices:
    """Slices in order of start that do not overlap.

    Parameters
    ----------
    ts, dur
        Start since the trace's origin and duration, ns.
    code, names
        Number of each slice's name among the names.
    arguments
        Of each slice, a JSON object; none has any if None.
    """

    ts: Array
    dur: Array
    code: Array
    names: list[str]
    arguments: list[bytes] | None = None

    def encoded_arguments(self) -> encode.Arguments:
        """Return the arguments as the encoder takes them."""
        raws = self.arguments or [b""] * len(self.ts)
        length = np.array([len(raw) for raw in raws], np.int32)
        buffer = np.frombuffer(bytearray(b"".join(raws) or b" "), np.uint8)
        return encode.Arguments(buffer, np.cumsum(length, dtype=np.int64) - length, length)


def mark_lanes(trace: Trace) -> Iterator[tuple[int, str, int, NamedSlices]]:
    """Yield rank (-1 for the job), name and row of each lane, and its slices.

    Marks of one lane that overlap go to several rows.
    """
    marks = sorted(trace.meta.marks, key=lambda m: (m.start_ns, -m.end_ns))
    lanes: dict[tuple[int, str], list[Mark]] = {}
    for mark in marks:
        lanes.setdefault((-1, mark.kind.replace("_", " ")), []).append(mark)
        for rank in ranks_of(mark, trace.ranks):
            lanes.setdefault((rank, _OF_RANK), []).append(mark)
    for (rank, name), own in lanes.items():
        start, end = (np.array([getattr(m, f) for m in own]) for f in ("start_ns", "end_ns"))
        row = encode.rows_without_overlap(start, end - start, 1)
        for k in range(row.max() + 1):
            rows = np.flatnonzero(row == k)
            yield rank, name, k, _slices_of_marks([own[i] for i in rows.tolist()])


def ranks_of(mark: Mark, present: Sequence[int]) -> list[int]:
    """Return the ranks that a mark is drawn on: those that it names, unless these are many."""
    named = set()
    for part in filter(None, mark.ranks.split(",")):
        first, _, last = part.partition("-")
        if first.strip().isdigit() and (not last or last.strip().isdigit()):
            named |= {r for r in present if int(first) <= r <= int(last or first)}
    return sorted(named) if len(named) <= _MAX_RANKS else []


def _slices_of_marks(marks: list[Mark]) -> NamedSlices:
    start, end = (np.array([getattr(m, f) for m in marks]) for f in ("start_ns", "end_ns"))
    names = [mark.text for mark in marks]
    arguments = [mark.details.encode() for mark in marks]
    return NamedSlices(start, end - start, np.arange(len(marks)), names, arguments)


def derived_tracks(trace: Trace) -> Iterator[tuple[int, int, str, NamedSlices]]:
    """Yield the tracks of a trace's GPUs: rank, device, name of the track, and its slices.

    Of a column consecutive kernels with the same value are one slice, from the first start to the
    last end, or to where the next slice begins, known or not.
    """
    coded = {track: _coded(trace, c) for track, c in SPAN_COLUMNS.items() if trace.has(c)}
    collective, idle_ns = trace.texts("collective"), trace.integers("idle_ns", unknown=0)
    cause = trace.texts("idle_cause")
    for rank, device, nodes in gpu_work(trace):
        kind = trace.array("kind")[nodes]
        kernels = nodes[kind == Kind.KERNEL]
        for track, (code, texts) in coded.items():
            if (code[kernels] >= 0).any():
                yield rank, device, track, _slices_of_runs(trace, kernels, code[kernels], texts)
        if (kind == Kind.COMM).any():
            yield rank, device, EXPOSED, _exposed(trace, nodes, kind, collective)
        idle = nodes[(idle_ns[nodes] > 0) & (cause[0][nodes] >= 0)]
        if len(idle):
            texts = [text.replace("_", " ") for text in cause[1]]
            ts = trace.array("ts")[idle] - idle_ns[idle]
            yield rank, device, IDLE, NamedSlices(ts, idle_ns[idle], cause[0][idle], texts)


def gpu_work(trace: Trace) -> Iterator[tuple[int, int, Array]]:
    """Yield rank, device, and the rows of its work by start, of each GPU that works."""
    lane_device = trace.array("device", "lanes")
    work = is_any(trace.array("kind"), GPU_WORK)
    for rank, rows in trace.rank_rows.items():
        nodes = np.flatnonzero(work[rows]) + rows.start
        device = lane_device[trace.array("lane")[nodes]]
        for d in np.unique(device).tolist():
            yield rank, d, nodes[device == d]


def _exposed(
    trace: Trace, nodes: Array, kind: Array, collective: tuple[Array, tuple[str, ...]]
) -> NamedSlices:
    """Time in which communication runs and nothing computes, named by the collective."""
    ts = trace.array("ts")[nodes]
    end = ts + trace.array("dur")[nodes]
    comm, compute = kind == Kind.COMM, is_any(kind, _COMPUTE)
    hidden = intervals.union(ts[compute], end[compute])
    start, stop = intervals.difference(intervals.union(ts[comm], end[comm]), hidden)
    last = np.searchsorted(ts[comm], start, "right") - 1  # of those that run the last to start
    name, texts = collective[0][nodes[comm]], collective[1]
    code = np.where(name < 0, len(texts), name)[last]
    return NamedSlices(start, stop - start, code, [*texts, "communication"])


def _coded(trace: Trace, column: str) -> tuple[Array, list[str]]:
    """Codes of an annotation column, -1 where unknown, and the names that they stand for."""
    data = arrow.single_chunk(trace.nodes[column]).dictionary_encode()
    label = "{}" if column == "phase" else f"{column} {{}}"
    texts = [label.format(value) for value in data.dictionary.to_pylist()]
    return arrow.to_numpy(data, -1), texts


def _slices_of_runs(trace: Trace, nodes: Array, code: Array, texts: list[str]) -> NamedSlices:
    """Return each run of nodes, in order of start, that have the same code."""
    ts = trace.array("ts")[nodes]
    end = ts + trace.array("dur")[nodes]
    first = np.flatnonzero(np.diff(code, prepend=code[0] - 1))
    stop = np.maximum.reduceat(end, first)  # the last end of each run
    start = ts[first]
    stop[:-1] = np.minimum(stop[:-1], start[1:])
    known = code[first] >= 0
    return NamedSlices(start[known], (stop - start)[known], code[first[known]], texts)
