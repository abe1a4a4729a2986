"""Which series tell what goes over links, in which unit and direction, and where counters wrap."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.telemetry import counters

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.telemetry.samples import Samples

SENT, RECEIVED, BOTH = "sent", "received", "both"
COUNTER, RATE = "counter", "rate"
_WAYS = {
    "sent": SENT, "written": SENT, "write": SENT,
    "received": RECEIVED, "read": RECEIVED,
}  # fmt: skip
_K = 1024.0
_BYTES = {"B": 1.0, "": _K, "KB": _K}
"""Unit of a counter → bytes; xGMI's of gpu_metrics, which say none, count KB."""
_RATES = {"Mb/s": 125e3}
_TABLES = {COUNTER: _BYTES, RATE: _RATES}


@dataclass(frozen=True)
class Link:
    """Series of one sort of link.

    Parameters
    ----------
    name
        Regular expression that their whole name matches; group ``way`` is the direction, ``port``
        what of the link it is.
    link
        What it is called.
    method
        `COUNTER` or `RATE`.
    most
        Nothing is faster, bytes per second and direction: twice what PCIe 6, the widest NVLink 5
        and xGMI of a GPU, and InfiniBand XDR reach.
    wraps_at
        Bytes at which a counter begins anew; 0 of those of 64 bits.
    """

    name: str
    link: str
    method: str
    most: float
    wraps_at: float = 0.0


_WAY = r"(?P<way>sent|received)"
_OF_GPU = r"(?: GPU \d+)?"
LINKS = (
    Link(rf"PCIe bytes {_WAY}{_OF_GPU}", "PCIe", COUNTER, 256e9, 2.0**32),
    Link(rf"NVLink bytes {_WAY}{_OF_GPU}", "NVLink", COUNTER, 2e12, 2.0**32 * _K),
    Link(rf"InfiniBand (?P<port>\S+) bytes {_WAY}", "InfiniBand", COUNTER, 200e9),
    Link(r"XGMI (?P<way>read|written) GPU (?P<port>\d+)", "xGMI", COUNTER, 2e12),
    Link(r"xgmi_(?P<way>read|write)_data_acc(?:[ _](?P<port>\d+))?", "xGMI", COUNTER, 2e12),
    Link(
        r"(?:.* )?XGMI (?P<way>Read|Write) Data(?: \[?(?P<port>\d+)\]?)?(?: \(S\))?",
        "xGMI",
        COUNTER,
        2e12,
    ),
    Link(rf"PCIe bandwidth(?: {_WAY})?{_OF_GPU}", "PCIe", RATE, 256e9),
    Link(rf"NVLink bandwidth(?: {_WAY})?{_OF_GPU}", "NVLink", RATE, 2e12),
)
"""All that is known. PCIe's 32 bits count bytes and NVLink's KiB in CharLLM-PPT's fork of Zeus; what
gpu_metrics and rocprofiler-systems call accumulated PCIe bandwidth has a unit on which their
documents do not agree, and is not here."""


@dataclass(frozen=True)
class Way:
    """What a series tells.

    Parameters
    ----------
    link
        The entry of the table.
    direction
        `SENT`, `RECEIVED` or `BOTH`.
    port
        What of the link it is, empty for all of it.
    factor
        Bytes, or bytes per second, of 1 of its unit.
    """

    link: Link
    direction: str
    port: str
    factor: float


def told(name: str, unit: str) -> Way | None:
    """What a series tells; None if it is of no link."""
    for link in LINKS:
        found = re.fullmatch(link.name, name)
        factor = _TABLES[link.method].get(unit)
        if found and factor is not None:
            way = found["way"]
            port = found.groupdict().get("port") or ""
            return Way(link, _WAYS[way.lower()] if way else BOTH, port, factor)
    return None


@dataclass(frozen=True)
class Flow:
    """What went over a link between samples.

    Parameters
    ----------
    rates
        Bytes per second, each until the next sample.
    wrapped, reset
        Places of samples after which the counter began anew by itself, and was set back.
    is_ambiguous
        Whether the link could carry more than the counter holds between two samples, so that it
        may have begun anew unseen.
    """

    rates: Samples
    wrapped: Array
    reset: Array
    is_ambiguous: bool = False


def flow(samples: Samples, way: Way) -> Flow:
    """What went over a link between samples."""
    return _counted(samples, way) if way.link.method == COUNTER else _rated(samples, way)


def _rated(samples: Samples, way: Way) -> Flow:
    value = samples.value * way.factor
    possible = (value >= 0) & (value <= way.link.most)
    held = samples.held(np.where(possible, value, 0.0), samples.unknown | ~possible)
    none = np.zeros(0, np.int64)
    return Flow(held, none, none)


def _counted(samples: Samples, way: Way) -> Flow:
    """Rises of a counter by the time that they took."""
    most, at = way.link.most, way.link.wraps_at
    slack = samples.resolution_ns
    found = counters.rises(samples, most, factor=way.factor, wraps_at=at, slack_ns=slack)
    ambiguous = bool(at and (np.diff(samples.ts) * 1e-9 * most > at).any())
    return Flow(found.rates, found.wrapped, found.impossible, ambiguous)
