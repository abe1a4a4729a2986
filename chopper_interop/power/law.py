"""Power of a GPU by its core clock and what runs on it, and the clock that a power cap leaves it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.power import prior
from chopper_interop.power.classes import CLASSES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chopper_interop.columns.types import Array
    from chopper_interop.power.caps import Capping
    from chopper_interop.power.fit import Fit
    from chopper_interop.power.response import Response

_CONFIDENCE = 1.96
"""Standard errors on either side that hold 95 %."""
_WAVE_ERROR = 0.25
"""How well the part of the power that varying clocks take off carries over to other clocks."""
_WIDEST = 10.0
"""Of ln(clock): beyond all limits."""
_HOLDING = 0.05
"""How far below its cap a firmware may hold power, where the run does not tell."""
LOWEST = 0.2
"""Clocks below this part of the highest are not considered."""


@dataclass(frozen=True)
class PowerModel:
    """Power of a GPU by its core clock and what runs on it.

    Parameters
    ----------
    rank, device
        Those of the GPU's series, as of `telemetry.gpus.Gpu`.
    source
        Tool whose samples of power were fitted.
    f_ref_mhz
        Clock at which powers hold: the mean while work ran; None where no clock is known.
    highest_mhz
        Highest clock that the device's record or its samples tell; None where no clock is known.
    clock_known
        How the clock is known between its samples, a text of `power.clock`.
    fit
        Parameters, their covariance, and how well they explain the samples.
    mix
        What share each parameter has in the power of each class, ``[class, parameter]``.
    waves
        For each class, how a clock that varied as it did here changes its mean power, as a factor
        to that at a constant clock of the same mean; the last one is of idle.
    told
        What is not known by samples but by what is expected.
    mean_busy
        Share of time in which each class ran.
    capping
        How power was held at a cap.
    """

    rank: int
    device: int
    source: str
    f_ref_mhz: float | None
    highest_mhz: float | None
    clock_known: str
    fit: Fit
    mix: Array
    waves: Array
    told: tuple[str, ...]
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
        """Its standard error."""
        row = np.zeros(len(self.fit.value))
        row[[prior.FIXED, prior.IDLING]] = 1.0
        return self._error(row)

    @property
    def dynamic_w(self) -> dict[str, float]:
        """Power above idle that each class draws at `f_ref_mhz` while it runs."""
        powers = self.mix @ self.fit.value
        return {c.name: float(power) for c, power in zip(CLASSES, powers, strict=True)}

    @property
    def dynamic_error_w(self) -> dict[str, float]:
        """Standard error of each."""
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
        """Its standard error."""
        return float(np.sqrt(self.fit.covariance[prior.EXPONENT, prior.EXPONENT]))

    @property
    def error_w(self) -> float:
        """Root mean square of what samples differ by from the model."""
        return self.fit.error_w

    @property
    def response(self) -> Response:
        """How the sensor sees power."""
        return self.fit.response

    def power_w(self, activity: Mapping[str, float], mhz: float | None = None) -> float:
        """Mean power at a constant clock.

        Parameters
        ----------
        activity
            Share of time in which each class runs, as of `activity_of`.
        mhz
            The clock; `f_ref_mhz` if not given, or not known.
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

    def least_w(self, activity: Mapping[str, float]) -> float:
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
        """Mean clock that a power cap leaves: at every moment the highest that keeps power at it.

        Parameters
        ----------
        cap_w
            The cap, watts.
        activity
            Share of time in which each class runs, as of `activity_of`. That it is another at
            another clock, as some work takes longer and some does not, is for the caller to say.
        held_w
            The cap during the run, if it was held at one that is known: then the other one is seen
            in relation to it, and what firmware leaves unused of caps does not matter.

        Returns
        -------
        tuple
            The clock, and where it is with 95 % confidence, MHz: from `lowest_mhz`, also where that
            draws more (`least_w`), to `highest_mhz`. It follows the work of the run, see
            `power.caps`. None where no clock is known.
        """
        low, high = self.lowest_mhz, self.highest_mhz
        if not self.f_ref_mhz or not low or not high:
            return None
        busy = [(activity.get(c.name, 0.0), self.mean_busy[c.name]) for c in CLASSES]
        factors = np.array([new / old if old else 0.0 for new, old in busy])
        share = self.capping.held_w / held_w if held_w > 0 else 1.0
        ratio, doubt = self.capping.mean_ratio(cap_w * share, factors)
        mhz = float(np.clip(ratio * self.f_ref_mhz, low, high))
        power, error = self._power(activity, ratio, varies=True)
        slope = max(self.exponent * (power - self.fixed_w), 1e-9)
        holding = 0.0 if held_w > 0 else _HOLDING * cap_w / slope
        spread = float(np.linalg.norm([_CONFIDENCE * error / slope, doubt / ratio, holding]))
        spread = min(spread, _WIDEST)
        around = mhz * np.exp(np.array([-spread, spread]))
        least, most = np.clip(around, low, high).tolist()
        return mhz, least, most

    def _ratio(self, mhz: float | None) -> float:
        return 1.0 if mhz is None or not self.f_ref_mhz else mhz / self.f_ref_mhz

    def _error(self, row: Array) -> float:
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
