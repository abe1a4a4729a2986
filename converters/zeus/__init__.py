"""Formats of Zeus: logs of measurement windows, records of power, tables of results.

CharLLM-PPT's fork of it writes a folder of ``{metric}_{rank}.csv`` without headers.
"""

from __future__ import annotations

import re
from pathlib import Path

from chopper_interop.converters.sampling.timestamps import EARLIEST_S, SECOND, nanoseconds
from chopper_interop.grouping import by_key
from chopper_interop.registry import Converter

_WINDOWS = ("start_time", "window_name", "elapsed_time")
_POWER_HEADER = re.compile(
    r"\s*(?:time|timestamp)\s*,\s*(?:power(?:_w)?|(?:gpu_?\d+|power_?\d+)(?:_?power)?(?:_w)?"
    r"(?:\s*,\s*(?:gpu_?\d+|power_?\d+)(?:_?power)?(?:_w)?)*)\s*(?:\n|$)",
    re.IGNORECASE,
)
_SUMMARY = re.compile(r"dataset,network,batch_size,optimizer,power_limit,")
_CHARLLM_ROW = re.compile(
    rb"\s*(\d{10}(?:\.\d*)?)[ \t]*,[ \t]*([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|N/A|nan|None)"
    rb"[ \t]*\r?(?:\n|$)"
)
_CHARLLM_LINES = 20
"""Lines that are looked at. Chosen: enough to tell rows from a line that looks like one."""


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


def sniff_charllm(head: bytes) -> bool:
    """True if a file begins with rows of an epoch time and a number, without a header."""
    at = 3 if head.startswith(b"\xef\xbb\xbf") else 0
    if not _CHARLLM_ROW.match(head, at):
        return False
    lines = [line for line in head[at:].split(b"\n")[:_CHARLLM_LINES] if line.strip()]
    return sum(line.count(b",") == 1 for line in lines) * 2 > len(lines)


def group_by_folder(paths: list[Path]) -> list[list[Path]]:
    """Files of one folder are one source."""
    return list(by_key(paths, lambda path: path.parent).values())


ZEUS = Converter(
    name="zeus",
    description="telemetry of Zeus: logs of measurement windows, and records of power",
    versions="ZeusMonitor logs (0.5 and later); power CSV with epoch times, time,power or "
    "time,gpu0,…",
    suffixes=(".csv",),
    sniff=sniff,
    json=False,
    read="chopper_interop.converters.zeus.samples:read",
    carries="duration, energy and mean power of every window by name and GPU; power of each GPU over "
    "time",
)

ZEUS_SUMMARY = Converter(
    name="zeus-summary",
    description="tables of results made with Zeus",
    sniff=sniff_summary,
    json=False,
    not_read_because="its rows are means over runs and have no times; give the logs of windows",
)

CHARLLM = Converter(
    name="charllm",
    description="telemetry of CharLLM-PPT: folders of {metric}_{rank}.csv by its fork of Zeus",
    versions="dad5f278 (2025), NVIDIA and AMD",
    suffixes=(".csv",),
    sniff=sniff_charllm,
    json=False,
    group=group_by_folder,
    read="chopper_interop.converters.zeus.charllm_samples:read",
    carries="power, temperatures, clocks, utilization, PCIe and NVLink counters (unwrapped) by "
    "rank; processors, memory and InfiniBand of its node",
)
