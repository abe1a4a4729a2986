"""Readings of a quantity by a tool: by averaging, holding, being late and rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sensor_jobs.signals import Steps


@dataclass(frozen=True)
class Sensor:
    """A sensor: every `hold_ns` it takes a new value, the mean over the `mean_ns` that ended `lag_ns` before.

    With `decay_ns` the value is that of an exponential filter with this time constant.
    Without `hold_ns` the value is of the moment at which it is read; without `mean_ns` it is that of a moment.
    Values are multiples of `quantum`. What work runs at where it shows the highest is between both of `at_highest` of that, if it
    shows what lower values are. When the sensor takes values is not related to when it is read.
    """

    mean_ns: int = 0
    hold_ns: int = 0
    lag_ns: int = 0
    quantum: float = 1.0
    at_highest: tuple[float, float] = (1.0, 1.0)
    decay_ns: int = 0

    def read(self, signal: Steps, times_ns: np.ndarray, phase: float = 0.0) -> np.ndarray:
        """Return what it shows at each time; `phase` (0 to 1) is the position of its updates in their period."""
        shown = np.asarray(times_ns, dtype=np.int64)
        if self.hold_ns:
            offset = int(phase * self.hold_ns)
            shown = (shown - offset) // self.hold_ns * self.hold_ns + offset
        shown = shown - self.lag_ns
        if self.decay_ns:
            exact = signal.decaying_mean(shown, self.decay_ns)
        else:
            exact = signal.mean(shown - self.mean_ns, shown) if self.mean_ns else signal.at(shown)
        return np.round(exact / self.quantum) * self.quantum


_MS = 1_000_000
SENSORS = {
    "instant": Sensor(),
    "mean20": Sensor(mean_ns=20 * _MS),
    "mean100": Sensor(mean_ns=100 * _MS),
    "mean1000": Sensor(mean_ns=1000 * _MS),
    "hold8": Sensor(hold_ns=8 * _MS),  # amdgpu's cache of metrics where the kernel ticks every 4 ms
    "hold20": Sensor(hold_ns=20 * _MS),
    "hold50": Sensor(hold_ns=50 * _MS),
    "lag5": Sensor(lag_ns=5 * _MS),
    "lag30": Sensor(lag_ns=30 * _MS),
    "quantum15": Sensor(quantum=15.0),
    "filter10": Sensor(decay_ns=10 * _MS),
    "filter50": Sensor(decay_ns=50 * _MS),
    "nvml": Sensor(mean_ns=20 * _MS, hold_ns=100 * _MS, at_highest=(0.83, 1.01)),  # H100, H200
    "all": Sensor(mean_ns=100 * _MS, hold_ns=50 * _MS, lag_ns=30 * _MS, quantum=15.0),
}
POWER = {
    "instant": Sensor(),
    "mean20": Sensor(mean_ns=20 * _MS),
    "mean100": Sensor(mean_ns=100 * _MS),
    "mean25 hold100": Sensor(mean_ns=25 * _MS, hold_ns=100 * _MS),  # A100, H100: arXiv 2312.02741
    "mean1000": Sensor(mean_ns=1000 * _MS),
    "filter10": Sensor(decay_ns=10 * _MS),
    "filter30": Sensor(decay_ns=30 * _MS),
}
