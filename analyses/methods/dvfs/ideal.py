"""Duration of a job at other core clocks: its graph re-timed, with the error of the result.

Kernels take as long as `sensitivity` predicts; all other work takes the time that it took, and waits
as long as it must. So what slack absorbs does not count, on whatever rank.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.dvfs import intervals, memory_clock
from chopper_interop.analyses.methods.dvfs.clocks import kernel_clocks
from chopper_interop.analyses.methods.dvfs.sources import combination
from chopper_interop.analyses.methods.timing import paths, spans
from chopper_interop.arrays import Array
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.step_times import Spans
    from chopper_interop.analyses.methods.dvfs.intervals import Limits
    from chopper_interop.analyses.methods.dvfs.sensitivity import Sensitivities
    from chopper_interop.analyses.methods.dvfs.sources.combination import Ratio
    from chopper_interop.timing.model import Timing

COMM_ERROR = 0.05
"""Standard deviation of the sensitivity of communication to the core clock, which is taken as 0: half
of the 0 to 0.1 that collectives are expected to have. Our reading; there is no published figure."""


@dataclass(frozen=True)
class Durations:
    """Change of the duration of each piece of GPU work; 0 where it stays.

    Parameters
    ----------
    log
        Logarithm of the new duration over the measured one, of each node.
    statistical, clock, form
        Errors of `log`, as of `combination.Ratio`.
    key
        Kernels of one number share the statistical error; -1 of other nodes.
    unknown
        Mark kernels that stay because their clock is unknown: the new one, or the measured one
        where no other run times them.
    single
        Error of each kernel by its own clock, independent of all others; it averages out over the
        kernels of a step.
    sensor
        Half of the range of `log` over the assumptions on the sensor, negative where it gets less as
        that of others gets more.
    direction
        Which statistical errors are alike, (key, block), as of `combination.Ratio`.
    shift
        Middle of the range by the sensor less `log`.
    settled
        What of the statistical errors a known mean takes away, as of `combination.Ratio`.
    free
        `log` that is not held within what is possible for each kernel, for sums over many; None if it is `log`.
    """

    log: Array
    statistical: Array
    clock: Array
    form: Array
    key: Array
    unknown: Array
    single: Array
    sensor: Array
    shift: Array
    direction: Array | None = None
    free: Array | None = None
    settled: Array | None = None

    @property
    def error(self) -> Array:
        """Standard deviation of `log` of each node, with the range by the sensor as twice that."""
        squares = self.statistical**2 + self.clock**2 + self.form**2 + self.single**2
        return np.sqrt(squares) + np.abs(self.sensor) / intervals.TWO_SIDED

    def with_memory(self, known: Sensitivities, ratio: Array, periods: Array) -> Durations:
        """Return the durations at another memory clock as well, see `memory_clock.change`.

        Kernels of which one of the two clocks is unknown stay.
        """
        r = known.repeats
        stays = np.zeros(len(self.log), bool)
        stays[r.node] = np.isnan(ratio)
        base = self.only(~stays)
        is_known = base.key[r.node] >= 0
        core = np.nan_to_num(r.mean(np.exp(base.log[r.node]), is_known), nan=1.0)
        factor, error = np.ones(len(self.log)), np.zeros(len(self.log))
        factor[r.node], error[r.node] = memory_clock.change(
            known, np.where(is_known, ratio, 1.0), core, periods
        )
        return replace(
            base,
            log=base.log + np.log(factor),
            free=None if base.free is None else base.free + np.log(factor),
            statistical=base.statistical / factor,
            clock=base.clock / factor,
            form=np.hypot(base.form / factor, error),
            unknown=self.unknown | stays,
            single=base.single / factor,
            sensor=base.sensor / factor,
            shift=base.shift / factor,
        )

    def only(self, mask: Array) -> Durations:
        """Return the same for the marked nodes alone; all others stay."""
        return Durations(
            log=np.where(mask, self.log, 0.0),
            statistical=np.where(mask, self.statistical, 0.0),
            clock=np.where(mask, self.clock, 0.0),
            form=np.where(mask, self.form, 0.0),
            key=np.where(mask, self.key, -1),
            unknown=self.unknown & mask,
            single=np.where(mask, self.single, 0.0),
            sensor=np.where(mask, self.sensor, 0.0),
            direction=self.direction,
            settled=self.settled,
            shift=np.where(mask, self.shift, 0.0),
            free=None if self.free is None else np.where(mask, self.free, 0.0),
        )


def durations(
    known: Sensitivities, ratio: Ratio, mhz: Array, *, is_change: bool = False
) -> Durations:
    """Predict the duration of each kernel at other clocks.

    Parameters
    ----------
    known
        Sensitivities of the trace's kernels.
    ratio
        Times of its kernels at these clocks, as `Sensitivities.ratio` returns them.
    mhz, is_change
        New clock of each repeat, as passed to `Sensitivities.ratio`.
    """
    r = known.repeats
    n = r.trace.nodes.num_rows
    is_known = ~np.isnan(ratio.log[r.key]) & ~np.isnan(mhz)
    log, free, statistical, clock, form, sensor, shift = (np.zeros(n) for _ in range(7))
    rows, k = r.node[is_known], r.key[is_known]
    held = known.held(ratio, mhz, is_change=is_change)
    of_repeat, error = _of_repeats(known, held, mhz, is_known, is_change=is_change)
    log[rows] = of_repeat[is_known]
    free[rows] = _of_repeats(known, ratio, mhz, is_known, is_change=is_change)[0][is_known]
    for column, values in (
        (statistical, ratio.statistical),
        (clock, ratio.clock),
        (form, ratio.form),
        (sensor, np.broadcast_to(ratio.sensor, len(r.count))),
        (shift, np.broadcast_to(ratio.shift, len(r.count))),
    ):
        column[rows] = values[k]
    _add_communication_error(known, mhz, form, is_change=is_change)
    key, unknown = np.full(n, -1, np.int64), np.zeros(n, bool)
    key[rows], unknown[r.node] = k, ~is_known
    single = np.zeros(n)
    single[rows] = error[is_known]
    return Durations(
        log, statistical, clock, form, key, unknown, single, sensor, shift, ratio.direction, free,
        ratio.settled,
    )  # fmt: skip


def _of_repeats(
    known: Sensitivities, ratio: Ratio, mhz: Array, is_known: Array, *, is_change: bool
) -> tuple[Array, Array]:
    """Logarithm of each repeat's new duration over the measured one, and its own error."""
    r = known.repeats
    shape, noise, error = known.shapes(ratio, mhz, is_change=is_change)
    # `shape` says how repeats differ from each other; their mean is moved to that of all sources.
    shift = (ratio.log - r.mean(shape, is_known))[r.key]
    floor = np.minimum(np.log(np.maximum(known.floors(mhz), 1.0) / r.dur), 0.0)
    log = (
        _shifted_within_clocks(known, shape, shift, mhz, is_known)
        if is_change
        else shape + shift - noise
    )
    return np.maximum(log, floor), error


