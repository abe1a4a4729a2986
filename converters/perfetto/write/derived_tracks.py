"""Iterations, phases and layers of a GPU as slices of their own: made of annotation columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from chopper_interop.arrays import arrow
from chopper_interop.converters.perfetto.write.tracks import DERIVED_TRACKS
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace

    DerivedTrack: TypeAlias = tuple[int, int, str, Array, Array, list[str]]


def derived_tracks(trace: Trace) -> Iterator[DerivedTrack]:
    """Yield the tracks of a trace's GPUs.

    Yields
    ------
    rank, device, track name, ts, dur, names
        Slices in order that do not overlap: consecutive kernels with the same value are one slice,
        from the first start to the last end, or to where the next slice begins, known or not.
    """
    present = [(track, c) for track, c in DERIVED_TRACKS.items() if trace.has(c)]
    is_kernel = trace.array("kind") == Kind.KERNEL
    lane_device = trace.array("device", "lanes")
    for track, column in present:
        code, texts = _coded(trace, column)
        for rank, rows in trace.rank_rows.items():
            kernels = np.flatnonzero(is_kernel[rows]) + rows.start
            device = lane_device[trace.array("lane")[kernels]]
            for d in np.unique(device).tolist():
                nodes = kernels[device == d]
                if (code[nodes] >= 0).any():
                    yield rank, d, track, *_slices(trace, nodes, code[nodes], texts)


def _coded(trace: Trace, column: str) -> tuple[Array, list[str]]:
    """Codes of an annotation column, -1 where unknown, and the names that they stand for."""
    data = arrow.single_chunk(trace.nodes[column]).dictionary_encode()
    label = "{}" if column == "phase" else f"{column} {{}}"
    texts = [label.format(value) for value in data.dictionary.to_pylist()]
    return arrow.to_numpy(data, -1), texts


def _slices(
    trace: Trace, nodes: Array, code: Array, texts: list[str]
) -> tuple[Array, Array, list[str]]:
    """Start, duration and name of each run of nodes, in order of start, that have the same code."""
    ts = trace.array("ts")[nodes]
    end = ts + trace.array("dur")[nodes]
    first = np.flatnonzero(np.diff(code, prepend=code[0] - 1))
    stop = np.maximum.reduceat(end, first)  # the last end of each run
    start = ts[first]
    stop[:-1] = np.minimum(stop[:-1], start[1:])
    known = code[first] >= 0
    names = [texts[c] for c in code[first[known]]]
    return start[known], (stop - start)[known], names
