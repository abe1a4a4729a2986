"""Telemetry of the node: the output of ``amd-smi metric`` in watch mode, and a recorder's CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.demo import noise
from chopper_interop.demo.clock import AMBIENT_C, HEAT_C_PER_W, LEAD_NS, TICK_NS
from chopper_interop.demo.kernels import XCC
from chopper_interop.demo.parameters import GPUS, WINDOW_START_NS, DemoParameters
from chopper_interop.demo.render import Template

if TYPE_CHECKING:
    from chopper_interop.demo.job import DemoJob

RECORDER = (
    "realtime_ns,monotonic_ns,boottime_ns,gpu,current_socket_power,current_gfxclk,"
    "temperature_hotspot,average_gfx_activity,energy_accumulator,system_clock_counter,"
    "firmware_timestamp,accumulation_counter,ppt_residency_acc,current_uclk,temperature_mem"
)
"""Columns of the recorder."""

# Invented: when tools begin and how often they sample, and what idle GPUs show.
_WATCH_LEAD_NS = 3_000_000_000
_WATCH_PERIOD_NS = 1_050_000_000
_RECORDER_LEAD_NS = 200_000_000
_BETWEEN_GPUS_NS = 6_300_000
_IDLE_MHZ = 132
_IDLE_W = 138.0
_MEMORY_MHZ = 1300
# Joules of a count: of the recorder's 2^-16, of amd-smi's 15.3 µJ (its documentation of the accumulator).
_JOULE_PER_COUNT = 2.0**-16
_SMI_JOULE_PER_COUNT = 15.3e-6
_WATT_TICKS_PER_COUNT = TICK_NS * 1e-9 / _JOULE_PER_COUNT
"""Energy counts of one tick at 1 W."""


class Sensors:
    """Values of the sensors of one GPU at requested times; a GPU without a rank idles."""

    def __init__(self, job: DemoJob, gpu: int) -> None:
        self.used = gpu < job.parameters.ranks
        self.gpu, self.job = gpu, job
        seed = job.parameters.seed
        self.first_count = int(3.1e10 * (1 + noise.uniform(seed, noise.TELEMETRY, gpu, 0, 0)))
        if self.used:
            clock = job.clock
            self.origin_ns = int(clock.origin_ns[gpu])
            self.energy = np.concatenate([[0], np.cumsum(clock.power_w[gpu])])
            self.throttled = np.concatenate([[0], np.cumsum(clock.throttled[gpu])])
        else:
            self.origin_ns = WINDOW_START_NS - LEAD_NS

    def tick(self, time_ns: Array) -> Array:
        """Control ticks at the times."""
        return (time_ns - self.origin_ns) // TICK_NS

    def mhz(self, time_ns: Array) -> Array:
        """Core clock."""
        if not self.used:
            return np.full(len(time_ns), _IDLE_MHZ, dtype=np.int64)
        return self.job.clock.mhz[self.gpu, self.tick(time_ns)].astype(np.int64)

    def _history(self, name: str, time_ns: Array, idle: float) -> Array:
        """Look up a quantity as known after the last whole tick."""
        if not self.used:
            return np.full(len(time_ns), idle)
        return getattr(self.job.clock, name)[self.gpu, self.tick(time_ns) - 1]

    def watts(self, time_ns: Array) -> Array:
        """Socket power."""
        return np.round(self._history("socket_w", time_ns, _IDLE_W)).astype(np.int64)

    def hotspot_c(self, time_ns: Array) -> Array:
        """Temperature of the hottest spot."""
        heat = self._history("heat_w", time_ns, _IDLE_W)
        slow = 9.0 if self.gpu == self.job.parameters.slow_rank else 0.3 * self.gpu
        return np.round(AMBIENT_C + slow + HEAT_C_PER_W * heat).astype(np.int64)

    def memory_c(self, time_ns: Array) -> Array:
        """Temperature of the memory."""
        heat = self._history("heat_w", time_ns, _IDLE_W)
        return np.round(AMBIENT_C - 4 + 0.6 * HEAT_C_PER_W * heat).astype(np.int64)

    def activity(self, time_ns: Array) -> Array:
        """Share of the last 20 ms in which a kernel ran, per cent."""
        if not self.used:
            return np.zeros(len(time_ns), dtype=np.int64)
        busy = np.concatenate([[0], np.cumsum(self.job.clock.busy[self.gpu])])
        tick = self.tick(time_ns)
        return np.round(100 * (busy[tick] - busy[tick - 20]) / 20).astype(np.int64)

    def counts(self, time_ns: Array) -> Array:
        """Energy accumulator, 2^-16 J, updated every tick."""
        if self.used:
            counts = self.energy[self.tick(time_ns)] * _WATT_TICKS_PER_COUNT
        else:
            counts = (time_ns - self.origin_ns) // TICK_NS * _IDLE_W * _WATT_TICKS_PER_COUNT
        return self.first_count + counts.astype(np.int64)

    def throttled_ticks(self, time_ns: Array) -> Array:
        """Ticks in which power held the clock down."""
        if not self.used:
            return np.zeros(len(time_ns), dtype=np.int64)
        return 40_000 + self.throttled[self.tick(time_ns)].astype(np.int64)


def write_telemetry(job: DemoJob, folder: Path) -> None:
    """Write ``amd-smi-watch.csv``, and ``recorder.csv`` if the recorder runs."""
    folder.mkdir()
    sensors = [Sensors(job, gpu) for gpu in range(GPUS)]
    (folder / "amd-smi-watch.csv").write_bytes(_watch(job, sensors))
    if job.parameters.recorder_hz:
        (folder / "recorder.csv").write_bytes(_recorder(job, sensors))


def _recorder(job: DemoJob, sensors: list[Sensors]) -> bytes:
    """Rows of the recorder: all GPUs once a tick, one after the other."""
    p, timeline = job.parameters, job.timeline
    begin = int(timeline.mark_ns[:, 0, 0].min()) - _RECORDER_LEAD_NS
    end = int(timeline.mark_ns[:, -1, -1].max()) + _RECORDER_LEAD_NS
    period_ns = 1_000_000_000 // p.recorder_hz
    ticks = np.arange(begin, end, period_ns, dtype=np.int64)
    rows = np.stack([_rows(p, s, ticks + s.gpu * (period_ns // 10)) for s in sensors], axis=1)
    template = Template()
    for place in range(rows.shape[1] * rows.shape[2]):
        template.slot(place).text("," if (place + 1) % rows.shape[2] else "\r\n")
    tick = template.compile()
    return f"{RECORDER}\r\n".encode() + b"".join(tick.render(row.ravel()) for row in rows)


def _rows(parameters: DemoParameters, sensor: Sensors, realtime_ns: Array) -> Array:
    """Rows of one GPU; the three clocks are read one after the other, then the GPU."""
    ns = [_jitter(parameters, sensor.gpu, len(realtime_ns), i) for i in range(4)]
    realtime = realtime_ns + ns[0]
    boottime = realtime - parameters.boottime_offset_ns
    read = boottime + 900 + 4 * ns[3]
    at = read + parameters.boottime_offset_ns
    ticks = read // TICK_NS
    columns = [
        realtime, boottime + 60 + ns[1] // 4, boottime + 150 + ns[1] // 4 + ns[2] // 2,
        np.full(len(at), sensor.gpu), sensor.watts(at), sensor.mhz(at), sensor.hotspot_c(at),
        sensor.activity(at), sensor.counts(at), read, read // 10 * 10, ticks,
        sensor.throttled_ticks(at), np.full(len(at), _MEMORY_MHZ), sensor.memory_c(at),
    ]  # fmt: skip
    return np.stack(columns, axis=1).astype(np.int64)


def _jitter(parameters: DemoParameters, gpu: int, size: int, purpose: int) -> Array:
    """Small delays, nanoseconds, the same for the same seed."""
    words = np.random.Generator(np.random.PCG64([parameters.seed, gpu, purpose])).integers(
        0, 400, size
    )
    return words.astype(np.int64)


def _watch(job: DemoJob, sensors: list[Sensors]) -> bytes:
    """Print as ``amd-smi metric -p -c -t -u -E -w 1 --csv`` does."""
    timeline = job.timeline
    begin = int(timeline.mark_ns[:, 0, 0].min()) - _WATCH_LEAD_NS
    end = int(timeline.mark_ns[:, -1, -1].max()) + _WATCH_LEAD_NS
    text = ["'CTRL' + 'C' to stop watching output:\n"]
    for tick in range(begin, end, _WATCH_PERIOD_NS):
        text.append(",".join(_WATCH_COLUMNS) + "\r\n")
        text += [_watch_row(s, tick + s.gpu * _BETWEEN_GPUS_NS) for s in sensors]
        text.append("\n")
    return "".join(text).encode()


def _watch_row(sensor: Sensors, time_ns: int) -> str:
    at = np.array([time_ns], dtype=np.int64)
    mhz, used = int(sensor.mhz(at)[0]), sensor.used
    peak = sensor.job.parameters.peak_mhz
    locked = "DISABLED"
    gfx = [
        f"{max(mhz - i, 0)},132,{peak},{locked},{'DISABLED' if used else 'ENABLED'}"
        for i in range(XCC)
    ]
    energy = int(sensor.counts(at)[0]) * _SMI_JOULE_PER_COUNT
    activity = int(sensor.activity(at)[0])
    # The stamp is taken after the values of the GPU have been read.
    stamp = (time_ns + _BETWEEN_GPUS_NS) // 1_000_000_000
    fields = [
        str(stamp), str(sensor.gpu), str(activity), str(activity // 2), "N/A", _absent(4),
        _absent(32), f'"{[activity] * 8}"', _absent(40), _absent(4), str(int(sensor.watts(at)[0])),
        *["N/A"] * 5, *gfx, f"{_MEMORY_MHZ},900,{_MEMORY_MHZ},N/A,DISABLED",
        *["29,N/A,N/A,N/A,N/A"] * 4, *["22,N/A,N/A,N/A,N/A"] * 4, ",".join(["N/A"] * 5),
        "33,N/A,N/A,N/A,N/A", "N/A", str(int(sensor.hotspot_c(at)[0])),
        str(int(sensor.memory_c(at)[0])), f"{energy:.3f}",
    ]  # fmt: skip
    return ",".join(fields) + "\r\n"


def _absent(count: int) -> str:
    """Print a list of values that the GPU does not give."""
    return f'"{["N/A"] * count}"'


def _watch_columns() -> list[str]:
    clocks = [f"gfx_{i}" for i in range(XCC)] + ["mem_0"]
    clocks += [f"{kind}_{i}" for kind in ("vclk", "dclk") for i in range(4)]
    clocks += ["fclk_0", "socclk_0"]
    fields = ("clk", "min_clk", "max_clk", "clk_locked", "deep_sleep")
    return [
        "timestamp",
        "gpu",
        *("gfx_activity", "umc_activity", "mm_activity", "vcn_activity", "jpeg_activity"),
        *("gfx_busy_inst_xcp_0", "jpeg_busy_xcp_0", "vcn_busy_xcp_0"),
        *("socket_power", "gfx_voltage", "soc_voltage", "mem_voltage"),
        *("throttle_status", "power_management"),
        *(f"{clock}_{field}" for clock in clocks for field in fields),
        *("edge", "hotspot", "mem", "total_energy_consumption"),
    ]


_WATCH_COLUMNS = _watch_columns()
