"""Tracks of slices that stand for no event of the input.

On a GPU iterations, phases, layers, exposed and idle time; on the ranks concerned the places of which analyses
speak, or where these are of the job in a group of their own, a lane for each kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from chopper_interop import rank_batches
from chopper_interop.arrays import Array, arrow, gather, intervals
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.perfetto.write import events_encode as encode
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.schemas.meta import Mark


SPAN_COLUMNS = {"iterations": "iteration", "phases": "phase", "layers": "layer"}
"""Tracks of a GPU that are made of columns, and these."""
EXPOSED, IDLE = "exposed communication", "idle"
DERIVED_TRACKS = (*SPAN_COLUMNS, EXPOSED, IDLE)
"""Tracks of a GPU, from the top."""
_OF_RANK = "finding"
"""Name of the lane on a rank; not that of the group, by which the UI finds the group."""
_MAX_RANKS = 8
"""Ranks that a mark is drawn on. Chosen: one that speaks of more, or of all of several, speaks of the job."""
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
        ranks = ranks_of(mark, trace.ranks)
        for rank in ranks:
            lanes.setdefault((rank, _OF_RANK), []).append(mark)
        if not ranks:
            lanes.setdefault((-1, mark.kind.replace("_", " ")), []).append(mark)
    for (rank, name), own in lanes.items():
        start, end = (np.array([getattr(m, f) for m in own]) for f in ("start_ns", "end_ns"))
        row = encode.rows_without_overlap(start, end - start, 1)
        for k in range(row.max() + 1):
            rows = np.flatnonzero(row == k)
            yield rank, name, k, _slices_of_marks([own[i] for i in rows.tolist()])


def ranks_of(mark: Mark, present: Sequence[int]) -> list[int]:
    """Return the ranks that a mark is drawn on: those that it names; none if it speaks of the job."""
    named = set()
    for part in filter(None, mark.ranks.split(",")):
        first, _, last = part.partition("-")
        if first.strip().isdigit() and (not last or last.strip().isdigit()):
            named |= {r for r in present if int(first) <= r <= int(last or first)}
    of_job = len(named) > _MAX_RANKS or 1 < len(named) == len(present)
    return [] if of_job else sorted(named)


def _slices_of_marks(marks: list[Mark]) -> NamedSlices:
    start, end = (np.array([getattr(m, f) for m in marks]) for f in ("start_ns", "end_ns"))
    names = [mark.text for mark in marks]
    arguments = [mark.details.encode() for mark in marks]
    return NamedSlices(start, end - start, np.arange(len(marks)), names, arguments)


class GpuTracks(NamedTuple):
    """Tracks of some GPUs, GPU by GPU, with slices that do not overlap.

    Of each track there are rank, device, name, and which of `names` are those of its slices.
    `first` is where the slices of each begin, and the number of all; `code` counts in `names`.
    """

    tracks: list[tuple[int, int, str, slice]]
    names: list[str]
    first: Array
    ts: Array
    dur: Array
    code: Array


class _GpuWork(NamedTuple):
    """Work of GPUs, GPU by GPU and by start: each one's place among the GPUs, kind, start and end."""

    gpu: Array
    kind: Array
    ts: Array
    end: Array

    def of_rows(self, rows: Array) -> _GpuWork:
        return _GpuWork(*(column[rows] for column in self))


class _Slices(NamedTuple):
    """Slices of the tracks of one name, GPU by GPU; `gpus` have such a track, be it without slices."""

    gpus: Array
    gpu: Array
    ts: Array
    dur: Array
    code: Array


def derived_tracks(trace: Trace) -> Iterator[GpuTracks]:
    """Yield the tracks of the GPUs of some ranks at a time: small ranks are many, and a call takes long for one.

    Of a column consecutive kernels with the same value are one slice, from the first start to the
    last end, or to where the next slice begins, known or not.
    """
    columns = {track: c for track, c in SPAN_COLUMNS.items() if trace.has(c)}
    labels = {track: _labels(trace, column) for track, column in columns.items()}
    texts = {track: list(of_track.values()) for track, of_track in labels.items()}
    for nodes, gpus in work_of_gpus(trace):
        gpu = np.repeat(np.arange(len(gpus)), [rows.stop - rows.start for _, _, rows in gpus])
        ts = trace.array("ts")[nodes]
        work = _GpuWork(gpu, trace.array("kind")[nodes], ts, ts + trace.array("dur")[nodes])
        slices = {
            track: _slices_of_runs(work, _codes(trace, column, nodes, labels[track]))
            for track, column in columns.items()
        }
        collective, collectives = trace.texts("collective", nodes)
        slices[EXPOSED] = _exposed(work, np.where(collective < 0, len(collectives), collective))
        cause, causes = trace.texts("idle_cause", nodes)
        slices[IDLE] = _idle(work, trace.integers("idle_ns", nodes, unknown=0), cause)
        texts[EXPOSED] = [*collectives, "communication"]
        texts[IDLE] = [text.replace("_", " ") for text in causes]
        yield _gpu_tracks([(rank, device) for rank, device, _ in gpus], slices, texts)


