"""What an ideal analysis could know of kernels' sensitivity to the clock, with the sensor known and unknown.

Readings and durations of the jobs of `sensor_jobs` have a likelihood if the clock is a Gaussian process with one correlation time
(Ornstein-Uhlenbeck), which the analyses do not know: it is evaluated for windows, delays, sizes and correlation times of the clock and
sensitivities, all of the package left aside. A line states which sensitivities are within 95 % (profile likelihood) by the true sensor and
by any, of one GPU, and how many times as wide the latter are. Where that of any is as wide as from 0 to 1, no analysis can be narrower. Usage:
``python tests/benchmarks/sensor_bounds.py [--cells PATTERN …] [--programs N] [--first SEED]``
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from sensor_jobs import files
from sensor_jobs.cells import Cell, matching, truth_of
from sensor_jobs.sensors import SENSORS

MS = 1e6
WINDOWS_MS = (0.5, 20, 57, 100, 180, 400)
DELAYS_MS = (0, 14, 30, 55, 80, 120)
TIMES_MS = (2, 8, 30, 120)
SIZES = (0.01, 0.02, 0.04, 0.08, 0.16)
FAST = (0.0, 0.3, 0.6, 0.95)
BETAS = (0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1)
MAX_READINGS, MAX_BINS = 100, 150
BIN_MS = 25
CHI = 1.92  # half of the 95 % quantile of chi-squared with one degree of freedom


def covariance(one: np.ndarray, other: np.ndarray, time_ns: float) -> np.ndarray:
    """Return the covariance of means over spans (begin, end) of a process whose correlation falls as exp(-t / time)."""

    def twice(u: np.ndarray) -> np.ndarray:  # the second integral of that
        return time_ns**2 * np.exp(-np.abs(u) / time_ns) + time_ns * np.abs(u)

    (a, b), (c, d) = one[:, :, np.newaxis], other[:, np.newaxis, :]
    return (twice(a - d) + twice(b - c) - twice(a - c) - twice(b - d)) / ((b - a) * (d - c))


def work_of(run: Any, gpu: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return spans of work, the logarithm of how much longer it took than its repeats, and the variance of its noise."""
    ran = [r for r in gpu.work if r.kernel >= 0 and r.step in run.recorded]
    kernel, start, end = (
        np.array([getattr(r, n) for r in ran], float) for n in ("kernel", "start_ns", "end_ns")
    )
    kernel = kernel.astype(int)
    log = np.log(end - start)
    log -= (np.bincount(kernel, log) / np.maximum(np.bincount(kernel), 1))[kernel]
    weight = 1 / np.array([run.program.kernels[k].noise for k in kernel]) ** 2
    of_bin = ((start + end) / 2 // (BIN_MS * MS)).astype(int)
    _, which = np.unique(of_bin, return_inverse=True)
    total = np.bincount(which, weight)
    first, last = np.full(len(total), np.inf), np.zeros(len(total))
    np.minimum.at(first, which, start)
    np.maximum.at(last, which, end)
    return np.stack([first, last]), np.bincount(which, weight * log) / total, 1 / total


def data_of(run: Any, cell: Cell) -> list[tuple[Any, ...]]:
    """Return readings, and work, of each GPU: times and relative deviations of updates, and as `work_of`."""
    every = []
    for gpu, read in zip(run.gpus, files.readings(run, cell.telemetry()), strict=True):
        spans, log, noise = work_of(run, gpu)
        inside = (read.times_ns > spans.min()) & (read.times_ns < spans.max() + 100 * MS)
        time, mhz = read.times_ns[inside].astype(float), read.mhz[inside]
        if SENSORS[cell.sensor].hold_ns and np.median(np.diff(time)) < 20 * MS:
            changed = np.append(True, np.diff(mhz) != 0)
            time, mhz = time[changed], mhz[changed]
        mean = float(mhz.mean())
        nth = max(len(time) // MAX_READINGS, 1)  # over all of the time that bins cover
        every.append(
            (
                time[::nth],
                mhz[::nth] / mean - 1,
                spans[:, :MAX_BINS],
                log[:MAX_BINS],
                noise[:MAX_BINS],
                mean,
            )
        )
    return every[:1]


def of_sizes(
    unit: np.ndarray, errors: tuple[np.ndarray, np.ndarray], values: np.ndarray, fast: float
) -> np.ndarray:
    """Return the logarithm of the likelihood by size of the clock's changes, of which a part is faster than readings.

    That part is the noise of readings in proportion to the size: one decomposition serves all sizes without it.
    """
    rounding, noise = errors

    def whitened(size: float) -> tuple[np.ndarray, np.ndarray, float]:
        deviation = np.sqrt(np.concatenate([fast * size**2 + rounding, noise]))
        power, waves = np.linalg.eigh(unit / deviation[:, np.newaxis] / deviation)
        return (
            np.maximum(power, 0.0),
            (waves.T @ (values / deviation)) ** 2,
            np.log(deviation).sum(),
        )

    of_any = None if fast else whitened(0.0)
    result = []
    for size in SIZES:
        power, square, logarithm = of_any or whitened(size)
        variance = 1 + (1 - fast) * size**2 * power
        result.append(-logarithm - np.log(variance).sum() / 2 - (square / variance).sum() / 2)
    return np.array(result)


def within(profile: np.ndarray) -> tuple[float, float]:
    """Return the smallest and the largest sensitivity within 95 %, between those of the grid by straight lines."""
    betas = np.linspace(0, 1, 1001)
    inside = betas[np.interp(betas, BETAS, profile - profile.max()) >= -CHI]
    return float(inside.min()), float(inside.max())


def likelihoods(every: list[tuple[Any, ...]], quantum: float) -> np.ndarray:
    """Return the largest logarithm of the likelihood by (window, delay, sensitivity), over all clocks."""
    grid = np.full((len(WINDOWS_MS), len(DELAYS_MS), len(FAST), len(BETAS)), -np.inf)
    for i, j in product(range(len(WINDOWS_MS)), range(len(DELAYS_MS))):
        of_clock = np.zeros((len(TIMES_MS), len(SIZES), len(FAST), len(BETAS)))
        if i:
            of_clock[:, :, 1:] = -np.inf
        for time, read, spans, log, noise, mean in every:
            stop = time - DELAYS_MS[j] * MS
            windows = np.stack([stop - WINDOWS_MS[i] * MS, stop])
            both = np.concatenate([windows, spans], axis=1)
            rounding = np.full(len(time), (quantum / mean) ** 2 / 12 + 1e-8)
            values = np.concatenate([read, log])
            for (t, time_ms), (b, beta) in product(enumerate(TIMES_MS), enumerate(BETAS)):
                gain = np.concatenate([np.ones(len(time)), np.full(len(log), -beta)])
                unit = gain[:, np.newaxis] * covariance(both, both, time_ms * MS) * gain
                for f, fast in enumerate(FAST[: len(FAST) if i == 0 else 1]):
                    of_clock[t, :, f, b] += of_sizes(unit, (rounding, noise), values, fast)
        grid[i, j] = of_clock.max(axis=(0, 1))
    return grid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", nargs="*", default=("beta0/1kHz/all", "beta0/10Hz/all"))
    parser.add_argument("--programs", type=int, default=4, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    options = parser.parse_args()
    for cell, seed in product(
        matching(options.cells), range(options.first, options.first + options.programs)
    ):
        sensor = SENSORS[cell.sensor]
        run = truth_of(cell.kind, cell.vendor, seed).run
        grid = likelihoods(data_of(run, cell), sensor.quantum)
        known = int(np.abs(np.array(WINDOWS_MS) - sensor.mean_ns / MS).argmin())
        is_seen = sensor.hold_ns >= 2 * cell.telemetry().period_ns
        lag_ms = (sensor.lag_ns + (0 if is_seen else sensor.hold_ns / 2)) / MS
        delay = int(np.abs(np.array(DELAYS_MS) - lag_ms).argmin())
        slow = grid[:, :, 0]
        profiles = {
            "true sensor": slow[known, delay],
            "true window": slow[known].max(axis=0),
            "any": slow.max(axis=(0, 1)),
            "any, with a fast part": grid.max(axis=(0, 1, 2)),
        }
        first = 0.0
        texts = []
        for name, profile in profiles.items():
            low, high = within(profile)
            first = first or high - low
            texts.append(
                f"{name} {low:.3f} to {high:.3f} ({profile.max() - grid.max():+.1f}, {(high - low) / first:.1f} times)"
            )
        print(f"{cell.name} {seed}: " + "; ".join(texts), flush=True)


if __name__ == "__main__":
    main()
