"""Model of a GPU's power fitted to its telemetry: idle, its work, and the core clock.

``P = fixed + (idling + Σ_c dynamic_c · share_c) · (f / f_ref)^g`` with the share of time in which
work of class c ran. Powers below 0 are excluded. Kernels that take 0.3 % of the GPU's work or more have
a power of their own, and a class has the mean of its kernels by time. A sensor sees this through a
filter or window and late, which is fitted too. Parameters of which samples say little stay near their
expected values (`power.classes`, `power.prior`), with errors that say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.power import bins as power_bins
from chopper_interop.analyses.methods.power import clock as power_clock
from chopper_interop.analyses.methods.power import fit as power_fit
from chopper_interop.analyses.methods.power import prior, products
from chopper_interop.analyses.methods.power.caps import PowerProfile, identify_capping
from chopper_interop.analyses.methods.power.classes import CLASSES, power_classes
from chopper_interop.analyses.methods.power.excerpts import excerpts
from chopper_interop.analyses.methods.power.fit import Fit, Problem
from chopper_interop.analyses.methods.power.law import LOWEST, PowerModel
from chopper_interop.analyses.methods.power.response import Observed, observed
from chopper_interop.annotate.telemetry.quantity_series import GFXCLK, POWER
from chopper_interop.arrays import Array, intervals
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.power.bins import Bins
    from chopper_interop.analyses.methods.power.clock import BinnedClock
    from chopper_interop.annotate.telemetry.gpus import Gpu
    from chopper_interop.annotate.telemetry.source_reader import Source

__all__ = ["PowerModel", "activity_of", "fit_power", "why_not"]

_OWN = 0.003
"""Share of all work from which on kernels have a power of their own. Chosen: below it no power can be seen
in the samples."""
_MAX_OWN = 32
"""Largest number of such kernels. Chosen: the time of a fit grows with its square."""
_SAMPLES_EACH = 1.5
"""Samples for each such kernel. Chosen: so few are enough, as the expected power of classes holds kernels
together."""
_LEARNT = 0.8
"""Share of its expected error below which a parameter is known by samples. Chosen: they then hold more than
half as much as the expectation did."""
_ELSEWHERE = 0.9
"""Clock over the reference clock at which sources are compared. Chosen: a cap of three quarters of the power
leaves about that, 0.9^2.4 = 0.78."""
_ENOUGH = 200
"""Samples, with a clock that they follow, after which no other source is tried. Chosen: several for each of
the parameters."""


@dataclass(frozen=True)
class _Parts:
    """Parts of a GPU's work that may differ in power.

    Parameters
    ----------
    number
        Part of each piece of work.
    classes
        Class of each part; the first ones are the rest of each class.
    time_ns
        Duration of the work of each part.
    """

    number: Array
    classes: Array
    time_ns: Array

    def mix(self) -> Array:
        """Share of each parameter in the power of each class, ``[class, parameter]``."""
        shares = np.zeros((len(CLASSES), prior.FIRST + len(self.classes) - prior.EXPONENT))
        for number in range(len(CLASSES)):
            parts = np.flatnonzero(self.classes == number)
            time = self.time_ns[parts].astype(np.float64)
            share = time / time.sum() if time.any() else (parts == number).astype(np.float64)
            shares[number, prior.FIRST + parts] = share
        return shares


def fit_power(trace: Trace, gpu: Gpu) -> PowerModel | None:
    """Fit a power model to a GPU; None if no power was sampled while it worked.

    Parameters
    ----------
    trace
        Trace with telemetry.
    gpu
        One of its GPUs, of `telemetry.gpus.gpus`.

    Notes
    -----
    Of several tools' samples those with the smallest error of the power at another clock are taken.
    The form is that of CMOS power, activity x f V², with voltage absorbed by the exponent, as
    for GPUs in Guerreiro et al. (HPCA 2018) and Lit Silicon (2511.09861), whose errors are 1 % and
    more.
    """
    start = trace.array("ts")[gpu.rows]
    end = start + trace.array("dur")[gpu.rows]
    if not len(start) or not int((end - start).max()):
        return None
    classes = power_classes(trace, gpu.rows)
    best: PowerModel | None = None
    min_error = np.inf
    for source in gpu.sources.get(POWER.name, ()):
        model = _of_source(trace, gpu, source, (start, end, classes))
        if model is None:
            continue
        mhz = _ELSEWHERE * model.f_ref_mhz if model.f_ref_mhz else None
        error = model.power_error_w(model.mean_busy, mhz) + model.power_error_w(model.mean_busy)
        if error < min_error:
            best, min_error = model, error
        if model.clock_known == power_clock.FOLLOWED and model.fit.n >= _ENOUGH:
            break
    return best


def why_not(trace: Trace, gpu: Gpu) -> str:
    """Return the reason why a GPU has no model."""
    if not gpu.sources.get(POWER.name):
        return "no power was sampled"
    dur = trace.array("dur")[gpu.rows]
    return "its work has no durations" if not dur.any() else "power was not sampled while it worked"


def activity_of(trace: Trace, gpu: Gpu, start_ns: Array, end_ns: Array) -> dict[str, Array]:
    """Share of each window in which each class of work ran on a GPU, by name of the class.

    Parameters
    ----------
    trace, gpu
        Trace and one of its GPUs.
    start_ns, end_ns
        Starts and ends of windows.
    """
    start_ns, end_ns = np.atleast_1d(start_ns), np.atleast_1d(end_ns)
    start = trace.array("ts")[gpu.rows]
    end = start + trace.array("dur")[gpu.rows]
    classes = power_classes(trace, gpu.rows)
    span = np.maximum(end_ns - start_ns, 1)
    shares = {}
    for number, kind in enumerate(CLASSES):
        of_class = classes == number
        union = intervals.union(start[of_class], end[of_class])
        shares[kind.name] = intervals.covered_time(start_ns, end_ns, union) / span
    return shares


def _of_source(
    trace: Trace, gpu: Gpu, source: Source, work: tuple[Array, Array, Array]
) -> PowerModel | None:
    """Fit the model to one tool's samples; `work` is starts, ends and classes of the GPU's work."""
    start, end, classes = work
    every_sample = observed(source.samples[0][1], is_rate=not source.pattern.is_instantaneous)
    within = excerpts(start, end, every_sample.period_ns)
    bins, samples = within.bins, within.observed(every_sample)
    if not len(samples) or not float(samples.value.mean()) > 0:
        return None
    rows, start, end = within.work(start, end)
    classes = classes[rows]
    own = min(_MAX_OWN, int(len(samples) / _SAMPLES_EACH))
    parts = _parts(trace.array("name")[gpu.rows[rows]], end - start, classes, own)
    by_class = power_bins.busy_shares(bins, start, end, classes.astype(np.int64), len(CLASSES))
    dies = gpu.sources[GFXCLK.name][0].samples if GFXCLK.name in gpu.sources else ()
    ratio = np.array([c.ratio for c in CLASSES])
    clock = power_clock.estimate_clock(
        bins, [within.samples(s) for _, s in dies], products.combined(ratio, by_class)
    )
    busy = power_bins.busy_shares(bins, start, end, parts.number, len(parts.classes))
    rough = _problem(bins, by_class, clock, samples, np.arange(len(CLASSES)))
    problem, expected = _problem(bins, busy, clock, samples, parts.classes)
    fit = power_fit.fit(problem, expected, rough)
    if fit is None:
        return None
    highest, mix = _highest(trace, gpu, clock), parts.mix()
    profile = _profile(busy, clock, fit, parts, highest)
    flat = np.append(by_class.mean(axis=1) * (mix @ fit.value), fit.value[prior.IDLING])
    window = np.array([work[0].min()]), np.array([work[1].max()])
    ran = activity_of(trace, gpu, *window)
    return PowerModel(
        rank=gpu.rank,
        device=gpu.device,
        source=source,
        f_ref_mhz=clock.f_ref_mhz or None,
        highest_mhz=highest,
        clock_known=clock.kind,
        fit=fit,
        mix=mix,
        waves=_waves(profile, clock, fit, flat),
        as_expected=_as_expected(fit, expected, parts),
        mean_busy={name: float(share[0]) for name, share in ran.items()},
        capping=identify_capping(profile),
    )


def _problem(
    bins: Bins, busy: Array, clock: BinnedClock, samples: Observed, classes: Array
) -> tuple[Problem, prior.Prior]:
    """Data of a fit, and the expected parameters."""
    level = float(samples.value.mean())
    delays = samples.period_ns / bins.width_ns, clock.period_ns / bins.width_ns
    expected = prior.expected_parameters(level, busy.mean(axis=1), classes, delays)
    return Problem(bins, busy, clock, samples), expected


def _parts(name: Array, dur: Array, classes: Array, own: int) -> _Parts:
    """Divide the work into up to `own` kernels that take most of it, and the rest of each class."""
    total = np.bincount(name, dur, minlength=1)
    largest = np.argsort(total)[::-1][:own]
    largest = largest[total[largest] >= _OWN * total.sum()]
    part_of_name = np.full(len(total), -1, np.int64)
    part_of_name[largest] = len(CLASSES) + np.arange(len(largest))
    number = np.where(part_of_name[name] >= 0, part_of_name[name], classes)
    class_of_part = np.arange(len(CLASSES) + len(largest))
    class_of_part[number] = classes
    time_ns = np.bincount(number, dur, minlength=len(class_of_part))
    return _Parts(number, class_of_part, time_ns)


def _profile(
    busy: Array, clock: BinnedClock, fit: Fit, parts: _Parts, highest: float | None
) -> PowerProfile:
    """Power of classes over time, as if at the reference clock."""
    power = fit.value[prior.FIRST : prior.EXPONENT, np.newaxis] * busy
    by_class = np.zeros((len(CLASSES), busy.shape[1]))
    np.add.at(by_class, parts.classes, power)
    top = (highest or 0.0) / clock.f_ref_mhz if clock.f_ref_mhz else 1.0
    return PowerProfile(
        classes=by_class,
        idling_w=float(fit.value[prior.IDLING]),
        fixed_w=float(fit.value[prior.FIXED]),
        width_ns=float(clock.bins.width_ns),
        exponent=float(fit.value[prior.EXPONENT]),
        ratio=np.exp(clock.logarithm(fit.lag_ns)),
        is_followed=clock.is_followed,
        low=LOWEST * top,
        top=top,
    )


def _waves(profile: PowerProfile, clock: BinnedClock, fit: Fit, flat: Array) -> Array:
    """Mean powers of classes and of idling over those at a constant clock (`flat`)."""
    rise = np.exp(profile.exponent * clock.logarithm(fit.lag_ns))
    mean = np.append((profile.classes * rise).mean(axis=1), profile.idling_w * rise.mean())
    waves: Array = np.where(flat > 0, mean / np.where(flat > 0, flat, 1.0), 1.0)
    return waves


def _highest(trace: Trace, gpu: Gpu, clock: BinnedClock) -> float | None:
    """Highest clock by the device's record, or by samples if these are higher."""
    recorded = [d.max_mhz for d in trace.meta.devices if d.device == gpu.device and d.max_mhz > 0]
    sampled = [float(s.value.max()) for s in clock.dies]
    return max([*recorded, *sampled], default=0.0) or None


def _as_expected(fit: Fit, expected: prior.Prior, parts: _Parts) -> tuple[str, ...]:
    """Names of the parameters that samples say little of, so that they are as expected."""
    error = np.sqrt(np.diag(fit.covariance))
    before = np.sqrt(np.diag(expected.covariance))
    names = []
    if error[prior.EXPONENT] > _LEARNT * before[prior.EXPONENT]:
        names.append("exponent")
    if error[prior.FIXED] > _LEARNT * before[prior.FIXED]:
        names.append("fixed")
    for row, kind in zip(parts.mix(), CLASSES, strict=True):
        after = np.sqrt(row @ fit.covariance @ row)
        if after > _LEARNT * np.sqrt(row @ expected.covariance @ row):
            names.append(kind.name)
    return tuple(names)
