"""What a GPU's power is made of, fitted to its telemetry: idle, what runs, and the core clock.

``P = fixed + (idling + Σ_c dynamic_c · share_c) · (f / f_ref)^g`` with the share of time in which
work of class c ran. Powers below 0 are excluded. Kernels that take 0.3 % of the GPU's work or more have
a power of their own, and a class has the mean of its kernels by time. A sensor sees this through a
filter or window and late, which is fitted too. What samples tell little of stays near what is
expected of it (`power.classes`, `power.prior`), with errors that say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import intervals
from chopper_interop.power import bins as power_bins
from chopper_interop.power import classes as power_classes
from chopper_interop.power import clock as power_clock
from chopper_interop.power import fit as power_fit
from chopper_interop.power import prior, products
from chopper_interop.power.caps import Course, capping
from chopper_interop.power.classes import CLASSES
from chopper_interop.power.fit import Problem
from chopper_interop.power.law import LOWEST, PowerModel
from chopper_interop.power.response import observed
from chopper_interop.power.stretches import stretches
from chopper_interop.telemetry.names import GFXCLK, POWER

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.power.bins import Bins
    from chopper_interop.power.clock import Clock
    from chopper_interop.power.fit import Fit
    from chopper_interop.power.response import Observed
    from chopper_interop.telemetry.gpus import Gpu, Source
    from chopper_interop.trace import Trace

__all__ = ["PowerModel", "activity_of", "fitted", "why_not"]

_OWN = 0.003
"""Kernels with this part of all work have a power of their own …"""
_MOST_OWN = 32
_SAMPLES_EACH = 1.5
"""… if there are so many samples for each; what is expected of classes holds them together."""
_LEARNT = 0.8
"""A parameter is known by samples if its error is below this part of what was expected."""
_ELSEWHERE = 0.9
_ENOUGH = 200
"""So many samples with a clock that is followed: no other source will do better."""


@dataclass(frozen=True)
class _Parts:
    """Parts of a GPU's work that may differ in power.

    Parameters
    ----------
    number
        Part of each piece of work.
    classes
        Class of each part; the first ones are what is left of each class.
    time_ns
        Duration of the work of each part.
    """

    number: Array
    classes: Array
    time_ns: Array

    def mix(self) -> Array:
        """What share each parameter has in the power of each class."""
        found = np.zeros((len(CLASSES), prior.FIRST + len(self.classes) - prior.EXPONENT))
        for number in range(len(CLASSES)):
            mine = np.flatnonzero(self.classes == number)
            time = self.time_ns[mine].astype(np.float64)
            share = time / time.sum() if time.any() else (mine == number).astype(np.float64)
            found[number, prior.FIRST + mine] = share
        return found


def fitted(trace: Trace, gpu: Gpu) -> PowerModel | None:
    """Power model of a GPU; None if no power was sampled while it worked.

    Parameters
    ----------
    trace
        The trace.
    gpu
        One of its GPUs, of `telemetry.gpus.gpus`.

    Notes
    -----
    Of several tools' samples those that leave the least doubt about the power at another clock are
    taken. The form is that of CMOS power, activity x f V², with voltage absorbed by the exponent, as
    for GPUs in Guerreiro et al. (HPCA 2018) and Lit Silicon (2511.09861), whose errors are 1 % and
    more.
    """
    start = trace.array("ts")[gpu.rows]
    end = start + trace.array("dur")[gpu.rows]
    if not len(start) or not int((end - start).max()):
        return None
    classes = power_classes.of(trace, gpu.rows)
    best: PowerModel | None = None
    doubt = np.inf
    for source in gpu.told.get(POWER.name, ()):
        model = _of_source(trace, gpu, source, (start, end, classes))
        if model is None:
            continue
        mhz = _ELSEWHERE * model.f_ref_mhz if model.f_ref_mhz else None
        error = model.power_error_w(model.mean_busy, mhz) + model.power_error_w(model.mean_busy)
        if error < doubt:
            best, doubt = model, error
        if model.clock_known == power_clock.FOLLOWED and model.fit.n >= _ENOUGH:
            break
    return best


def why_not(trace: Trace, gpu: Gpu) -> str:
    """Why a GPU has no model."""
    if not gpu.told.get(POWER.name):
        return "no power was sampled"
    dur = trace.array("dur")[gpu.rows]
    return "its work has no durations" if not dur.any() else "power was not sampled while it worked"


def activity_of(trace: Trace, gpu: Gpu, start_ns: Array, end_ns: Array) -> dict[str, Array]:
    """Share of each window in which each class of work ran on a GPU.

    Parameters
    ----------
    trace, gpu
        The trace and one of its GPUs.
    start_ns, end_ns
        Windows.
    """
    start_ns, end_ns = np.atleast_1d(start_ns), np.atleast_1d(end_ns)
    start = trace.array("ts")[gpu.rows]
    end = start + trace.array("dur")[gpu.rows]
    classes = power_classes.of(trace, gpu.rows)
    span = np.maximum(end_ns - start_ns, 1)
    found = {}
    for number, kind in enumerate(CLASSES):
        mine = classes == number
        union = intervals.union(start[mine], end[mine])
        found[kind.name] = intervals.covered(start_ns, end_ns, union) / span
    return found


def _of_source(
    trace: Trace, gpu: Gpu, source: Source, work: tuple[Array, Array, Array]
) -> PowerModel | None:
    """The model by one tool's samples."""
    start, end, classes = work
    told = observed(source.samples[0][1], is_rate=not source.told.is_shown)
    within = stretches(int(start.min()), int(end.max()), told.period_ns)
    bins, what = within.bins, within.observed(told)
    if not len(what) or not float(what.value.mean()) > 0:
        return None
    rows, start, end = within.work(start, end)
    classes = classes[rows]
    own = min(_MOST_OWN, int(len(what) / _SAMPLES_EACH))
    parts = _parts(trace.array("name")[gpu.rows[rows]], end - start, classes, own)
    by_class = power_bins.shares(bins, start, end, classes.astype(np.int64), len(CLASSES))
    dies = gpu.told[GFXCLK.name][0].samples if GFXCLK.name in gpu.told else ()
    ratio = np.array([c.ratio for c in CLASSES])
    clock = power_clock.clock(
        bins, [within.samples(s) for _, s in dies], products.combined(ratio, by_class)
    )
    busy = power_bins.shares(bins, start, end, parts.number, len(parts.classes))
    rough = _problem(bins, by_class, clock, what, np.arange(len(CLASSES)))
    problem, expected = _problem(bins, busy, clock, what, parts.classes)
    fit = power_fit.fit(problem, expected, rough)
    if fit is None:
        return None
    highest, mix = _highest(trace, gpu, clock), parts.mix()
    course = _course(busy, clock, fit, parts, highest)
    flat = np.append(by_class.mean(axis=1) * (mix @ fit.value), fit.value[prior.IDLING])
    window = np.array([work[0].min()]), np.array([work[1].max()])
    ran = activity_of(trace, gpu, *window)
    return PowerModel(
        rank=gpu.rank,
        device=gpu.device,
        source=source.tool,
        f_ref_mhz=clock.f_ref_mhz or None,
        highest_mhz=highest,
        clock_known=clock.kind,
        fit=fit,
        mix=mix,
        waves=_waves(course, clock, fit, flat),
        told=_told(fit, expected, parts),
        mean_busy={name: float(share[0]) for name, share in ran.items()},
        capping=capping(course),
    )


