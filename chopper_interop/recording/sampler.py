"""A thread that reads the GPUs of one vendor at a steady rate and writes a row for each.

A row has the values of the calls that are made at its tick (`schedule`), and empty cells for the others.

::

    tick 0        tick 1        tick 2 …          every 1 / rate seconds from the start, whatever a read takes
    |gpu0 gpu1    |gpu0 gpu1    |                 each row begins with the clocks, read just before its GPU
                                 ^ a tick whose time is over when the one before ends is left out and counted

The columns are those that the first readings have; where all GPUs sleep then, those of the first that wakes. Columns
that come later have no place, and what a full disk does not take is lost; the recording says so.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chopper_interop.recording import gpus as gpu_state
from chopper_interop.recording.schedule import Schedule

if TYPE_CHECKING:
    from chopper_interop.recording.gpus import GpuFacts, Gpus, Values

_FLUSH_S = 1.0
"""Time after which rows are on disk, and the host is read (chosen: what a crash may cost)."""
_FIRST_READINGS = 2
"""Readings of each GPU before the program starts. Chosen: the first may take longer, as the library sets itself up."""
_MAX_FAILURES = 5
"""Failures in sequence after which a GPU is asked once a second only (chosen: more than a hiccup)."""
_AT_ONCE_NS = 50_000
"""Duration up to which clocks were read at once. Chosen: a reading of three takes 1 to 10 µs, an interruption milliseconds."""
_CLOCK_TRIES = 3
"""Readings of the clocks for a row at most. Chosen: a busy machine interrupted one of 4,000."""
_MAX_PERIODS = 1 << 20
"""Periods kept for the quantiles of the rate: 17 minutes at 1 kHz, then every second one, and so on."""

CLOCKS: dict[str, Callable[[], int]] = {
    "realtime_ns": time.time_ns,
    "monotonic_ns": time.monotonic_ns,
}
"""Clocks of each row."""
if hasattr(time, "CLOCK_BOOTTIME"):
    CLOCKS["boottime_ns"] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def clock_values() -> list[int]:
    """Read all clocks at one time: again where something interrupted it, or all samples would be as uncertain."""
    readings: dict[int, list[int]] = {}
    for _ in range(_CLOCK_TRIES):
        before = time.perf_counter_ns()
        values = [clock() for clock in CLOCKS.values()]
        readings[time.perf_counter_ns() - before] = values
        if min(readings) <= _AT_ONCE_NS:
            break
    return readings[min(readings)]


def clock_offsets() -> dict[str, int]:
    """Return the difference of each clock to realtime, nanoseconds, each read between two of realtime."""
    offsets = {}
    for name, clock in CLOCKS.items():
        reads = [(time.time_ns(), clock(), time.time_ns()) for _ in range(20)]
        before, value, after = min(reads, key=lambda r: r[2] - r[0])
        offsets[name] = (before + after) // 2 - value
    return offsets


def without_waiting(name: str, flags: int) -> int:
    """Open a file to write; `OSError` for a pipe that nobody reads, which would be waited for."""
    descriptor = os.open(name, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


@dataclass
class _GpuState:
    """A GPU, and how reading it goes."""

    facts: GpuFacts
    may_sleep: bool
    failures: int = 0
    asleep: int = 0
    failed: int = 0
    first_failure: str = ""
    first_failed_at: str = ""
    retry_at: float = 0.0
    rows: int = 0


@dataclass
class Sampler:
    """Reads the GPUs of one vendor until it is stopped.

    Parameters
    ----------
    gpus
        The vendor's GPUs.
    facts
        Their facts, in the same order.
    path
        The CSV file to write.
    rate_hz
        Rows a second and GPU.
    wake
        Also read GPUs that are powered down, which wakes them.
    extra
        Called once a second; its values stand in the next row of the first GPU.
    """

    gpus: Gpus
    facts: list[GpuFacts]
    path: Path
    rate_hz: float
    wake: bool = False
    extra: Callable[[], Values] = dict
    problems: list[str] = field(default_factory=list)
    ticks: int = 0
    late: int = 0
    """Ticks that were left out, as the one before took too long."""
    _periods: list[int] = field(default_factory=list)
    _stride: int = 1
    _extra_failure: str = ""

    def __post_init__(self) -> None:
        """Read each GPU, which names the columns and shows what each call takes, and start the file.

        Raises
        ------
        OSError
            The file cannot be written.
        NoAnswerError
            The library does not return from a reading; there is no file.
        """
        self._gpus = [_GpuState(f, gpu_state.may_sleep(f.pci)) for f in self.facts]
        self._schedule = Schedule(self.gpus.calls, len(self._gpus), 1 / self.rate_hz)
        first = gpu_state.answer(lambda: [self._first_values(k) for k in range(len(self._gpus))])
        self._columns: dict[str, Any] = {}
        self._too_late: set[str] = set()
        self._file = open(  # noqa: SIM115 # until it is stopped
            self.path, "w", 1 << 20, encoding="utf-8", errors="replace", opener=without_waiting
        )
        try:
            if any(first):
                self._begin_file(*first)
                self._file.flush()
        except OSError:
            self.discard()
            raise
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"sampler-{self.gpus.vendor}", daemon=True
        )

    def _begin_file(self, *readings: Values) -> None:
        """Write the names of the columns that readings have."""
        self._columns = dict.fromkeys(
            name for values in (self._of_host(), *readings) for name in values
        )
        self._file.write(",".join([*CLOCKS, "gpu", *self._columns]) + "\n")

    def discard(self) -> None:
        """Remove the file, in which there are no samples yet."""
        with contextlib.suppress(
            OSError
        ):  # on a full disk the names of the columns are written again
            self._file.close()
        if self.path.is_file():  # not a pipe or a device that the user put there
            self.path.unlink()

    def start(self) -> None:
        """Start to sample."""
        self._thread.start()

    def stop(self) -> None:
        """Take the last sample, and close the file and the library, unless a reading does not return."""
        self._stop.set()
        if self._thread.ident is not None:  # it was started
            self._thread.join(gpu_state.PATIENCE_S)
        try:
            if self._thread.is_alive():
                self.problems.append(
                    f"a reading has not returned {gpu_state.PATIENCE_S:g} s after the program ended; "
                    "the samples before it are there"
                )
                self._file.flush()
                return  # what is in use stays open
            if not (self._columns or self._file.closed):
                self._begin_file()
            self._file.close()
        except OSError as error:
            self._note_write(error)
        try:
            gpu_state.answer(self.gpus.close)
        except gpu_state.NoAnswerError as error:
            self.problems.append(f"{self.gpus.vendor} was not closed: {error}")

    def _run(self) -> None:
        try:
            self._sample()
        except BaseException as error:  # noqa: BLE001 # a thread that ends so is silent
            since = time.strftime("%H:%M:%S")
            self.problems.append(
                f"nothing was read from {since} on: {type(error).__name__}: {error}"
            )

    def _sample(self) -> None:
        period = 1 / self.rate_hz
        self._schedule.begin()
        begin = last_flush = time.monotonic()
        last_tick_ns = time.monotonic_ns()
        tick = 0
        while True:
            stopping = self._stop.is_set()
            now = time.monotonic()
            is_flush = now - last_flush >= _FLUSH_S or not self.ticks or stopping
            at_ns = time.monotonic_ns()
            if self.ticks and not stopping:
                self._keep_period(at_ns - last_tick_ns)
            last_tick_ns = at_ns
            whole = stopping or not self.ticks or not self._columns
            due = {} if whole else self._schedule.due(now)
            if not self._write_tick(due, flush=is_flush) or stopping:
                return
            if is_flush:
                last_flush = now
                self._schedule.plan()
            self.ticks += 1
            done = int((time.monotonic() - begin) / period)
            self.late += max(0, done - tick)
            tick = max(tick, done) + 1
            self._stop.wait(max(0.0, begin + tick * period - time.monotonic()))

    def _keep_period(self, period_ns: int) -> None:
        if self.ticks % self._stride == 0:
            self._periods.append(period_ns)
        if len(self._periods) > _MAX_PERIODS:
            del self._periods[::2]
            self._stride *= 2

    def _write_tick(self, due: dict[int, list[int]], *, flush: bool) -> bool:
        """Write a row for each GPU, of all calls if none are due; False if the disk takes no more."""
        extra = self._of_host() if flush else {}
        try:
            for k, gpu in enumerate(self._gpus):
                clocks = map(str, clock_values())
                values = self._values(k, due.get(k, self._schedule.all_calls))
                if values:
                    if not self._columns:
                        self._begin_file(values, self._first_values(k))
                    self._too_late |= values.keys() - self._columns.keys()
                    cells = [str(values.get(c, extra.get(c, ""))) for c in self._columns]
                    self._file.write(",".join([*clocks, str(gpu.facts.gpu), *cells]) + "\n")
                    gpu.rows += 1
                    extra = {}
            if flush:
                self._file.flush()
        except OSError as error:
            self._note_write(error)
            return False
        return True

    def _of_host(self) -> Values:
        """Read what stands with the first GPU; it never ends the samples of GPUs."""
        try:
            return self.extra()
        except Exception as error:  # noqa: BLE001 # psutil's, of what the system shows or not
            self._extra_failure = self._extra_failure or f"{type(error).__name__}: {error}"
            return {}

    def _note_write(self, error: OSError) -> None:
        since = time.strftime("%H:%M:%S")
        self.problems.append(f"nothing was written from {since} on: {error.strerror} ({self.path})")
        with contextlib.suppress(OSError):
            self._file.close()

    def _first_values(self, k: int) -> Values:
        """Read all of a GPU, which shows what columns it has and what each call takes."""
        values: Values = {}
        for _ in range(_FIRST_READINGS):
            values |= self._values(k, self._schedule.all_calls)
        return values

    def _values(self, k: int, calls: Iterable[int]) -> Values:
        gpu = self._gpus[k]
        if gpu.may_sleep and not self.wake and gpu_state.is_asleep(gpu.facts.pci):
            gpu.asleep += 1
            return {}
        if gpu.failures >= _MAX_FAILURES and time.monotonic() < gpu.retry_at:
            gpu.failed += 1
            return {}
        try:
            values = self._schedule.read(k, calls)
        except (Exception, SystemExit) as error:  # noqa: BLE001 # as libraries raise anything
            gpu.failures += 1
            gpu.failed += 1
            gpu.retry_at = time.monotonic() + _FLUSH_S
            if not gpu.first_failure:
                gpu.first_failure = f"{type(error).__name__}: {error}"
                gpu.first_failed_at = time.strftime("%H:%M:%S")
            return {}
        if values:
            gpu.failures = 0
        return values

    def summary(self) -> dict[str, Any]:
        """Describe what was sampled: the rate that was reached, its jitter, what is missing."""
        for gpu in self._gpus:
            name = f"GPU {gpu.facts.gpu} ({self.gpus.vendor} {gpu.facts.index})"
            if gpu.failed:
                share = f"{gpu.failed} of {gpu.failed + gpu.rows} readings"
                self.problems.append(
                    f"{name}: {share} failed, first at {gpu.first_failed_at}: {gpu.first_failure}"
                )
            if gpu.asleep:
                self.problems.append(
                    f"{name} was powered down at {gpu.asleep} ticks and not woken (--wake reads it)"
                )
        self.problems += self._schedule.problems()
        if self._extra_failure:
            self.problems.append(f"values of the host failed, first: {self._extra_failure}")
        if self._too_late:
            names = ", ".join(sorted(self._too_late))
            self.problems.append(f"no GPU had them at the start, so they are left out: {names}")
        ordered = sorted(self._periods)
        quantiles = {
            name: ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else None
            for name, q in (("median", 0.5), ("p95", 0.95), ("longest", 1.0))
        }
        total = sum(ordered)
        rows = sum(gpu.rows for gpu in self._gpus)
        return {
            "file": self.path.name,
            "vendor": self.gpus.vendor,
            "library": self.gpus.library,
            "rate_hz": self.rate_hz,
            "achieved_hz": round(1e9 * len(ordered) / total, 3) if total else None,
            "ticks": self.ticks,
            "ticks_left_out": self.late,
            "period_ns": quantiles,
            "rows": rows,
            "calls": self._schedule.summary(rows),
        }
