"""Power of a GPU by its core clock and its work, and the clock that a power cap leaves it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.power import prior
from chopper_interop.analyses.methods.power.classes import CLASSES
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.power.caps import Capping
    from chopper_interop.analyses.methods.power.fit import Fit
    from chopper_interop.analyses.methods.power.response import Response
    from chopper_interop.annotate.telemetry.source_reader import Source

CONFIDENCE = 1.96
"""Standard errors on either side that hold 95 % of a normal distribution."""
_WAVE_ERROR = 0.25
"""Relative error of the power that varying clocks take off, at other clocks. Chosen: how much the clock
varies changes with the cap, and the run does not show how."""
_MAX_SPREAD = 10.0
"""Largest error of ln(clock): its exponential is beyond all limits, and finite."""
_HOLDING = 0.05
"""Share of a cap that firmware may leave unused where the run does not show it. Chosen: as
much as `held` expects."""
LOWEST = 0.2
"""Share of the highest clock below which no clock is considered. Chosen: GPUs go down to 0.06 to 0.3 of
it, and power at their lowest clocks follows other laws."""


@dataclass(frozen=True)
class PowerModel:
    """Power of a GPU by its core clock and its work.

    Parameters
    ----------
    rank, device
        Rank and device of the GPU's series, as of `telemetry.gpus.Gpu`.
    source
        Samples of power that were fitted, and their tool.
    f_ref_mhz
        Reference clock, at which powers hold: the mean while work ran; None where unknown.
    highest_mhz
        Highest clock by the device's record or by samples; None where unknown.
    clock_known
        Basis of the clock between its samples, a text of `power.clock`.
    fit
        Parameters, their covariance, and how well they explain the samples.
    mix
        Share of each parameter in the power of each class, ``[class, parameter]``.
    waves
        Mean power of each class at the clock as it varied, over that at a constant clock of the same
        mean; the last one is of idle.
    as_expected
        Names of parameters that are known by expectation rather than by samples.
    mean_busy
        Share of time in which each class ran.
    capping
        Behaviour of the GPU at a cap.
    """

    rank: int
    device: int
    source: Source
    f_ref_mhz: float | None
    highest_mhz: float | None
    clock_known: str
    fit: Fit
    mix: Array
    waves: Array
    as_expected: tuple[str, ...]
    mean_busy: dict[str, float]
    capping: Capping

    @property
    def fixed_w(self) -> float:
        """Power that neither clock nor work changes."""
        return float(self.fit.value[prior.FIXED])

    @property
    def idling_w(self) -> float:
        """Power of the clock itself at `f_ref_mhz`, without work."""
        return float(self.fit.value[prior.IDLING])

    @property
    def idle_w(self) -> float:
        """Power at `f_ref_mhz` while nothing runs."""
        return self.fixed_w + self.idling_w

    @property
    def idle_error_w(self) -> float:
        """Standard error of `idle_w`, with what the model misses while nothing runs.

        All samples of an idle GPU miss it alike, where work does not follow the clock as the model has it.
        """
        row = np.zeros(len(self.fit.value))
        row[[prior.FIXED, prior.IDLING]] = 1.0
        return math.hypot(self._error(row), self.fit.idle_missed_w)

    @property
    def dynamic_w(self) -> dict[str, float]:
        """Power above idle that each class draws at `f_ref_mhz` while it runs."""
        powers = self.mix @ self.fit.value
        return {c.name: float(power) for c, power in zip(CLASSES, powers, strict=True)}

    @property
    def dynamic_error_w(self) -> dict[str, float]:
        """Standard error of `dynamic_w` of each class."""
        return {c.name: self._error(row) for c, row in zip(CLASSES, self.mix, strict=True)}

    @property
    def mean_by_class_w(self) -> dict[str, float]:
        """Part of each class in the mean power of the run."""
        busy = np.array([self.mean_busy[c.name] for c in CLASSES])
        powers = busy * self.waves[:-1] * (self.mix @ self.fit.value)
        return {c.name: float(power) for c, power in zip(CLASSES, powers, strict=True)}

    @property
    def mean_power_w(self) -> float:
        """Mean power of the run."""
        idle = self.fixed_w + self.idling_w * float(self.waves[-1])
        return idle + sum(self.mean_by_class_w.values())

    @property
    def exponent(self) -> float:
        """Exponent of the clock."""
        return float(self.fit.value[prior.EXPONENT])

    @property
    def exponent_error(self) -> float:
        """Standard error of `exponent`."""
        return float(np.sqrt(self.fit.covariance[prior.EXPONENT, prior.EXPONENT]))

    @property
    def error_w(self) -> float:
        """Root mean square of the residuals, watts."""
        return self.fit.error_w

    @property
    def response(self) -> Response:
        """Response of the power sensor."""
        return self.fit.response

    def power_w(self, activity: Mapping[str, float], mhz: float | None = None) -> float:
        """Mean power at a constant clock.

        Parameters
        ----------
        activity
            Share of time in which each class runs, as of `activity_of`.
        mhz
            Clock; `f_ref_mhz` if None, or if the reference clock is unknown.
        """
        power, _ = self._power(activity, self._ratio(mhz), varies=False)
        return power

    def power_error_w(self, activity: Mapping[str, float], mhz: float | None = None) -> float:
        """Standard error of `power_w`."""
        return self._power(activity, self._ratio(mhz), varies=False)[1]

    @property
    def lowest_mhz(self) -> float | None:
        """Lowest clock that is considered; None where no clock is known."""
        return LOWEST * self.highest_mhz if self.highest_mhz else None

    def min_w(self, activity: Mapping[str, float]) -> float:
        """Mean power at `lowest_mhz`, below which no cap holds it; 0 where no clock is known.

        Parameters
        ----------
        activity
            Share of time in which each class runs, as of `activity_of`.
        """
        known = self.f_ref_mhz and self.highest_mhz
        return self.power_w(activity, self.lowest_mhz) if known else 0.0

    def clock_mhz(
        self, cap_w: float, activity: Mapping[str, float], held_w: float = 0.0
    ) -> tuple[float, float, float] | None:
        """Mean clock that a power cap leaves: at all times the highest that keeps power at the cap.

        Parameters
        ----------
        cap_w
            Power cap, watts.
        activity
            Share of time in which each class runs, as of `activity_of`. At another clock it changes,
            as some work takes longer and some does not; the caller must take care of that.
        held_w
            Cap of the run if the GPU was held at a known one: then the other cap is taken in
            relation to it, and what firmware leaves unused of caps does not matter.

        Returns
        -------
        tuple
            Clock and both ends of its 95 % interval, MHz: from `lowest_mhz`, even if that draws more
            than the cap (`min_w`), to `highest_mhz`. It follows the work of the run, see
            `power.caps`. None where no clock is known.
        """
        low, high = self.lowest_mhz, self.highest_mhz
        if not self.f_ref_mhz or not low or not high:
            return None
        busy = [(activity.get(c.name, 0.0), self.mean_busy[c.name]) for c in CLASSES]
        factors = np.array([new / old if old else 0.0 for new, old in busy])
        share = self.capping.held_w / held_w if held_w > 0 else 1.0
        ratio, ratio_error = self.capping.mean_ratio(cap_w * share, factors)
        mhz = float(np.clip(ratio * self.f_ref_mhz, low, high))
        power, error = self._power(activity, ratio, varies=True)
        slope = max(self.exponent * (power - self.fixed_w), 1e-9)
        holding = 0.0 if held_w > 0 else _HOLDING * cap_w / slope
        spread = float(np.linalg.norm([CONFIDENCE * error / slope, ratio_error / ratio, holding]))
        spread = min(spread, _MAX_SPREAD)
        ends = mhz * np.exp(np.array([-spread, spread]))
        lower, upper = np.clip(ends, low, high).tolist()
        return mhz, lower, upper

    def _ratio(self, mhz: float | None) -> float:
        """Clock over the reference clock; 1 where either is unknown."""
        return 1.0 if mhz is None or not self.f_ref_mhz else mhz / self.f_ref_mhz

    def _error(self, row: Array) -> float:
        """Standard error of a linear combination of parameters."""
        return math.sqrt(max(float(row @ self.fit.covariance @ row), 0.0))

    def _power(
        self, activity: Mapping[str, float], ratio: float, *, varies: bool
    ) -> tuple[float, float]:
        """Mean power and its standard error at a clock, by its ratio to the reference."""
        busy = np.array([activity.get(c.name, 0.0) for c in CLASSES])
        waves = self.waves if varies else np.ones(len(self.waves))
        rise = ratio**self.exponent
        row = (busy * waves[:-1]) @ self.mix * rise
        row[prior.FIXED], row[prior.IDLING] = 1.0, waves[-1] * rise
        power = float(row @ self.fit.value)
        above = power - self.fixed_w
        row[prior.EXPONENT] = above * np.log(max(ratio, 1e-3))
        error = self._error(row)
        if varies:
            steady = (busy @ self.mix) @ self.fit.value * rise + self.idling_w * rise
            error = float(np.hypot(error, _WAVE_ERROR * (above - steady)))
        return power, error