def _gpu_tracks(
    gpus: list[tuple[int, int]], slices: dict[str, _Slices], texts: dict[str, list[str]]
) -> GpuTracks:
    """Put the tracks of each GPU one behind the other."""
    kinds, n = list(slices.values()), len(slices)
    at = np.cumsum([0, *(len(texts[name]) for name in slices)]).tolist()
    of_kinds = [(name, slice(*bounds)) for name, bounds in zip(slices, pairwise(at), strict=True)]
    # a track is numbered by its GPU, and of that by its kind
    present = np.sort(np.concatenate([kind.gpus * n + k for k, kind in enumerate(kinds)]))
    track = np.concatenate([kind.gpu * n + k for k, kind in enumerate(kinds)])
    order = np.argsort(track, kind="stable")
    return GpuTracks(
        tracks=[(*gpus[t // n], *of_kinds[t % n]) for t in present.tolist()],
        names=[text for name in slices for text in texts[name]],
        first=np.append(np.searchsorted(track[order], present), len(order)),
        ts=np.concatenate([kind.ts for kind in kinds])[order],
        dur=np.concatenate([kind.dur for kind in kinds])[order],
        code=np.concatenate([kind.code + at[k] for k, kind in enumerate(kinds)])[order],
    )


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
        first = _first_of_runs(rank, device)
        bounds = pairwise([*first.tolist(), len(nodes)])
        owners = zip(rank[first].tolist(), device[first].tolist(), bounds, strict=True)
        yield nodes, [(r, d, slice(*rows)) for r, d, rows in owners]


def _exposed(work: _GpuWork, name: Array) -> _Slices:
    """Time in which communication runs and nothing computes, named as what of it was the last to start."""
    gpus = int(work.gpu[-1]) + 1 if len(work.gpu) else 0
    is_comm, is_compute = work.kind == Kind.COMM, is_any(work.kind, _COMPUTE)
    comm, compute = work.of_rows(is_comm), work.of_rows(is_compute)
    gpu, start, stop = intervals.group_differences(
        intervals.group_unions(comm.gpu, comm.ts, comm.end, gpus),
        intervals.group_unions(compute.gpu, compute.ts, compute.end, gpus),
        gpus,
    )
    # by GPU and time, at equal times communication first: before each exposed time is what has started
    times, owners = np.concatenate([comm.ts, start]), np.concatenate([comm.gpu, gpu])
    order = np.lexsort((times, owners))
    begun = np.cumsum(order < len(comm.ts))[order >= len(comm.ts)]
    return _Slices(gather.unique(comm.gpu), gpu, start, stop - start, name[is_comm][begun - 1])


def _idle(work: _GpuWork, idle_ns: Array, cause: Array) -> _Slices:
    """Time without work before some of it, named by the cause."""
    is_idle = (idle_ns > 0) & (cause >= 0)
    gpu, idle_ns = work.gpu[is_idle], idle_ns[is_idle]
    return _Slices(gather.unique(gpu), gpu, work.ts[is_idle] - idle_ns, idle_ns, cause[is_idle])


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
    values = trace.integers(column, nodes)
    first, code = gather.distinct(values)
    position = {value: k for k, value in enumerate(labels)}
    numbers = [position.get(value, -1) for value in values[first].tolist()]
    return np.array(numbers or [0], np.int64)[code]


def _slices_of_runs(work: _GpuWork, code: Array) -> _Slices:
    """Return each run of a GPU's kernels, in order of start, that have the same code."""
    is_kernel = work.kind == Kind.KERNEL
    gpu, _, ts, end = work.of_rows(is_kernel)
    code = code[is_kernel]
    first = _first_of_runs(gpu, code)
    gpu, code, start = gpu[first], code[first], ts[first]
    stop = np.maximum.reduceat(end, first)  # the last end of each run
    is_followed = gpu[1:] == gpu[:-1]
    np.minimum(stop[:-1], start[1:], out=stop[:-1], where=is_followed)
    known = code >= 0
    gpu = gpu[known]
    return _Slices(gather.unique(gpu), gpu, start[known], (stop - start)[known], code[known])


def _first_of_runs(*columns: Array) -> Array:
    """Return the rows that differ from the row before in any column."""
    changes = np.any([np.diff(column) != 0 for column in columns], axis=0)
    return np.flatnonzero(np.append(np.ones(min(len(columns[0]), 1), np.bool_), changes))
