"""How long a job would take at other core clocks: its graph timed anew, with the error of that.

Kernels last as `sensitivity` says; all else takes the time that it took, and waits as long as it
must. So what slack absorbs does not count, on whatever rank.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.activity import windows
from chopper_interop.dvfs import clock_errors, intervals, memory_clock
from chopper_interop.schemas.kinds import Kind
from chopper_interop.timing import paths, spans

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.dvfs.intervals import Limits
    from chopper_interop.dvfs.sensitivity import Sensitivities
    from chopper_interop.dvfs.sensitivity_together import Ratio
    from chopper_interop.timing.model import Timing
    from chopper_interop.timing.spans import Spans

COMM_ERROR = 0.05
"""Sensitivity of communication to the core clock: none, and one standard deviation."""


@dataclass(frozen=True)
class Durations:
    """How much longer each piece of GPU work would take; 0 of what stays.

    Parameters
    ----------
    log
        Logarithm of the duration then over the one measured, of each node.
    statistical, clock, form
        Errors of it, as of `sensitivity.Ratio`.
    key
        Kernels that share the statistical error; -1 of other nodes.
    unknown
        Which kernels have no known clock then, or before without another run that tells: they stay.
    single
        Error of each by its own clock; it has no weight in the time of many.
    """

    log: Array
    statistical: Array
    clock: Array
    form: Array
    key: Array
    unknown: Array
    single: Array

    @property
    def error(self) -> Array:
        """Standard deviation of `log` of each node."""
        return np.sqrt(self.statistical**2 + self.clock**2 + self.form**2 + self.single**2)

    def with_memory(self, known: Sensitivities, ratio: Array, periods: Array) -> Durations:
        """The same at another memory clock too, see `memory_clock.change`.

        Kernels of which one of both clocks is not known stay.
        """
        r = known.repeats
        stays = np.zeros(len(self.log), bool)
        stays[r.node] = np.isnan(ratio)
        own = self.only(~stays)
        told = own.key[r.node] >= 0
        core = np.nan_to_num(r.mean(np.exp(own.log[r.node]), told), nan=1.0)
        factor, error = np.ones(len(self.log)), np.zeros(len(self.log))
        factor[r.node], error[r.node] = memory_clock.change(
            known, np.where(told, ratio, 1.0), core, periods
        )
        return replace(
            own,
            log=own.log + np.log(factor),
            statistical=own.statistical / factor,
            clock=own.clock / factor,
            form=np.hypot(own.form / factor, error),
            unknown=self.unknown | stays,
            single=own.single / factor,
        )

    def only(self, which: Array) -> Durations:
        """The same of some nodes; all others stay."""
        return Durations(
            log=np.where(which, self.log, 0.0),
            statistical=np.where(which, self.statistical, 0.0),
            clock=np.where(which, self.clock, 0.0),
            form=np.where(which, self.form, 0.0),
            key=np.where(which, self.key, -1),
            unknown=self.unknown & which,
            single=np.where(which, self.single, 0.0),
        )


def durations(
    known: Sensitivities, ratio: Ratio, mhz: Array, *, is_change: bool = False
) -> Durations:
    """How long each kernel would take.

    Parameters
    ----------
    known
        Sensitivities of the trace.
    ratio
        Of its kernels, as `Sensitivities.ratio` gives it for these clocks.
    mhz, is_change
        Clock of each repeat then, as it was given there.
    """
    r = known.repeats
    shape, noise, error = known.shapes(ratio, mhz, is_change=is_change)
    n = r.trace.nodes.num_rows
    told = ~np.isnan(ratio.log[r.key]) & ~np.isnan(mhz)
    columns = [np.zeros(n) for _ in range(4)]
    rows, k = r.node[told], r.key[told]
    moved = (ratio.log - r.mean(shape, told))[r.key]
    floor = np.minimum(np.log(np.maximum(known.floors(mhz), 1.0) / r.dur), 0.0)
    log = _moved(known, shape, moved, mhz, told) if is_change else shape + moved - noise
    columns[0][rows] = np.maximum(log, floor)[told]
    for column, values in zip(
        columns[1:], (ratio.statistical, ratio.clock, ratio.form), strict=True
    ):
        column[rows] = values[k]
    _communication(known, mhz, columns[3], is_change=is_change)
    key, unknown = np.full(n, -1, np.int64), np.zeros(n, bool)
    key[rows], unknown[r.node] = k, ~told
    log, statistical, clock, form = columns
    single = np.zeros(n)
    single[rows] = error[told]
    return Durations(log, statistical, clock, form, key, unknown, single)


def _moved(known: Sensitivities, shape: Array, moved: Array, mhz: Array, told: Array) -> Array:
    """Times of single repeats where each one's clock changes: `shape`, in the mean by `moved` more.

    Those whose clocks change more are moved more, and none that stays: at a lower clock no repeat
    gets shorter, at a higher one none longer, nor by more than all of it being the core's makes.
    """
    r = known.repeats
    every = np.log(known.mhz / mhz)
    size = np.abs(every)
    mean = r.mean(size, told)[r.key]
    weight = np.divide(size, mean, out=np.zeros(len(size)), where=mean > 0)
    low, high = np.minimum(every, 0.0), np.maximum(every, 0.0)
    return np.clip(shape + moved * weight, low, high)


def measured(known: Sensitivities) -> Durations:
    """Every kernel as long as it was: nothing of the core's clock is asked."""
    r = known.repeats
    n = r.trace.nodes.num_rows
    key, nothing = np.full(n, -1, np.int64), np.zeros(n)
    key[r.node] = r.key
    return Durations(nothing, nothing, nothing, nothing, key, np.zeros(n, bool), nothing)


