"""Clocks that a power cap leaves the GPUs of a job, by the caps that they were held at in the run.

What firmware leaves unused of a cap, and what heat takes off it, stays as it was: a cap equal to
that of the run changes nothing. Where no source records the cap of the run, it is taken to be about
what the GPUs with the most power show, as heat and bad boards lower only some.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.power import limits
from chopper_interop.analyses.methods.power.classes import CLASSES, COMM, power_classes
from chopper_interop.analyses.methods.power.law import CONFIDENCE, LOWEST
from chopper_interop.arrays import Array
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.power.model import PowerModel
    from chopper_interop.annotate.telemetry.gpus import Gpu

_HELD, _HELD_ERROR = 0.95, 0.03
"""Share of a cap at which a GPU is seen to be held by it, and its standard deviation. Chosen: firmware
leaves a few percent unused, see `law._HOLDING`."""
_CAP_QUANTILE = 0.9
"""Quantile of what GPUs are held at that shows the cap of a job. Chosen: heat and bad boards lower only
some, and one odd GPU must not decide."""
_FREE = 0.985
"""Share of the highest clock above which a mean clock is not held down. Chosen: errors of the clock."""
_HELD_BY_OTHER = 0.8
"""Share of a recorded cap below which something else than the cap holds power. Chosen: far below what
firmware leaves unused."""
_FURTHER, _COOLER = 0.45, 0.15
"""Errors of ln(clock). Chosen: the first by the square of its change, as power laws bend and clocks have
unknown floors; the second by the share of a cap that heat takes in the run, as it may take another
share of another cap."""
_MIN_W = 1.0
"""Smallest power that is divided by, watts. Chosen: below the idle power of any GPU."""


@dataclass(frozen=True)
class CappedGpu:
    """A GPU, its power model, and the cap that it was held at.

    Parameters
    ----------
    gpu, model
        GPU and its power model.
    cap_w, error_share
        Cap of the run and its standard deviation as a share; 0 if no cap held the GPU.
    usual_w
        Power at which GPUs are held under this cap where only the cap holds them.
    only_lower
        True if something else than power holds the clock, so that no cap raises it.
    """

    gpu: Gpu
    model: PowerModel
    cap_w: float = 0.0
    error_share: float = 0.0
    usual_w: float = 0.0
    only_lower: bool = False

    def mhz(self, cap_w: float, busy: dict[str, float]) -> tuple[float, float] | None:
        """Mean clock under a cap, and its standard deviation as a share.

        Parameters
        ----------
        cap_w
            Power cap.
        busy
            Share of time in which each class runs.
        """
        clock, lower, higher = (
            self._clock(self._held_w(cap_w * factor), busy)
            for factor in (1.0, 1 - self.error_share, 1 + self.error_share)
        )
        if clock is None or lower is None or higher is None or not self.model.f_ref_mhz:
            return None
        mhz, low, high = clock
        errors = [np.log(max(high / mhz, mhz / low)) / CONFIDENCE]
        errors.append(np.log(max(higher[0] / mhz, mhz / lower[0])))
        if self.only_lower:
            mhz = min(mhz, self.model.f_ref_mhz)
        change = float(np.log(mhz / self.model.f_ref_mhz))
        errors += [_FURTHER * change**2, _COOLER * self._log_deficit]
        error = float(np.linalg.norm(errors))
        return mhz, min(error, self._bounded_error(mhz, error, self._held_w(cap_w), busy))

    def _bounded_error(
        self, mhz: float, error: float, held_w: float, busy: dict[str, float]
    ) -> float:
        """Error of a clock within the range of clocks: 0 if power less its error leaves it too."""
        fixed, exponent = self.model.fixed_w, self.model.exponent
        max_mhz = self.model.f_ref_mhz if self.only_lower else None
        ends = []
        for side in (-CONFIDENCE, CONFIDENCE):
            above = max(held_w - fixed, 0.0) * np.exp(side * exponent * error)
            clock = self._clock(fixed + above, busy)
            if clock is None:
                return error
            ends.append(min(clock[0], max_mhz or clock[0]))
        return float(np.abs(np.log(np.array(ends) / mhz)).max()) / CONFIDENCE

    def _clock(self, cap_w: float, busy: dict[str, float]) -> tuple[float, float, float] | None:
        """Mean clock when held at this power, and the ends of its 95 % interval."""
        held_w = self.model.capping.held_w if self.cap_w else 0.0
        return self.model.clock_mhz(cap_w, busy, held_w)

    @property
    def _log_deficit(self) -> float:
        """Logarithm of the usual power of GPUs over the power of this one; at least 0."""
        held = self.model.capping.held_w
        return float(np.log(max(self.usual_w / held, 1.0))) if self.cap_w else 0.0

    def _held_w(self, cap_w: float) -> float:
        """Power at which a cap holds it: heat takes the same share of the clock's power at any cap."""
        if not self.cap_w:
            return cap_w
        fixed, held = self.model.fixed_w, self.model.capping.held_w
        share = (held - fixed) / max(self.usual_w - fixed, _MIN_W)
        return max(fixed + (cap_w * self.usual_w / self.cap_w - fixed) * share, _MIN_W)

    def clocks(self, measured: Array, boost: Array, mhz: float) -> Array:
        """Clock of each kernel at another mean: up towards the highest, down in proportion.

        Parameters
        ----------
        measured, boost
            Clock that each ran at, and the highest, MHz.
        mhz
            New mean clock.
        """
        mean, top = self.model.f_ref_mhz or mhz, self.model.highest_mhz or mhz
        if mhz <= mean:
            return measured * (mhz / mean)
        share = min((mhz - mean) / (top - mean), 1.0) if top > mean else 0.0
        highest = np.maximum(np.where(np.isnan(boost), top, boost), measured)
        return measured + share * (highest - measured)


