"""Generated jobs whose clocks are seen by a sensor: kernels, true clocks, telemetry, and the truth.

A GPU's clock wanders (exponentially correlated), gives way to kernels that draw much power, and is
never above the highest. Kernels follow ``t = c (b f_ref / f + 1 - b)``. A sensor reports the mean
over a window, late, and holds it until its next update.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.annotate.stages import annotate
from chopper_interop.arrays.compiled import jit
from chopper_interop.build import TraceBuilder
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Device, Rank

if TYPE_CHECKING:
    import chopper_interop as ci

MS = 1_000_000
PEAK_MHZ = 2100.0
_CELL = MS // 4
"""Resolution of the true clock, ns."""


class ClockSensor(NamedTuple):
    """A sensor's effect on a clock: mean over `window_ms`, held for `hold_ms`, `lag_ms` late."""

    window_ms: float = 0.0
    hold_ms: float = 0.0
    lag_ms: float = 0.0
    quantum_mhz: float = 1.0


INSTANT = ClockSensor()


@dataclasses.dataclass(frozen=True)
class Job:
    """Parameters of a generated job."""

    seed: int = 0
    betas: str = "mixed"
    """``0``, ``1``, ``mixed``, or ``groups``: half of the kernels 0 and half 1."""
    hz: float = 100.0
    sensor: ClockSensor = INSTANT
    ranks: int = 2
    seconds: float = 4.0
    kernels: int = 24
    """Kernels in a step."""
    spread: float = 0.05
    """Standard deviation of the wandering clock, as a share."""
    correlation_ms: float = 40.0
    response: float = 0.04
    """Share by which kernels that draw much power lower the clock."""
    between: float = 0.01
    """Standard deviation of GPUs' mean clocks, as a share."""
    throttled: float = 0.0
    """Share by which the clock of rank 0 is lower."""
    noise: float = 0.01
    gap: float = 0.05
    """Idle time as a share of a step."""


class Sensed(NamedTuple):
    """A generated trace, and its length if all kernels ran at the highest clock."""

    trace: ci.Trace
    true_ns: float
    measured_ns: float


@jit
def _run(  # noqa: PLR0917 # arrays of a compiled loop
    base: np.ndarray, nominal: np.ndarray, beta: np.ndarray, draws: np.ndarray,
    noise: np.ndarray, gap: np.ndarray, response: float, start: np.ndarray, dur: np.ndarray,
    ideal: np.ndarray, clock: np.ndarray,
) -> float:  # fmt: skip
    """Run kernels one after the other; write starts, durations, ideal durations and the clock."""
    cell, load, keep = 250_000.0, 0.0, np.exp(-0.25 / 6.0)
    k, n, done, work = 0, len(nominal), 0.0, 1.0
    t, waiting = 0.0, 0.0
    for i in range(len(base)):
        drawing = draws[k] if (k < n and waiting <= 0) else 0.0
        load = keep * load + (1 - keep) * drawing
        clock[i] = min(base[i] * (1 - response * (load - 0.5)), 2100.0)
        end = (i + 1) * cell
        while t < end and k < n:
            if waiting > 0:
                step = min(waiting, end - t)
                waiting -= step
                t += step
                continue
            if done == 0.0:
                start[k] = t
            rate = 1.0 / (nominal[k] * noise[k] * (beta[k] * 2100.0 / clock[i] + 1 - beta[k]))
            left = (work - done) / rate
            if left <= end - t:
                t += left
                dur[k] = t - start[k]
                ideal[k] = nominal[k] * noise[k]
                waiting, done = gap[k], 0.0
                k += 1
            else:
                done += (end - t) * rate
                t = end
    return k


def _wander(rng: np.random.Generator, n: int, spread: float, correlation_ms: float) -> np.ndarray:
    keep = np.exp(-0.25 / correlation_ms)
    drawn = rng.normal(size=n) * np.sqrt(1 - keep**2)
    drawn[0] = rng.normal()
    return spread * filtered(drawn, keep)


@jit
def filtered(drawn: np.ndarray, keep: float) -> np.ndarray:
    """Each value with the one before, times `keep`, added to it."""
    out = np.empty(len(drawn))
    out[0] = drawn[0]
    for i in range(1, len(drawn)):
        out[i] = keep * out[i - 1] + drawn[i]
    return out


