"""Windows of averaging that the readings of a clock rule out by themselves, whatever kernels do.

A mean over a window w has no power at the multiples of 1/w, where what was averaged goes through whole periods. Readings
whose spectrum is as high there as between are no means over w, nor over nearly as much. It takes readings that are three
times as close as the window is long, over twenty windows. Averages of other weights have no such nulls: of them windows
say nothing but how smooth they are.

A mean changes by what enters its window less what leaves it. So readings show how the clock differs from one window
earlier, and from all windows before. Where no clock from 0 to the highest changes like that, readings are no means over w.
It takes readings that are half a window apart or closer, over two windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.clocks.clock_sensor import Readings

_MAX_NULLS = 8
"""Multiples of 1/w that are compared. Chosen: where steps from window to window are as below, higher ones are missed."""
_WINDOW_STEP = 1.0075
"""Ratio of windows that are compared one after the other: the eighth null moves by less than its width."""
_NULL_WIDTH = 0.045
"""Distance from a null that counts as it, as a share of that between nulls: a mean passes less than a hundredth there."""
_MIN_NULL_DISTANCE = 0.3
"""Distance from a null from which on power shows what is to be expected of it, up to half of the way to the next."""
_STANDING_POWER = 4.0
"""Power over that of a null from which on it is none: a mean exceeds it by chance in e^-4 of all cases."""
_MAX_NULL_POWER = 0.5
"""Part of the power between nulls that this may be. Chosen: six of ten powers without nulls are above half the median."""
_MIN_POWERS = 8
"""Powers at nulls below which they show nothing. Chosen: two or less of eight stand by chance without nulls in 2 %."""
_MAX_STANDING_SHARE = 0.25
"""Share of powers at nulls that may stand all the same, as clocks that follow the step have lines in their spectrum."""
_MIN_PERIODS = 3.0
"""Shortest window that is compared, in periods of readings: of shorter ones no null is below half their rate."""
_ROUNDING_POWER = 3.0
"""Power of rounding, in steps squared over 12. Chosen: that of a still clock is not white."""
_MAX_UNEVENNESS = 0.2
"""Largest deviation of intervals from their median, as a share, so that readings have a spectrum."""
_MIN_WINDOWS = 2
"""Windows over which clocks are compared with those of the window before."""
_PARTS = 2, 12
"""Fewest and most parts of a window in which the clock is compared with that of the window before. Chosen: more parts
add rounding, as what enters is a smaller part of the mean."""
_MAX_EXCESS = 0.02
"""Share of the highest clock by which the clock may have to be above it, or below 0. Chosen: up to 0.007 for true windows
of generated jobs, as readings are interpolated; one of 300 clocks that throttle had more."""
_ALIAS_COUNT = 3
"""Multiples of the readings' rate from which powers are folded to lower ones; those of more are less than a percent."""


class _Spectrum(NamedTuple):
    """Power of readings by frequency.

    Parameters
    ----------
    power
        Power at multiples of a frequency from 0 on, as variance of white noise.
    width_hz
        That frequency.
    noise
        Power of rounding.
    rate_hz
        Readings a second.
    """

    power: Array
    width_hz: float
    noise: float
    rate_hz: float

    def within(self, low_hz: Array, high_hz: Array) -> list[Array]:
        """Return the powers from each of these frequencies to another."""
        first = np.ceil(low_hz / self.width_hz).astype(np.int64).tolist()
        stop = (np.floor(high_hz / self.width_hz).astype(np.int64) + 1).tolist()
        return [self.power[i:j] for i, j in zip(first, stop, strict=True)]


def possible_windows(gpus: list[Readings], windows: Array, highest: Array) -> Array:
    """Mark the windows that readings do not rule out.

    Parameters
    ----------
    gpus
        Readings of GPUs.
    windows
        Windows of ascending lengths in nanoseconds; each stands for those that are nearer to it than to others.
    highest
        Highest clock of each GPU, MHz, NaN where unknown.
    """
    spectra = [one for one in map(_spectrum, gpus) if one is not None]
    limits = list(zip(gpus, highest.tolist(), strict=True))
    possible = np.ones(len(windows), bool)
    if len(windows) < 2:  # noqa: PLR2004
        return possible
    edges = np.sqrt(windows[1:] * windows[:-1])
    longest = windows[-1:]  # as far above it as the edge below, which is 0 next to an instant
    edges = np.concatenate([windows[:1], edges, longest**2 / max(edges[-1], longest[0] / 2)])
    for number, (window, low, high) in enumerate(zip(windows, edges, edges[1:], strict=False)):
        if not window:
            continue
        count = max(int(np.ceil(np.log(high / max(low, 1.0)) / np.log(_WINDOW_STEP))), 1)
        tried = np.geomspace(max(low, window / 2), high, count + 1)
        possible[number] = any(
            _is_possible(spectra, one)
            and all(has_clock(*limit, min(one, float(windows[-1]))) for limit in limits)
            for one in tried
        )
    return possible


