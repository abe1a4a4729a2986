"""Which clocks a power cap leaves the GPUs of a job, by the caps that they were held at in the run.

What firmware leaves unused of a cap, and what heat takes off it, is then as it was: a cap equal to
that of the run changes nothing. Where no source tells the cap of the run, GPUs were held at about
what those with the most power show, as heat and bad boards lower only some.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.power import classes as power_classes
from chopper_interop.power import limits
from chopper_interop.power.classes import CLASSES, COMM
from chopper_interop.power.law import LOWEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.power.model import PowerModel
    from chopper_interop.telemetry.gpus import Gpu
    from chopper_interop.trace import Trace

_HELD, _HELD_ERROR = 0.95, 0.03
"""What part of a cap a GPU that it holds is seen to be held at, and one standard deviation."""
_MOST = 0.9
"""Quantile of what GPUs are held at that tells the cap of a job."""
_FREE = 0.985
"""A mean clock above this part of the highest is not held down."""
_LEAST = 0.8
"""Power below this part of a cap that is told is held by something else."""
_FURTHER, _COOLER = 0.45, 0.15
"""Errors of ln(clock): by the square of its change, as power laws bend and clocks have floors that
are not told, and by how much of a cap heat takes at another one, of what it does in the run."""
_LEAST_W = 1.0
_SIDED = 1.96


@dataclass(frozen=True)
class Held:
    """A GPU, its model, and the cap that it was held at.

    Parameters
    ----------
    gpu, model
        The GPU and its model.
    cap_w, error_share
        Cap of the run and its standard deviation as a share; 0 if it was held at none.
    usual_w
        What GPUs are held at under it that nothing but the cap holds.
    only_lower
        Whether something else than power holds the clock, which no cap raises.
    """

    gpu: Gpu
    model: PowerModel
    cap_w: float = 0.0
    error_share: float = 0.0
    usual_w: float = 0.0
    only_lower: bool = False

    def mhz(self, cap_w: float, busy: dict[str, float]) -> tuple[float, float] | None:
        """Mean clock under a cap and one standard deviation of it as a share.

        Parameters
        ----------
        cap_w
            The cap.
        busy
            Share of time in which each class runs.
        """
        told, lower, higher = (
            self._clock(self._at(cap_w * factor), busy)
            for factor in (1.0, 1 - self.error_share, 1 + self.error_share)
        )
        if told is None or lower is None or higher is None or not self.model.f_ref_mhz:
            return None
        mhz, least, most = told
        errors = [np.log(max(most / mhz, mhz / least)) / _SIDED]
        errors.append(np.log(max(higher[0] / mhz, mhz / lower[0])))
        if self.only_lower:
            mhz = min(mhz, self.model.f_ref_mhz)
        change = float(np.log(mhz / self.model.f_ref_mhz))
        errors += [_FURTHER * change**2, _COOLER * self._less]
        error = float(np.linalg.norm(errors))
        return mhz, min(error, self._within(mhz, error, self._at(cap_w), busy))

    def _within(self, mhz: float, error: float, held_w: float, busy: dict[str, float]) -> float:
        """Error of a clock that ends where clocks end: none if power less its error leaves it too."""
        fixed, exponent = self.model.fixed_w, self.model.exponent
        most = self.model.f_ref_mhz if self.only_lower else None
        ends = []
        for side in (-_SIDED, _SIDED):
            above = max(held_w - fixed, 0.0) * np.exp(side * exponent * error)
            found = self._clock(fixed + above, busy)
            if found is None:
                return error
            ends.append(min(found[0], most or found[0]))
        return float(np.abs(np.log(np.array(ends) / mhz)).max()) / _SIDED

    def _clock(self, cap_w: float, busy: dict[str, float]) -> tuple[float, float, float] | None:
        """Mean clock when held at so much, and where it is with 95 % confidence."""
        own = self.model.capping.held_w if self.cap_w else 0.0
        return self.model.clock_mhz(cap_w, busy, own)

    @property
    def _less(self) -> float:
        """How much less than others it draws, as ln."""
        held = self.model.capping.held_w
        return float(np.log(max(self.usual_w / held, 1.0))) if self.cap_w else 0.0

    def _at(self, cap_w: float) -> float:
        """What it is held at: heat takes the same part of what the clock draws at any cap."""
        if not self.cap_w:
            return cap_w
        fixed, held = self.model.fixed_w, self.model.capping.held_w
        share = (held - fixed) / max(self.usual_w - fixed, _LEAST_W)
        return max(fixed + (cap_w * self.usual_w / self.cap_w - fixed) * share, _LEAST_W)

    def clocks(self, own: Array, boost: Array, mhz: float) -> Array:
        """Clock of each kernel where the mean is another: up to the highest, down in proportion.

        Parameters
        ----------
        own, boost
            Clock that each ran at, and the highest, MHz.
        mhz
            The mean.
        """
        mean, top = self.model.f_ref_mhz or mhz, self.model.highest_mhz or mhz
        if mhz <= mean:
            return own * (mhz / mean)
        share = min((mhz - mean) / (top - mean), 1.0) if top > mean else 0.0
        highest = np.maximum(np.where(np.isnan(boost), top, boost), own)
        return own + share * (highest - own)


def of(trace: Trace, models: Sequence[tuple[Gpu, PowerModel]]) -> list[Held]:
    """Caps that GPUs were held at.

    Parameters
    ----------
    trace
        The trace.
    models
        GPUs and their models.
    """
    watts = np.array([model.capping.held_w for _, model in models])
    free = np.array([_is_free(model) for _, model in models], bool)
    told = np.array(limits.known_w(trace, [gpu for gpu, _ in models]))
    other = ~free & ((watts < _LEAST * told) | (watts <= 0))
    known = told > 0
    cap, usual, error = told.copy(), watts.copy(), np.where(known, 0.0, _HELD_ERROR)
    some = known & ~free & ~other
    if some.any():
        usual[some] = told[some] * np.quantile(watts[some] / told[some], _MOST, method="higher")
    some = ~known & ~free & ~other
    if some.any():
        usual[some] = np.quantile(watts[some], _MOST, method="higher")
        cap[some] = usual[some] / _HELD
    cap[free | other] = 0.0
    error[free | other] = 0.0
    columns = (cap.tolist(), error.tolist(), usual.tolist(), other.tolist())
    return [Held(*pair, *rest) for pair, *rest in zip(models, *columns, strict=True)]


def _is_free(model: PowerModel) -> bool:
    top = model.highest_mhz or 0.0
    return (model.f_ref_mhz or 0.0) >= _FREE * top


def mixes(trace: Trace, held: Sequence[Held], factor: Array) -> list[dict[str, float]]:
    """Share of time in which each class would run on each GPU.

    Parameters
    ----------
    trace
        The trace.
    held
        GPUs.
    factor
        How many times as long each node would take.

    Notes
    -----
    The run is longer by what the work of the GPU that this costs most is; on others communication
    waits for it.
    """
    before, after = [], []
    for one in held:
        classes = power_classes.of(trace, one.gpu.rows)
        dur = trace.array("dur")[one.gpu.rows].astype(float)
        before.append(np.bincount(classes, dur, len(CLASSES)))
        after.append(np.bincount(classes, dur * factor[one.gpu.rows], len(CLASSES)))
    old, new = np.array(before), np.array(after)
    more = np.delete(new - old, COMM, axis=1).sum(axis=1)
    new[:, COMM] = np.where(
        old[:, COMM] > 0, np.maximum(old[:, COMM] + more.max() - more, 0.0), 0.0
    )
    found = []
    for i, one in enumerate(held):
        start = trace.array("ts")[one.gpu.rows]
        end = start + trace.array("dur")[one.gpu.rows]
        span = max(float(end.max() - start.min()), 1.0)
        longer = max(1 + more.max() / span, LOWEST)
        share = new[i] / np.maximum(old[i], 1.0) / longer
        busy = one.model.mean_busy
        found.append(
            {c.name: min(busy[c.name] * float(s), 1.0) for c, s in zip(CLASSES, share, strict=True)}
        )
    return found
