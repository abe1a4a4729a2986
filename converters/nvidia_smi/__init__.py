"""Formats of nvidia-smi: ``--query-gpu`` as CSV, ``dmon``, and ``-q`` as text or XML.

This module recognises files; the reader is imported when a file is read. Output that holds no
samples of GPUs is recognised and not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.converters.nvidia_smi.sniff import SAMPLES, Output, output_of
from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace


def sniff(head: bytes) -> bool:
    """Recognise samples of GPUs by the start of a file."""
    return output_of(head) in SAMPLES


def sniff_processes(head: bytes) -> bool:
    """Recognise lists of processes by the start of a file."""
    return output_of(head) is Output.PROCESSES


def sniff_static(head: bytes) -> bool:
    """Recognise output that nvidia-smi prints once by the start of a file."""
    return output_of(head) is Output.STATIC


def read(  # noqa: PLR0913 - options of the format
    paths: list[Path],
    *,
    tz: str | None = None,
    columns: str | None = None,
    date: str | None = None,
    at_ns: int | None = None,
    period_ms: float | None = None,
    at: str | None = None,
) -> Trace:
    """Read one file of nvidia-smi.

    Parameters
    ----------
    paths
        The file, alone in a list.
    tz
        Zone of the machine that wrote it, ``Europe/Berlin`` or ``+02:00``: times are then real
        times. Without it they are those of a wall clock, unless the file states its zone.
    columns
        What stood behind ``--query-gpu=``, for CSV without a header. For ``dmon`` without one,
        its names, which begin with ``gpu``: ``"gpu pwr gtemp sm mem"``; say ``--from nvidia-smi``
        then, as nothing in such a file identifies it.
    date
        Day of the first row, ``2024-05-01``, for ``dmon -o T``.
    at_ns
        When the last rows of a file without times were taken, epoch nanoseconds.
    period_ms
        Time between rows of a file without times, milliseconds.
    at
        ``"mtime"`` to take the time at which the file was last changed for that of the last rows.

    Returns
    -------
    Trace
        Without nodes: one series for each value of each GPU, and its samples.

    Raises
    ------
    ReadError
        It cannot be opened, or has no header and `columns` is missing.
    UsageError
        An option makes no sense.
    """
    from chopper_interop.converters.nvidia_smi import samples
    from chopper_interop.converters.sampling.time_options import TimeOptions

    (path,) = paths
    options = samples.Options(tz, columns, date, TimeOptions(at_ns, at, period_ms))
    return samples.read(path, options, NVIDIA_SMI.name)


NVIDIA_SMI = Converter(
    name="nvidia-smi",
    description="telemetry of NVIDIA GPUs: nvidia-smi --query-gpu, dmon, -q",
    versions="CSV with and without header and units, once or -l/-lms; dmon, also -o DT and CSV; "
    "-q and -q -x of drivers 290 to 580; CSV of scripts with ISO 8601 or epoch stamps",
    suffixes=(".csv", ".txt", ".log", ".xml"),
    sniff=sniff,
    read=read,
    carries="power, clocks, temperatures, utilization, memory, PCIe, ECC, throttle reasons (masks "
    "bit by bit); of CSV every other number under its own name; index, PCI address and UUID",
)

NVIDIA_SMI_PROCESSES = Converter(
    name="nvidia-smi-processes",
    description="nvidia-smi's lists of processes (pmon, --query-compute-apps)",
    sniff=sniff_processes,
    not_read_because="it is about processes and not about GPUs; record with --query-gpu=timestamp,"
    "index,power.draw,clocks.sm,utilization.gpu --format=csv -lms 100",
)

NVIDIA_SMI_STATIC = Converter(
    name="nvidia-smi-static",
    description="what nvidia-smi prints once (its table, -L, topo, nvlink, c2c, supported clocks)",
    sniff=sniff_static,
    not_read_because="it holds no samples in time; record with --query-gpu=timestamp,index,"
    "power.draw,clocks.sm,utilization.gpu --format=csv -lms 100",
)
