"""Tracks of slices that stand for no event of the input.

On a GPU iterations, phases, layers, exposed and idle time; for the job, and on the ranks concerned, the
places of which analyses speak, a lane for each kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop import rank_batches
from chopper_interop.arrays import Array, arrow, intervals
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.perfetto.write import events_encode as encode
from chopper_interop.schemas.kinds import GPU_WORK, Kind

if TYPE_CHECKING:
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
    columns = {track: c for track, c in SPAN_COLUMNS.items() if trace.has(c)}
    labels = {track: _labels(trace, column) for track, column in columns.items()}
    texts = {track: list(of_track.values()) for track, of_track in labels.items()}
    for nodes, gpus in work_of_gpus(trace):
        kind = trace.array("kind")[nodes]
        codes = {t: _codes(trace, column, nodes, labels[t]) for t, column in columns.items()}
        collective, collectives = trace.texts("collective", nodes)
        idle_ns, (cause, causes) = (
            trace.integers("idle_ns", nodes, unknown=0),
            trace.texts("idle_cause", nodes),
        )
        named_causes = [text.replace("_", " ") for text in causes]
        for rank, device, rows in gpus:
            own, own_kind = nodes[rows], kind[rows]
            is_kernel = own_kind == Kind.KERNEL
            for track, of_nodes in codes.items():
                code = of_nodes[rows][is_kernel]
                if (code >= 0).any():
                    runs = _slices_of_runs(trace, own[is_kernel], code, texts[track])
                    yield rank, device, track, runs
            if (own_kind == Kind.COMM).any():
                names = collective[rows], collectives
                yield rank, device, EXPOSED, _exposed(trace, own, own_kind, *names)
            is_idle = (idle_ns[rows] > 0) & (cause[rows] >= 0)
            if is_idle.any():
                idle = idle_ns[rows][is_idle]
                ts = trace.array("ts")[own[is_idle]] - idle
                slices = NamedSlices(ts, idle, cause[rows][is_idle], named_causes)
                yield rank, device, IDLE, slices


def work_of_gpus(trace: Trace) -> Iterator[tuple[Array, list[tuple[int, int, slice]]]]:
    """Yield the rows of the work of some ranks' GPUs, GPU by GPU and by start, and what each GPU has of them.

    Returns
    -------
    rows, gpus
        Of each GPU that works its rank, its device, and which of the rows are of its work.
    """
    lane_device = trace.array("device", "lanes")
    for of_ranks in rank_batches.spans(trace):
        work = is_any(trace.array("kind")[of_ranks], GPU_WORK)
        nodes = np.flatnonzero(work) + of_ranks.start
        rank, device = trace.array("rank")[nodes], lane_device[trace.array("lane")[nodes]]
        order = np.lexsort((device, rank))  # stable: work of a GPU stays by start
        nodes, rank, device = nodes[order], rank[order], device[order]
        changes = (np.diff(rank) != 0) | (np.diff(device) != 0)
        first = np.flatnonzero(np.append(np.ones(min(len(nodes), 1), np.bool_), changes))
        bounds = pairwise([*first.tolist(), len(nodes)])
        owners = zip(rank[first].tolist(), device[first].tolist(), bounds, strict=True)
        yield nodes, [(r, d, slice(*rows)) for r, d, rows in owners]


def _exposed(
    trace: Trace, nodes: Array, kind: Array, name: Array, texts: Sequence[str]
) -> NamedSlices:
    """Time in which communication runs and nothing computes, named by the collective."""
    ts = trace.array("ts")[nodes]
    end = ts + trace.array("dur")[nodes]
    comm, compute = kind == Kind.COMM, is_any(kind, _COMPUTE)
    hidden = intervals.union(ts[compute], end[compute])
    start, stop = intervals.difference(intervals.union(ts[comm], end[comm]), hidden)
    last = np.searchsorted(ts[comm], start, "right") - 1  # of those that run the last to start
    code = np.where(name[comm] < 0, len(texts), name[comm])[last]
    return NamedSlices(start, stop - start, code, [*texts, "communication"])


def _labels(trace: Trace, column: str) -> dict[Any, str]:
    """Values of an annotation column, in order of their first node, and the names of their slices."""
    values = arrow.single_chunk(trace.nodes[column])
    values = values if pa.types.is_dictionary(values.type) else arrow.encoded(values)
    distinct = values.dictionary.to_pylist()
    label = "{}" if column == "phase" else f"{column} {{}}"
    return {value: label.format(value) for value in distinct}


def _codes(trace: Trace, column: str, nodes: Array, labels: dict[Any, str]) -> Array:
    """Position of the value of each node among `labels`; -1 where unknown."""
    if pa.types.is_dictionary(trace.nodes.schema.field(column).type):
        return trace.texts(column, nodes)[0]
    distinct, code = np.unique(trace.integers(column, nodes), return_inverse=True)
    position = {value: k for k, value in enumerate(labels)}
    return np.array([position.get(value, -1) for value in distinct.tolist()] or [0], np.int64)[code]


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
