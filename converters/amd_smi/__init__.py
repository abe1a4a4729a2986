"""Formats of amd-smi: ``amd-smi metric`` and ``monitor`` of 5.7.1 to 7.x, and what it prints once.

This module recognises files; readers are imported when a file is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.converters.amd_smi.sniff import Output, output_of
from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace


def sniff(head: bytes) -> bool:
    """Recognise rows of ``metric`` or ``monitor`` as CSV or JSON by the start of a file."""
    return output_of(head) is Output.SAMPLES


def sniff_text(head: bytes) -> bool:
    """Recognise ``metric`` or ``monitor`` in human-readable form by the start of a file."""
    return output_of(head) is Output.TEXT


def sniff_static(head: bytes) -> bool:
    """Recognise output that describes GPUs by the start of a file."""
    return output_of(head) is Output.STATIC


def sniff_nothing(head: bytes) -> bool:
    """Recognise output that holds no values by the start of a file."""
    return output_of(head) is Output.NOTHING


def read(
    paths: list[Path],
    *,
    at_ns: int | None = None,
    at: str | None = None,
    period_ms: float | None = None,
) -> Trace:
    """Read one file of telemetry.

    Parameters
    ----------
    paths
        The file, alone in a list.
    at_ns
        When a file without times was written, nanoseconds since 1970. If it holds several outputs,
        this is the time of the last. It has no effect on files with times.
    at
        ``"mtime"`` to use the time at which the file was last changed instead.
    period_ms
        Time between several outputs without times; without it only the last is used.

    Returns
    -------
    Trace
        Without nodes: one series for each value of each GPU, and its samples. Rows without a
        time give no samples, and are counted, unless one of the options gives the time.

    Raises
    ------
    ReadError
        It cannot be opened or unpacked.
    UsageError
        `at` has another value, or options contradict each other.
    """
    from chopper_interop.converters.amd_smi import samples
    from chopper_interop.converters.sampling.time_options import TimeOptions

    (path,) = paths
    return samples.read_csv_or_json(path, TimeOptions(at_ns, at, period_ms), AMD_SMI.name)


def read_text(
    paths: list[Path],
    *,
    at_ns: int | None = None,
    at: str | None = None,
    period_ms: float | None = None,
) -> Trace:
    """Read one file of telemetry in human-readable form; options as those of ``amd-smi``.

    Parameters
    ----------
    paths
        The file, alone in a list.
    at_ns
        When a file without times was written, nanoseconds since 1970. If it holds several outputs,
        this is the time of the last.
    at
        ``"mtime"`` to use the time at which the file was last changed instead.
    period_ms
        Time between several outputs without times; without it only the last is used.
    """
    from chopper_interop.converters.amd_smi import samples
    from chopper_interop.converters.sampling.time_options import TimeOptions

    (path,) = paths
    return samples.read_text(path, TimeOptions(at_ns, at, period_ms), AMD_SMI_TEXT.name)


def read_static(paths: list[Path], *, at_ns: int | None = None, at: str | None = None) -> Trace:
    """Read one file that describes GPUs.

    Parameters
    ----------
    paths
        The file, alone in a list.
    at_ns
        When it was written, nanoseconds since 1970: counters in it (traffic of xGMI, memory of
        processes) then become samples.
    at
        ``"mtime"`` to use the time at which the file was last changed instead.

    Returns
    -------
    Trace
        Without nodes: ``meta.devices`` and ``meta.facts``.

    Raises
    ------
    ReadError
        It cannot be opened or unpacked.
    UsageError
        `at` has another value, or both options are given.
    """
    from chopper_interop.converters.amd_smi import static
    from chopper_interop.converters.sampling.time_options import TimeOptions

    (path,) = paths
    return static.read(path, TimeOptions(at_ns, at), AMD_SMI_STATIC.name)


AMD_SMI = Converter(
    name="amd-smi",
    description="telemetry of AMD GPUs: amd-smi metric and monitor, CSV or JSON",
    versions="5.7.1 to 7.x, with and without -w",
    suffixes=(".csv", ".json"),
    sniff=sniff,
    read=read,
    carries="power, clocks of every XCD, temperatures, activity of engines, memory, energy, PCIe, "
    "ECC, throttling as shares of time, memory of processes (monitor -q); every other number under "
    "its own name",
)

AMD_SMI_TEXT = Converter(
    name="amd-smi-text",
    description="telemetry of AMD GPUs: amd-smi metric and monitor in human-readable form",
    versions="5.7.1 to 7.x, with and without -w",
    suffixes=(".txt",),
    sniff=sniff_text,
    read=read_text,
    carries="the same as amd-smi",
)

AMD_SMI_STATIC = Converter(
    name="amd-smi-static",
    description="what amd-smi prints once: static, list, topology, xgmi, process, partition",
    versions="5.7.1 to 7.x; CSV, JSON and human-readable form",
    sniff=sniff_static,
    read=read_static,
    carries="GPUs with all their names; power cap, clock levels, compute units, memory, versions, "
    "partitions as facts; traffic of xGMI and memory of processes where the time is known",
)

AMD_SMI_NOTHING = Converter(
    name="amd-smi-nothing",
    description="amd-smi output without values",
    sniff=sniff_nothing,
    not_read_because="it holds an error, or nothing but amd-smi's first line",
)