def read_sensor(
    rng: np.random.Generator, clock: np.ndarray, ts: np.ndarray, sensor: ClockSensor
) -> np.ndarray:
    """Return what the sensor shows at these times of a clock sampled every `_CELL`."""
    hold = sensor.hold_ms * MS
    updated = ts if not hold else np.floor((ts - (p := rng.uniform(0, hold))) / hold) * hold + p
    at = updated - sensor.lag_ms * MS
    area = np.append([0.0], np.cumsum(clock)) * _CELL
    edges = np.arange(len(clock) + 1) * _CELL
    if sensor.window_ms:
        begin = np.maximum(at - sensor.window_ms * MS, 0)
        mean = (np.interp(at, edges, area) - np.interp(begin, edges, area)) / np.maximum(
            at - begin, 1
        )
    else:
        mean = clock[np.clip((at // _CELL).astype(np.int64), 0, len(clock) - 1)]
    return np.rint(mean / sensor.quantum_mhz) * sensor.quantum_mhz


def sensed(job: Job) -> Sensed:
    """Generate a job."""
    rng = np.random.default_rng(job.seed)
    per_step = job.kernels
    betas = {
        "0": np.zeros(per_step), "1": np.ones(per_step),
        "mixed": rng.uniform(0, 1, per_step), "groups": (np.arange(per_step) % 2).astype(float),
    }[job.betas]  # fmt: skip
    betas = rng.permutation(betas)
    nominal = rng.uniform(0.2, 2.0, per_step) * MS
    draws = np.clip(betas + rng.normal(0, 0.15, per_step), 0, 1)
    gaps = np.zeros(per_step)
    gaps[-1] = nominal.sum() * job.gap
    lead = 300 * MS  # telemetry begins before the first kernel and ends behind the last
    cells = int((job.seconds * 1e9 + 2 * lead) / _CELL)
    builder = TraceBuilder()
    length, true = [], []
    for rank in range(job.ranks):
        level = 0.82 * PEAK_MHZ * np.exp(rng.normal(0, job.between))
        if rank == 0:
            level *= 1 - job.throttled
        base = level * np.exp(_wander(rng, cells, job.spread, job.correlation_ms))
        n = int(job.seconds * 1e9 / nominal.sum() * 1.3) * per_step
        which = np.arange(n) % per_step
        columns = [np.zeros(n) for _ in range(3)]
        clock = np.zeros(cells)
        idle = int(lead / _CELL)
        ran = int(_run(
            base[idle : idle + int(job.seconds * 1e9 / _CELL)], nominal[which], betas[which], draws[which],
            rng.lognormal(0, job.noise, n), gaps[which], job.response, *columns, clock[idle:],
        ))  # fmt: skip
        clock[:idle] = clock[idle]
        stop = idle + int(job.seconds * 1e9 / _CELL)
        clock[stop:] = clock[stop - 1]
        ran = ran // per_step * per_step
        start, dur, ideal = (column[:ran] for column in columns)
        start_ns = np.rint(start).astype(np.int64) + lead
        dur_ns = np.maximum(np.rint(start + dur).astype(np.int64) + lead - start_ns - 1, 1)
        lane = builder.lane(rank, LaneKind.STREAM, 7, "s", 0)
        for name in range(per_step):
            own = np.flatnonzero(which[:ran] == name)
            builder.nodes(
                kind=int(Kind.KERNEL), name=f"kernel_{name}", rank=rank, lane=lane,
                ts=start_ns[own], dur=dur_ns[own],
            )  # fmt: skip
        series = builder.series(rank, "gfx clock", "MHz", "recorder", device=0)
        period = 1e9 / job.hz
        ts = np.arange(rng.uniform(0, period), cells * _CELL, period)
        builder.samples(series, ts.astype(np.int64), read_sensor(rng, clock, ts, job.sensor))
        length.append(start_ns[-1] + dur_ns[-1] - start_ns[0])
        true.append(length[-1] + (ideal - dur).sum())
    trace = builder.finish()
    ranks = tuple(Rank(r, host=f"host{r}", device=0) for r in range(job.ranks))
    devices = tuple(Device(f"host{r}", 0, "AMD Instinct MI300X") for r in range(job.ranks))
    trace = dataclasses.replace(
        trace, meta=dataclasses.replace(trace.meta, ranks=ranks, devices=devices)
    )
    return Sensed(annotate(trace), max(true), max(length))
