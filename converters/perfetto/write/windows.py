"""Times that are drawn, and the training steps among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.schemas.kinds import Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace

_MARGIN = 20
"""Share of the time of the work that is drawn before and after it: one twentieth."""


def window_of_work(trace: Trace) -> tuple[int, int] | None:
    """Return the time of all nodes but the profiler's marks, and a margin at each end.

    Returns
    -------
    tuple of int or None
        First and last `ts`, ns; None without nodes. Telemetry often lasts longer, and PyTorch's
        profiler marks the end of its recording when it has collected all events.
    """
    work = _span(trace, np.flatnonzero(~_is_mark(trace)))
    if work is None:
        return None
    start, end = work
    margin = (end - start) // _MARGIN
    return start - margin, end + margin


def training_steps(trace: Trace) -> tuple[int, int] | None:
    """Return the time from the first start to the last end of all training steps, as `ts`.

    Without steps it is the time of the work; None without nodes.
    """
    in_step = np.flatnonzero(trace.known("iteration"))
    return _span(trace, in_step if len(in_step) else np.flatnonzero(~_is_mark(trace)))


def drawn_nodes(trace: Trace, window: tuple[int, int] | None) -> Array:
    """Return the mask of the nodes that are drawn: all but the profiler's marks outside a window."""
    if window is None:
        return np.ones(trace.nodes.num_rows, np.bool_)
    ts = trace.array("ts")
    return ~_is_mark(trace) | ((ts >= window[0]) & (ts <= window[1]))


def _span(trace: Trace, nodes: Array) -> tuple[int, int] | None:
    """Return the first start and the last end of some nodes, or of all if there are none of these."""
    if not trace.nodes.num_rows:
        return None
    rows = nodes if len(nodes) else np.arange(trace.nodes.num_rows)
    ts = trace.array("ts")[rows]
    return int(ts.min()), int((ts + trace.array("dur")[rows]).max())


def _is_mark(trace: Trace) -> Array:
    """Mark the nodes that are no work: instants on the profiler's own lanes."""
    on_profiler = trace.array("kind", "lanes") == LaneKind.PROFILER
    if not on_profiler.any():
        return np.zeros(trace.nodes.num_rows, np.bool_)
    return (trace.array("kind") == Kind.INSTANT) & on_profiler[trace.array("lane")]