def _shifted_within_clocks(
    known: Sensitivities, shape: Array, shift: Array, mhz: Array, is_known: Array
) -> Array:
    """Shift `shape` of single repeats by `shift` in the mean, where each one's clock changes.

    Repeats are shifted in proportion to how much their clock changes, and none whose clock stays.
    At a lower clock no repeat gets shorter, at a higher one none longer, nor does any change by more
    than if all of it followed the core's clock.
    """
    r = known.repeats
    in_full = np.log(known.mhz / mhz)  # change of the time if all of it follows the clock
    size = np.abs(in_full)
    mean = r.mean(size, is_known)[r.key]
    weight = np.divide(size, mean, out=np.zeros(len(size)), where=mean > 0)
    low, high = np.minimum(in_full, 0.0), np.maximum(in_full, 0.0)
    return np.clip(shape + shift * weight, low, high)


def measured(known: Sensitivities) -> Durations:
    """Return the measured durations of all kernels: the core's clock stays."""
    r = known.repeats
    n = r.trace.nodes.num_rows
    key, zero = np.full(n, -1, np.int64), np.zeros(n)
    key[r.node] = r.key
    return Durations(zero, zero, zero, zero, key, np.zeros(n, bool), zero, zero, zero)


def _add_communication_error(
    known: Sensitivities, mhz: Array, form: Array, *, is_change: bool
) -> None:
    """Write the error of transfers, which are taken not to follow the clock, into `form`."""
    r = known.repeats
    comm = np.flatnonzero(r.trace.array("kind") == Kind.COMM)
    both = ~np.isnan(mhz) & ~np.isnan(r.clocks.mhz)
    if not comm.size or not both.any():
        return
    if is_change:  # their clock is taken to change as much as that of kernels in the mean
        share = np.full(len(comm), abs(1 - float(np.mean(r.clocks.mhz[both] / mhz[both]))))
    else:
        comm_mhz = kernel_clocks.kernel_clocks(r.trace, comm).mhz
        share = np.abs(1 - comm_mhz / float(mhz[both].max()))
    form[comm] = COMM_ERROR * np.nan_to_num(share)