def _communication(known: Sensitivities, mhz: Array, form: Array, *, is_change: bool) -> None:
    """Write by how much transfers may be off that are taken not to follow the clock."""
    r = known.repeats
    comm = np.flatnonzero(r.trace.array("kind") == Kind.COMM)
    both = ~np.isnan(mhz) & ~np.isnan(r.clocks.mhz)
    if not comm.size or not both.any():
        return
    if is_change:  # as much as that of kernels in the mean
        share = np.full(len(comm), abs(1 - float(np.mean(r.clocks.mhz[both] / mhz[both]))))
    else:
        share = np.abs(1 - clock_errors.of(r.trace, comm).mhz / float(mhz[both].max()))
    form[comm] = COMM_ERROR * np.nan_to_num(share)


@dataclass(frozen=True)
class Lengths:
    """How long windows would last, nanoseconds, one value each.

    Parameters
    ----------
    ns
        How long.
    statistical
        What errors of single kernels make of it, (window, kernel).
    clock, form
        What the errors make of it that all kernels have in common.
    least_ns, most_ns
        What it can be, see `limits`.
    """

    ns: Array
    statistical: Array
    clock: Array
    form: Array
    least_ns: Array
    most_ns: Array

    @property
    def error_ns(self) -> Array:
        """One standard deviation."""
        own = np.sum(self.statistical**2, axis=1)
        return np.sqrt(own + self.clock**2 + self.form**2)

    def interval(self) -> tuple[Array, Array]:
        """From where to where 95 % lie."""
        return intervals.around(self.ns, self.error_ns, self.least_ns, self.most_ns)

    @classmethod
    def none(cls) -> Lengths:
        """Of no windows."""
        nothing = np.zeros(0)
        return cls(nothing, np.zeros((0, 0)), *[nothing] * 4)

    def mean(self) -> Lengths:
        """All windows as one: the mean of them."""
        columns = (getattr(self, field.name) for field in fields(self))
        return Lengths(*(np.atleast_1d(column.mean(axis=0, keepdims=True)) for column in columns))


class Retiming:
    """A model timed anew with other durations.

    Parameters
    ----------
    timing
        The model.
    found
        Windows whose lengths are asked for.
    """

    def __init__(self, timing: Timing, found: Spans) -> None:
        self._timing, self._spans = timing, found
        self._owner = paths.owners(timing)

    def measured(self) -> Array:
        """How long windows lasted."""
        return self._spans.lengths(self._timing.at_ns)

    def lengths(self, told: Durations, limits: Limits) -> Lengths:
        """How long windows would last, and the errors of that."""
        lag = self._lag(told.log)
        at = self._timing.retimed(lag)
        ns = self._spans.lengths(at).astype(float)
        systematic = [
            ns * np.log(self._length(told.log + error) / self._length(told.log - error)) / 2
            for error in (told.clock, told.form)
        ]
        limited = [self._length(log) for log in limits]
        return Lengths(ns, self._statistical(told, lag, at), *systematic, *limited)

    def _length(self, log: Array) -> Array:
        """How long windows would last; at least a nanosecond, so that all have a logarithm."""
        return np.maximum(self._spans.lengths(self._timing.retimed(self._lag(log))), 1.0)

    def _lag(self, log: Array) -> Array:
        factor = np.append(np.exp(log), 1.0)[self._owner]
        lag = self._timing.lag_ns
        scaled = np.rint(lag * factor).astype(np.int64)
        return np.where((lag > 0) & (factor != 1.0), scaled, lag)

    def _statistical(self, told: Durations, lag: Array, at: Array) -> Array:
        """Errors of kernels, each by the time that the path of each window runs over it then."""
        kernel = np.append(told.key, -1)[self._owner] + 1
        walked = paths.Paths(self._timing, self._owner, kernel)
        n = int(told.key.max(initial=-1)) + 1
        error = np.zeros(n)
        mine = told.key >= 0
        error[told.key[mine]] = told.statistical[mine]
        starts = self._spans.starts(at).tolist()
        ends = self._spans.last(at).tolist()
        table = np.zeros((len(starts), n + 1))
        for row, (last, start) in enumerate(zip(ends, starts, strict=True)):
            found = walked.by_class(lag, at, last, start)
            table[row, : len(found)] = found
        return table[:, 1:] * error


def windows_of(timing: Timing, steps: str, ranks: str) -> Spans:
    """Training steps of a job, or all of one that has none."""
    has_steps = bool(windows.marked(timing.graph.trace))
    return spans.of(timing, steps or ("each" if has_steps else ""), ranks)
