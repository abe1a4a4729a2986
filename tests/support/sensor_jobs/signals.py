"""Quantities over time that are constant between breakpoints."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Steps:
    """A quantity that has `values[i]` from `edges_ns[i]` to `edges_ns[i + 1]`, and the outermost values beyond."""

    edges_ns: np.ndarray
    values: np.ndarray

    def at(self, times_ns: np.ndarray) -> np.ndarray:
        """Return the value at each time."""
        which = np.searchsorted(self.edges_ns, times_ns, side="right") - 1
        return self.values[np.clip(which, 0, len(self.values) - 1)]

    def integral(self, times_ns: np.ndarray) -> np.ndarray:
        """Return the integral from the first breakpoint to each time, in units of the value times ns."""
        widths = np.diff(self.edges_ns)
        until = np.concatenate([[0.0], np.cumsum(widths * self.values)])
        which = np.clip(
            np.searchsorted(self.edges_ns, times_ns, side="right") - 1, 0, len(self.values) - 1
        )
        return until[which] + (times_ns - self.edges_ns[which]) * self.values[which]

    def mean(self, from_ns: np.ndarray, to_ns: np.ndarray) -> np.ndarray:
        """Return the mean over each interval; the value where the interval is empty."""
        length = np.asarray(to_ns - from_ns, dtype=np.float64)
        area = self.integral(to_ns) - self.integral(from_ns)
        return np.where(length > 0, area / np.maximum(length, 1), self.at(to_ns))

    def decaying_mean(self, times_ns: np.ndarray, decay_ns: float) -> np.ndarray:
        """Return the mean of all before each time, of which weights decay by e in `decay_ns` (a low-pass filter)."""
        left = np.exp(-np.diff(self.edges_ns) / decay_ns)
        at_edges = [float(self.values[0])]
        for value, part in zip(self.values.tolist(), left.tolist(), strict=True):
            at_edges.append(value + (at_edges[-1] - value) * part)
        which = np.searchsorted(self.edges_ns, times_ns, side="right") - 1
        which = np.clip(which, 0, len(self.values) - 1)
        since = np.maximum(times_ns - self.edges_ns[which], 0)
        value = self.values[which]
        return value + (np.array(at_edges)[which] - value) * np.exp(-since / decay_ns)
