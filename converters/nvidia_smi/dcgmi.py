"""Formats of DCGM: the table of ``dcgmi dmon``, and what dcgmi prints once.

This module recognises files; the reader is imported when a file is read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from chopper_interop.converters.nvidia_smi.dcgmi_fields import HEADER
from chopper_interop.converters.sampling.timestamps import split_leading_timestamp
from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

_SHORT = re.compile(r"[A-Z][A-Z0-9#]{2,14}")
_LINES = 40


def sniff(head: bytes) -> bool:
    """True if a file that begins with these bytes is the table of ``dcgmi dmon``."""
    text = head.decode("utf-8", "replace").lstrip("\ufeff")
    for written in [n for n in text.split("\n")[:_LINES] if n.strip()]:
        line = split_leading_timestamp(written.strip())[1]
        if HEADER.match(line):
            names = line.lstrip("# ").split()[1:]
            return bool(names) and all(_SHORT.fullmatch(name) for name in names)
        if line[:1] in ("{", "[", "<") or "," in line:
            return False
    return False


def read(
    paths: list[Path],
    *,
    tz: str | None = None,
    at_ns: int | None = None,
    period_ms: float | None = None,
    at: str | None = None,
) -> Trace:
    """Read one file of ``dcgmi dmon``.

    Parameters
    ----------
    paths
        The file, alone in a list.
    tz
        Zone of stamps in front of the lines, if there are any without.
    at_ns
        When the last rows of a file without times were taken, epoch nanoseconds.
    period_ms
        Time between rows, milliseconds (dcgmi's ``-d``, by default 1000).
    at
        ``"mtime"`` to take the time at which the file was last changed for that of the last rows.

    Returns
    -------
    Trace
        Without nodes: one series for each field of each GPU, and its samples.

    Raises
    ------
    ReadError
        It cannot be opened.
    UsageError
        An option makes no sense.
    """
    from chopper_interop.converters.nvidia_smi import dcgmi_samples
    from chopper_interop.converters.sampling.time_options import TimeOptions

    (path,) = paths
    return dcgmi_samples.read(path, tz, TimeOptions(at_ns, at, period_ms), DCGMI.name)


_OTHERS = re.compile(
    r"\s*(?:\d+ GPUs? found\.|Successfully (?:retrieved|ran|obtained)\b.*\b(?:statistics|diagnostic|health)"
    r"|\+[-=]+\+\s*\n\| (?:Diagnostic |GPU ID: \d+, Device|Successfully|Execution Stats|NVLink))"
)


def is_other(head: bytes) -> bool:
    """True if a file that begins with these bytes is another output of dcgmi, printed once."""
    return _OTHERS.match(head.decode("utf-8", "replace").lstrip("\ufeff")) is not None


DCGMI = Converter(
    name="dcgmi",
    description="telemetry of NVIDIA GPUs: dcgmi dmon",
    versions="tables of DCGM 1.7 to 4.x, also with a stamp in front of every line",
    suffixes=(".txt", ".log"),
    sniff=sniff,
    read=read,
    carries="device fields (power, clocks, temperatures, utilization, memory, ECC, energy) and "
    "throttle reasons bit by bit, and "
    "profiling fields (SM, tensor, DRAM, FP activity, PCIe, NVLink); others under their short name",
)

DCGMI_OTHERS = Converter(
    name="dcgmi-others",
    description="what dcgmi prints once (discovery, stats, diag, health, nvlink)",
    sniff=is_other,
    not_read_because="it holds no samples in time; record with dcgmi dmon -e 155,100,1002,1005 "
    "-d 100, a time in front of every line (… | ts '%s')",
)
