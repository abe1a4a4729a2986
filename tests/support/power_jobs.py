"""Demo jobs as traces of GPU work, power and clock alone, without files."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.build import TraceBuilder
from chopper_interop.demo.clock import DYNAMIC_W, IDLE_ACTIVITY, IDLE_W, POWER_EXPONENT
from chopper_interop.demo.folder import simulate_job
from chopper_interop.demo.kernels import LAWS
from chopper_interop.demo.parameters import PEAK_MHZ, DemoParameters
from chopper_interop.demo.telemetry_files import Sensors
from chopper_interop.schemas.kinds import Kind, LaneKind

if TYPE_CHECKING:
    import chopper_interop as ci
    from chopper_interop.demo.job import DemoJob

LEAD_NS = 200_000_000


@cache
def job(**parameters: Any) -> DemoJob:
    return simulate_job(DemoParameters(layers=4, **parameters))


def work(job: DemoJob, rank: int) -> tuple[Any, Any, Any, Any]:
    """Start, end, name and activity of each operation of a rank's GPU; no activity of no kernel."""
    tables = job.tables
    program = tables.program[rank]
    n, steps = tables.ops[program], job.timeline.start_ns.shape[1]
    kernels = job.programs[rank].kernels
    result = [
        (kernels[row].name, kernels[row].kind) if row >= 0 else ("Memcpy", "none")
        for row in tables.kernel[program][:n]
    ]
    drawn = [LAWS[kind].activity if kind in LAWS else np.nan for _, kind in result]
    start = job.timeline.start_ns[rank, :, :n].ravel()
    end = job.timeline.end_ns[rank, :, :n].ravel()
    return start, end, np.tile([name for name, _ in result], steps), np.tile(drawn, steps)


def trace(
    job: DemoJob, hz: float, *, uncertainty_ns: int = 0, counter: bool = False, power: bool = True
) -> ci.Trace:
    """The job with samples of power and clock, so many a second."""
    builder = TraceBuilder()
    origin = int(job.timeline.mark_ns[:, 0, 0].min())
    for rank in range(job.parameters.ranks):
        start, end, names, drawn = work(job, rank)
        lane = builder.lane(rank, LaneKind.STREAM, 1, "s", rank)
        kind_of = dict.fromkeys(names.tolist(), Kind.KERNEL)
        kind_of |= dict.fromkeys(names[np.isnan(drawn)].tolist(), Kind.MEMCPY)
        kind_of |= {name: Kind.COMM for name in kind_of if name.startswith("nccl")}
        builder.nodes(
            kind=np.array([int(kind_of[name]) for name in names.tolist()]),
            name=names.tolist(), rank=rank, lane=lane, ts=start - origin, dur=end - start,
        )  # fmt: skip
    for rank in range(job.parameters.ranks):
        _sampled(builder, job, rank, hz, (uncertainty_ns, counter, power), origin)
    return builder.finish()


def _sampled(
    builder: TraceBuilder,
    job: DemoJob,
    rank: int,
    hz: float,
    how: tuple[int, bool, bool],
    origin: int,
) -> None:
    uncertainty, counter, power = how
    marks, sensors = job.timeline.mark_ns[rank], Sensors(job, rank)
    ts = np.arange(int(marks[0, 0]) - LEAD_NS, int(marks[-1, -1]) + LEAD_NS, int(1e9 / hz))
    ts += np.random.default_rng(rank).integers(0, 400, len(ts))
    series = [("gfx clock", "MHz", sensors.mhz(ts))]
    if power:
        series.append(("socket power", "W", sensors.watts(ts)))
    if counter:
        series.append(("energy", "J", sensors.counts(ts) * 2.0**-16))
    for name, unit, values in series:
        row = builder.series(rank, name, unit, "smi", device=rank, uncertainty_ns=uncertainty)
        builder.samples(row, ts - origin, values.astype(float))


def drawn_w(activity: Any, mhz: float) -> Any:
    """True power above idle."""
    return DYNAMIC_W * (activity - IDLE_ACTIVITY) * (mhz / PEAK_MHZ) ** POWER_EXPONENT


def idle_w(mhz: float) -> float:
    """True power while nothing runs."""
    return IDLE_W + DYNAMIC_W * IDLE_ACTIVITY * (mhz / PEAK_MHZ) ** POWER_EXPONENT


def means(job: DemoJob, rank: int) -> tuple[float, float]:
    """True mean clock and mean power from the first start to the last end."""
    start, end, *_ = work(job, rank)
    clock = job.clock
    ticks = np.arange(*((t - clock.origin_ns[rank]) // 1_000_000 for t in (start.min(), end.max())))
    return float(clock.mhz[rank, ticks].mean()), float(clock.power_w[rank, ticks].mean())
