"""Ranges that mark training steps in a trace; `analyses.methods.activity.step_times` says how long they take."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather, name_stems, spill
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import GPU_WORK, Kind, LaneKind
from chopper_interop.schemas.meta import COMPUTED
from chopper_interop.schemas.names import STEPS

if TYPE_CHECKING:
    from chopper_interop.tables import TraceTables

_RANGES = (Kind.ANNOTATION, Kind.CPU_OP)
_AT_ONCE = 1 << 20
"""Nodes of ranks that are looked at together (chosen: a few megabytes)."""
LEAST_UNIT = 1000
"""Least addition to the numbers of steps that are counted again. Chosen: recordings have fewer steps, so that both differ."""


class Step(NamedTuple):
    """The range of a training step on one rank; times on the axis of `ts`, nanoseconds."""

    rank: int
    iteration: int
    start_ns: int
    end_ns: int


def _is_numbered(iteration: Array, number: Array) -> Array:
    """Mark numbers in names that may be those of these iterations, counted again or not."""
    digits = np.searchsorted(10 ** np.arange(1, 10), number, "right") + 1
    # the least unit that they may have been counted in, which divides all others
    unit = np.maximum(10**digits, LEAST_UNIT)
    return (number >= 0) & (iteration >= number) & ((iteration - number) % unit == 0)


def marked(trace: TraceTables) -> list[Step]:
    """Range of every training step of every rank, in order of rank and start.

    That is the range that marks the step on its rank, else from the first start to the last end of
    what the host does in it, or where no host was recorded, of its GPU work. In a simulation it is of both.
    """
    return trace.cached("marked steps", _marked)


def _marked(trace: TraceTables) -> list[Step]:
    if not trace.has("iteration"):
        return []
    texts = trace.names()
    numbers = np.append(name_stems.split_numbers(texts)[1], name_stems.NO_NUMBER)
    steps: list[Step] = []
    for span in trace.rank_spans(_AT_ONCE):
        steps += _marked_among(trace, span, _Names(texts, numbers))
        spill.release()
    return steps


class _Names(NamedTuple):
    """Names of nodes, and the number at the end of each; behind the last one that of nodes without a name."""

    text: list[str]
    number: Array


def _marked_among(trace: TraceTables, span: slice, names: _Names) -> list[Step]:
    """`_marked` of the ranks that have the nodes of a span."""
    iteration = trace.integers("iteration", span)
    host = trace.array("kind", "lanes")[trace.array("lane")[span]] == LaneKind.THREAD
    gpu = is_any(trace.array("kind")[span], GPU_WORK)
    ranges = _ranges(trace, span, iteration, host, names)
    bounds = [ranges, host, gpu]
    # simulators run what hosts do piece by piece, and ranges have no length there
    if trace.meta.clock == COMPUTED:
        bounds = [(host | gpu) & ~ranges]
    chosen: list[Array] = []
    done = np.zeros(0, np.int64)
    ranks = 1 + np.count_nonzero(np.diff(trace.array("rank")[span]))
    for mask in bounds:  # the first of these that the rank has
        rows = np.flatnonzero(mask & (iteration >= 0))
        rank = trace.array("rank")[span][rows]
        chosen.append(rows[~np.isin(rank, done)])
        done = gather.unique(np.append(done, rank))
        if len(done) == ranks:
            break
    rows = np.concatenate(chosen)
    return _extents(trace, rows + span.start, iteration[rows]) if rows.size else []


def _extents(trace: TraceTables, rows: Array, iteration: Array) -> list[Step]:
    """Steps from the first start to the last end of the nodes of each, by rank and start."""
    rank = trace.array("rank")[rows]
    order = np.lexsort((iteration, rank))
    rank, rows, iteration = rank[order], rows[order], iteration[order]
    first = np.flatnonzero((np.diff(rank, prepend=-1) != 0) | (np.diff(iteration, prepend=-1) != 0))
    ts = trace.array("ts")[rows]
    start = np.minimum.reduceat(ts, first)
    end = np.maximum.reduceat(ts + trace.array("dur")[rows], first)
    order = np.lexsort((iteration[first], start, rank[first]))
    columns = (values[order].tolist() for values in (rank[first], iteration[first], start, end))
    return [Step(*step) for step in zip(*columns, strict=True)]


def _ranges(trace: TraceTables, span: slice, iteration: Array, host: Array, names: _Names) -> Array:
    """Mark ranges that mark steps: outermost ones of hosts that are called a step, with their step's number."""
    name, parent = trace.array("name")[span], trace.array("parent")[span]
    marks = host & is_any(trace.array("kind")[span], _RANGES)
    marks &= _is_numbered(iteration, names.number[name])
    above = iteration[np.maximum(parent - span.start, 0)]
    marks &= (parent < 0) | (above != iteration)
    called = np.zeros(
        len(names.number), bool
    )  # by a step's name: NllLossBackward0 has a number, too
    for code in gather.unique_codes(name[marks]).tolist():
        called[code] = any(pattern.fullmatch(names.text[code]) for pattern in STEPS)
    return marks & called[name]
