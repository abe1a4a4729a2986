"""Formats of Zeus: the log of its measurement windows, its record of power, tables of results.

This module recognises files; the reader is imported when a file is read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from chopper_interop.converters.sampling.timestamps import EARLIEST_S, SECOND, nanoseconds
from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

_WINDOWS = ("start_time", "window_name", "elapsed_time")
_POWER_HEADER = re.compile(
    r"\s*(?:time|timestamp)\s*,\s*(?:power(?:_w)?|(?:gpu_?\d+|power_?\d+)(?:_?power)?(?:_w)?"
    r"(?:\s*,\s*(?:gpu_?\d+|power_?\d+)(?:_?power)?(?:_w)?)*)\s*(?:\n|$)",
    re.IGNORECASE,
)
_SUMMARY = re.compile(r"dataset,network,batch_size,optimizer,power_limit,")


def sniff(head: bytes) -> bool:
    """True if a file that begins with these bytes is a log of windows or a record of power."""
    line = _first_line(head)
    return line.split(",")[:3] == list(_WINDOWS) or _is_power(head)


def _first_line(head: bytes) -> str:
    text = head.decode("utf-8", "replace").lstrip("\ufeff").lstrip()
    return text.partition("\n")[0].strip().replace(" ", "").lower()


def _is_power(head: bytes) -> bool:
    """``time,gpu0,gpu1`` or ``time,power``, and below it a time that is one."""
    text = head.decode("utf-8", "replace").lstrip("\ufeff").lstrip().replace("\r\n", "\n")
    match = _POWER_HEADER.match(text)
    if not match:
        return False
    rest = text[match.end() :].lstrip().partition("\n")[0].split(",")
    time = nanoseconds(rest[0]) if rest[0] else None
    return not rest[0] or (time is not None and time >= EARLIEST_S * SECOND)


def sniff_summary(head: bytes) -> bool:
    """Recognise a table of results by the start of a file."""
    return _SUMMARY.match(_first_line(head)) is not None


def read(paths: list[Path]) -> Trace:
    """Read one file of Zeus.

    Parameters
    ----------
    paths
        The file, alone in a list.

    Returns
    -------
    Trace
        Without nodes. Of windows: for each name the duration (s), and for each device energy (J)
        and mean power (W), at the window's beginning; and of each GPU its power over the time of
        all windows (`telemetry.names.WITHIN_WINDOWS`). Of a record of power: power of each GPU.

    Raises
    ------
    ReadError
        It cannot be opened.
    """
    from chopper_interop.converters.zeus import samples

    (path,) = paths
    return samples.read(path, ZEUS.name)


ZEUS = Converter(
    name="zeus",
    description="telemetry of Zeus: logs of measurement windows, and records of power",
    versions="ZeusMonitor logs (0.5 and later); power CSV with epoch times, time,power or "
    "time,gpu0,…",
    suffixes=(".csv",),
    sniff=sniff,
    read=read,
    carries="duration, energy and mean power of every window by name and GPU; power of each GPU over "
    "time",
)

ZEUS_SUMMARY = Converter(
    name="zeus-summary",
    description="tables of results made with Zeus",
    sniff=sniff_summary,
    not_read_because="its rows are means over runs and have no times; give the logs of windows",
)