def _problem(
    bins: Bins, busy: Array, clock: Clock, what: Observed, classes: Array
) -> tuple[Problem, prior.Prior]:
    """What is fitted, and what is expected of it."""
    level = float(what.value.mean())
    delays = what.period_ns / bins.width_ns, clock.period_ns / bins.width_ns
    expected = prior.prior(level, busy.mean(axis=1), classes, delays)
    return Problem(bins, busy, clock, what), expected


def _parts(name: Array, dur: Array, classes: Array, own: int) -> _Parts:
    """Parts of the work: the kernels that take most of it, and the rest of each class."""
    total = np.bincount(name, dur, minlength=1)
    many = np.argsort(total)[::-1][:own]
    many = many[total[many] >= _OWN * total.sum()]
    place = np.full(len(total), -1, np.int64)
    place[many] = len(CLASSES) + np.arange(len(many))
    number = np.where(place[name] >= 0, place[name], classes)
    kinds = np.arange(len(CLASSES) + len(many))
    kinds[number] = classes
    return _Parts(number, kinds, np.bincount(number, dur, minlength=len(kinds)))


def _course(busy: Array, clock: Clock, fit: Fit, parts: _Parts, highest: float | None) -> Course:
    """Power of classes over time as if at the reference clock."""
    power = fit.value[prior.FIRST : prior.EXPONENT, np.newaxis] * busy
    by_class = np.zeros((len(CLASSES), busy.shape[1]))
    np.add.at(by_class, parts.classes, power)
    top = (highest or 0.0) / clock.f_ref_mhz if clock.f_ref_mhz else 1.0
    return Course(
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


def _waves(course: Course, clock: Clock, fit: Fit, flat: Array) -> Array:
    """Mean powers of classes and of idling by what they are at a constant clock."""
    rise = np.exp(course.exponent * clock.logarithm(fit.lag_ns))
    mean = np.append((course.classes * rise).mean(axis=1), course.idling_w * rise.mean())
    found: Array = np.where(flat > 0, mean / np.where(flat > 0, flat, 1.0), 1.0)
    return found


def _highest(trace: Trace, gpu: Gpu, clock: Clock) -> float | None:
    """Highest clock by the device's record, or by samples if these are higher."""
    told = [d.max_mhz for d in trace.meta.devices if d.device == gpu.device and d.max_mhz > 0]
    seen = [float(s.value.max()) for s in clock.dies]
    return max([*told, *seen], default=0.0) or None


def _told(fit: Fit, expected: prior.Prior, parts: _Parts) -> tuple[str, ...]:
    """What is as expected rather than known by samples."""
    error = np.sqrt(np.diag(fit.covariance))
    before = np.sqrt(np.diag(expected.covariance))
    found = []
    if error[prior.EXPONENT] > _LEARNT * before[prior.EXPONENT]:
        found.append("exponent")
    if error[prior.FIXED] > _LEARNT * before[prior.FIXED]:
        found.append("fixed")
    for row, kind in zip(parts.mix(), CLASSES, strict=True):
        after = np.sqrt(row @ fit.covariance @ row)
        if after > _LEARNT * np.sqrt(row @ expected.covariance @ row):
            found.append(kind.name)
    return tuple(found)