def has_clock(gpu: Readings, highest_mhz: float, window_ns: float) -> bool:
    """Return True if a clock from 0 to the highest may have these readings as its means over a window."""
    parts = min(int(window_ns / max(gpu.period_ns, 1.0) + _MIN_NULL_DISTANCE), _PARTS[1])
    step = window_ns / max(parts, 1)
    mhz = np.interp(np.arange(gpu.time[0], gpu.time[-1], step), gpu.time, gpu.mhz)
    count = (len(mhz) - 1) // max(parts, 1)
    if parts < _PARTS[0] or count < _MIN_WINDOWS or not highest_mhz >= gpu.mhz.max():
        return True
    # (window, part): the mean clock of a part, less that of the same part of the first window.
    change = np.cumsum(parts * np.diff(mhz)[: count * parts].reshape(count, parts), axis=0)
    change = np.vstack([np.zeros(parts), change])
    above, below = ((sign * (change - change.mean(axis=0))).max(axis=0).mean() for sign in (1, -1))
    rounding = parts * gpu.quantum_mhz * np.sqrt(count / 6)  # two readings a window, 1 / 12 each
    room, mean = _MAX_EXCESS * highest_mhz + rounding, float(mhz.mean())
    return bool(above <= highest_mhz - mean + room and below <= mean + room)


def _spectrum(gpu: Readings) -> _Spectrum | None:
    """Return the spectrum of a GPU's readings; None if they are uneven."""
    steps = np.diff(gpu.time)
    if len(steps) < _MIN_POWERS:
        return None
    period = float(np.median(steps))
    if not period or np.mean(np.abs(steps / period - 1) < _MAX_UNEVENNESS) < 1 - _MAX_UNEVENNESS:
        return None
    even = np.arange(gpu.time[0], gpu.time[-1], period)
    mhz = np.interp(even, gpu.time, gpu.mhz)
    taper = np.hanning(len(mhz))
    power = np.abs(np.fft.rfft(taper * (mhz - mhz.mean()))) ** 2 / np.sum(taper**2)
    rate = 1e9 / period
    return _Spectrum(power, rate / len(mhz), _ROUNDING_POWER * gpu.quantum_mhz**2 / 12, rate)


def _is_possible(spectra: list[_Spectrum], window_ns: float) -> bool:
    """Return True if too few powers stand where a mean over this window has none."""
    counts = [_standing(one, window_ns / 1e9) for one in spectra]
    standing, compared = np.sum([(0, 0), *counts], axis=0)
    return compared < _MIN_POWERS or standing <= _MAX_STANDING_SHARE * compared


def _standing(spectrum: _Spectrum, window: float) -> tuple[int, int]:
    """Count powers at nulls of a mean over a window, in seconds, that are no nulls, and those compared."""
    rate, leak = spectrum.rate_hz, spectrum.width_hz  # of the taper
    if window * rate < _MIN_PERIODS:
        return 0, 0
    standing = compared = 0
    highest = min(_MAX_NULLS, int(window * rate / 2 - 0.5))
    # of all nulls at once, as each call of numpy takes longer than its few powers
    null = np.arange(1, highest + 1) / window
    sides = np.array([[-1], [1]])
    passed = _gain(null + sides * (_NULL_WIDTH / window + leak), window, rate).max(axis=0)
    around_null = _gain(null + sides * (0.5 + _MIN_NULL_DISTANCE) / 2 / window, window, rate)
    between = np.sqrt(around_null.prod(axis=0))  # about the median of both
    spans = (
        spectrum.within(null + low / window, null + high / window)
        for low, high in (
            (-_NULL_WIDTH, _NULL_WIDTH),
            (-0.5, -_MIN_NULL_DISTANCE),
            (_MIN_NULL_DISTANCE, 0.5),
        )
    )
    for at, below, above, share in zip(*spans, (passed / between).tolist(), strict=True):
        around = np.sort(np.concatenate([below, above]))
        count = len(around)
        if count < _MIN_POWERS // 2:
            continue
        usual = float(around[(count - 1) // 2] + around[count // 2]) / 2
        limit = _STANDING_POWER * (usual * share + spectrum.noise)
        if limit < _MAX_NULL_POWER * usual:
            compared += len(at)
            standing += int(np.count_nonzero(at > limit))
    return standing, compared


def _gain(hz: Array, window: float, rate_hz: float) -> Array:
    """Power of a mean over a window, of a clock with as much at each frequency, with what readings fold to it."""
    aliases = rate_hz * np.arange(-_ALIAS_COUNT, _ALIAS_COUNT + 1)
    folded = hz + aliases.reshape(-1, *[1] * hz.ndim)
    gain: Array = np.sum(np.sinc(folded * window) ** 2, axis=0)
    return gain
