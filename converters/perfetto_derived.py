"""Iterations, phases and layers of a GPU as slices of their own: made of annotation columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import arrow
from chopper_interop.converters.perfetto_tracks import DERIVED
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

    Track = tuple[int, int, str, Array, Array, list[str]]


def derived_slices(trace: Trace) -> Iterator[Track]:
    """Tracks of a trace's GPUs.

    Yields
    ------
    rank, device, track name, ts, dur, names
        Slices in order that do not overlap: a stretch of kernels of one value lasts
        from its first start to its last end, or to where the next begins, known or not.
    """
    present = [(track, c) for track, c in DERIVED.items() if c in trace.nodes.column_names]
    is_kernel = trace.array("kind") == Kind.KERNEL
    of_lane = trace.array("device", "lanes")
    for track, column in present:
        code, texts = _coded(trace, column)
        for rank, rows in trace.rank_rows.items():
            kernels = np.flatnonzero(is_kernel[rows]) + rows.start
            device = of_lane[trace.array("lane")[kernels]]
            for d in np.unique(device):
                mine = kernels[device == d]
                yield from _stretches(trace, rank, int(d), track, mine, code[mine], texts)


def _coded(trace: Trace, column: str) -> tuple[Array, list[str]]:
    """Codes of an annotation column, -1 where unknown, and the names that they stand for."""
    data = arrow.flat(trace.nodes[column]).dictionary_encode()
    label = "{}" if column == "phase" else f"{column} {{}}"
    texts = [label.format(value) for value in data.dictionary.to_pylist()]
    return arrow.numbers(data, -1), texts


def _stretches(  # noqa: PLR0913, PLR0917 # columns of one table
    trace: Trace, rank: int, device: int, track: str, nodes: Array, code: Array, texts: list[str]
) -> Iterator[Track]:
    if not (code >= 0).any():
        return
    ts = trace.array("ts")[nodes]
    end = ts + trace.array("dur")[nodes]
    first = np.flatnonzero(np.diff(code, prepend=code[0] - 1))
    stop = np.maximum.reduceat(end, first)
    start = ts[first]
    stop[:-1] = np.minimum(stop[:-1], start[1:])
    told = code[first] >= 0
    names = [texts[c] for c in code[first[told]]]
    yield rank, device, track, start[told], (stop - start)[told], names