@dataclass(frozen=True)
class Lengths:
    """Predicted durations of windows in nanoseconds, one value each.

    Parameters
    ----------
    ns
        Durations.
    statistical
        Error of each by errors that are independent of each other, (window, source of error).
    clock, form
        Error of each by the errors that all kernels have in common.
    sensor
        Half of the range of each over the assumptions on the sensor.
    shift
        Middle of that range less `ns`.
    min_ns, max_ns
        Bounds of what is possible, see `limits`.
    """

    ns: Array
    statistical: Array
    clock: Array
    form: Array
    sensor: Array
    shift: Array
    min_ns: Array
    max_ns: Array

    @property
    def error_ns(self) -> Array:
        """Standard deviation of `ns`, with the range by the sensor as twice that."""
        independent = np.sum(self.statistical**2, axis=1)
        deviation = np.sqrt(independent + self.clock**2 + self.form**2)
        return deviation + np.abs(self.sensor) / intervals.TWO_SIDED

    def interval(self) -> tuple[Array, Array]:
        """Return both ends of the 95 % interval."""
        return intervals.confidence_interval(
            self.ns, self.error_ns, self.min_ns, self.max_ns, self.shift
        )

    def is_open(self) -> Array:
        """Mark durations of which is known only what is possible."""
        return intervals.is_open(self.ns, *self.interval(), self.min_ns, self.max_ns)

    @classmethod
    def none(cls) -> Lengths:
        """Return the durations of no windows."""
        empty = np.zeros(0)
        return cls(empty, np.zeros((0, 0)), *[empty] * 6)

    def mean(self) -> Lengths:
        """Return the mean over all windows as a single one."""
        columns = (getattr(self, field.name) for field in fields(self))
        return Lengths(*(np.atleast_1d(column.mean(axis=0, keepdims=True)) for column in columns))


class Retiming:
    """A timing model re-timed with other durations.

    Parameters
    ----------
    timing
        Timing model.
    window_spans
        Windows whose durations are predicted.
    """

    def __init__(self, timing: Timing, window_spans: Spans) -> None:
        self._timing, self._spans = timing, window_spans
        self._owner = paths.edge_owners(timing)

    def measured(self) -> Array:
        """Return the measured durations of the windows."""
        return self._spans.lengths(self._timing.at_ns)

    def lengths(self, new: Durations, limits: Limits) -> Lengths:
        """Predict the durations of the windows, with errors and bounds."""
        # Errors are those of `free`, the durations before they are held within what is possible: around held ones the
        # range would be wrong.
        log = new.log if new.free is None else new.free
        lag = self._lag(log)
        at = self._timing.retimed(lag)
        ns = self._spans.lengths(at).astype(float)
        # An error that all kernels share moves them all: re-time with it added and subtracted.
        systematic = [
            ns * np.log(self._length(log + error) / self._length(log - error)) / 2
            for error in (new.clock, new.form, new.sensor)
        ]
        bounds = [self._length(limit) for limit in limits]
        possible = np.where(ns > 0, np.clip(ns, *bounds), ns)
        systematic.append(self._length(log + new.shift) - np.maximum(possible, 1.0))
        return Lengths(possible, self._statistical(new, lag, at), *systematic, *bounds)

    def _length(self, log: Array) -> Array:
        """Durations of windows, at least a nanosecond so that each has a logarithm."""
        return np.maximum(self._spans.lengths(self._timing.retimed(self._lag(log))), 1.0)

    def _lag(self, log: Array) -> Array:
        """Lags of edges with each node's own time multiplied by ``exp(log)``."""
        factor = np.append(np.exp(log), 1.0)[self._owner]
        lag = self._timing.lag_ns
        scaled = paths.rounded(lag * factor)
        return np.where((lag > 0) & (factor != 1.0), scaled, lag)

    def _statistical(self, new: Durations, lag: Array, at: Array) -> Array:
        """Errors by single kernels, weighted with the time that each window's path spends in each."""
        kernel = np.append(new.key, -1)[self._owner] + 1  # class 0: no kernel
        walked = paths.BindingPaths(self._timing, self._owner, kernel)
        n = int(new.key.max(initial=-1)) + 1
        error = np.zeros(n)
        is_kernel = new.key >= 0
        error[new.key[is_kernel]] = new.statistical[is_kernel]
        starts = self._spans.starts(at).tolist()
        ends = self._spans.last(at).tolist()
        table = np.zeros((len(starts), n + 1))
        for row, (last, start) in enumerate(zip(ends, starts, strict=True)):
            by_class = walked.by_class(lag, at, last, start)
            table[row, : len(by_class)] = by_class
        return combination.by_source(table[:, 1:] * error, new.direction, new.settled)


def windows_of(timing: Timing, steps: str, ranks: str) -> Spans:
    """Spans of a job's training steps, or of all of a job that has none."""
    every = "each" if windows.has_steps(timing.trace, ranks) else ""
    return spans.spans_of_timing(timing, steps or every, ranks)