def capped_gpus(trace: Trace, models: Sequence[tuple[Gpu, PowerModel]]) -> list[CappedGpu]:
    """Find the caps that GPUs were held at.

    Parameters
    ----------
    trace
        Trace of the job.
    models
        GPUs and their power models.
    """
    held_w = np.array([model.capping.held_w for _, model in models])
    free = np.array([_is_free(model) for _, model in models], bool)
    recorded = np.array(limits.known_w(trace, [gpu for gpu, _ in models]))
    by_other = ~free & ((held_w < _HELD_BY_OTHER * recorded) | (held_w <= 0))
    known = recorded > 0
    cap, usual, error = recorded.copy(), held_w.copy(), np.where(known, 0.0, _HELD_ERROR)
    some = known & ~free & ~by_other
    if some.any():
        shares = held_w[some] / recorded[some]
        usual[some] = recorded[some] * np.quantile(shares, _CAP_QUANTILE, method="higher")
    some = ~known & ~free & ~by_other
    if some.any():
        usual[some] = np.quantile(held_w[some], _CAP_QUANTILE, method="higher")
        cap[some] = usual[some] / _HELD
    cap[free | by_other] = 0.0
    error[free | by_other] = 0.0
    columns = (cap.tolist(), error.tolist(), usual.tolist(), by_other.tolist())
    return [CappedGpu(*pair, *rest) for pair, *rest in zip(models, *columns, strict=True)]


def _is_free(model: PowerModel) -> bool:
    """True if the mean clock is so close to the highest that nothing holds it down."""
    return (model.f_ref_mhz or 0.0) >= _FREE * (model.highest_mhz or 0.0)


def class_shares(trace: Trace, gpus: Sequence[CappedGpu], factor: Array) -> list[dict[str, float]]:
    """Predict the share of time in which each class runs on each GPU.

    Parameters
    ----------
    trace
        Trace of the job.
    gpus
        GPUs.
    factor
        New duration of each node over its measured duration.

    Notes
    -----
    The run is longer by the work of the GPU that loses most; on the others communication waits for
    it.
    """
    before, after = [], []
    for one in gpus:
        classes = power_classes(trace, one.gpu.rows)
        dur = trace.array("dur")[one.gpu.rows].astype(float)
        before.append(np.bincount(classes, dur, len(CLASSES)))
        after.append(np.bincount(classes, dur * factor[one.gpu.rows], len(CLASSES)))
    old, new = np.array(before), np.array(after)
    more = np.delete(new - old, COMM, axis=1).sum(axis=1)
    new[:, COMM] = np.where(
        old[:, COMM] > 0, np.maximum(old[:, COMM] + more.max() - more, 0.0), 0.0
    )
    shares = []
    for i, one in enumerate(gpus):
        start = trace.array("ts")[one.gpu.rows]
        end = start + trace.array("dur")[one.gpu.rows]
        span = max(float(end.max() - start.min()), 1.0)
        longer = max(1 + more.max() / span, LOWEST)
        scale = (new[i] / np.maximum(old[i], 1.0) / longer).tolist()
        busy = one.model.mean_busy
        shares.append(
            {c.name: min(busy[c.name] * s, 1.0) for c, s in zip(CLASSES, scale, strict=True)}
        )
    return shares
