"""Series of bytes that go over links: their units, directions, and where counters wrap around."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.annotate.telemetry import counter_rates
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.annotate.telemetry.samples import Samples

SENT, RECEIVED, BOTH = "sent", "received", "both"
COUNTER, RATE = "counter", "rate"
_DIRECTIONS = {
    "sent": SENT, "written": SENT, "write": SENT,
    "received": RECEIVED, "read": RECEIVED,
}  # fmt: skip
_K = 1024.0
_BYTES = {"B": 1.0, "": _K, "KB": _K}
"""Unit of a counter → bytes; those of xGMI in gpu_metrics state no unit and count KB."""
_RATES = {"Mb/s": 125e3}
_TABLES = {COUNTER: _BYTES, RATE: _RATES}


@dataclass(frozen=True)
class Link:
    """Series of one kind of link.

    Parameters
    ----------
    name
        Regular expression that their whole name matches; group ``way`` is the direction, ``port``
        the part of the link.
    link
        Name of the link.
    method
        `COUNTER` or `RATE`.
    max_rate
        Highest possible rate, bytes per second and direction: twice what PCIe 6, the widest
        NVLink 5 and xGMI of a GPU, and InfiniBand XDR reach.
    wraps_at
        Bytes at which a counter wraps around; 0 for counters of 64 bits.
    """

    name: str
    link: str
    method: str
    max_rate: float
    wraps_at: float = 0.0


_WAY = r"(?P<way>sent|received)"
_GPU = r"(?: GPU \d+)?"
LINKS = (
    Link(rf"PCIe bytes {_WAY}{_GPU}", "PCIe", COUNTER, 256e9, 2.0**32),
    Link(rf"NVLink bytes {_WAY}{_GPU}", "NVLink", COUNTER, 2e12, 2.0**32 * _K),
    Link(rf"InfiniBand (?P<port>\S+) bytes {_WAY}", "InfiniBand", COUNTER, 200e9),
    Link(r"XGMI (?P<way>read|written) (?:GPU|link) (?P<port>\d+)", "xGMI", COUNTER, 2e12),
    Link(r"xgmi_(?P<way>read|write)_data_acc(?:[ _](?P<port>\d+))?", "xGMI", COUNTER, 2e12),
    Link(
        r"(?:.* )?XGMI (?P<way>Read|Write) Data(?: \[?(?P<port>\d+)\]?)?(?: \(S\))?",
        "xGMI",
        COUNTER,
        2e12,
    ),
    Link(rf"PCIe bandwidth(?: {_WAY})?{_GPU}", "PCIe", RATE, 256e9),
    Link(rf"NVLink bandwidth(?: {_WAY})?{_GPU}", "NVLink", RATE, 2e12),
)
"""All known series. In CharLLM-PPT's fork of Zeus 32-bit counters count bytes for PCIe and KiB for
NVLink. The accumulated PCIe bandwidth of gpu_metrics and rocprofiler-systems is left out: their
documents do not agree on its unit."""


@dataclass(frozen=True)
class LinkSeries:
    """Link, direction and unit that a series is of.

    Parameters
    ----------
    link
        Entry of the table.
    direction
        `SENT`, `RECEIVED` or `BOTH`.
    port
        Part of the link, empty for all of it.
    factor
        Bytes, or bytes per second, of 1 of its unit.
    """

    link: Link
    direction: str
    port: str
    factor: float


def parse_link_series(name: str, unit: str) -> LinkSeries | None:
    """Look up a series by name and unit; None if it is of no link."""
    for link in LINKS:
        match = re.fullmatch(link.name, name)
        factor = _TABLES[link.method].get(unit)
        if match and factor is not None:
            way = match["way"]
            port = match.groupdict().get("port") or ""
            return LinkSeries(link, _DIRECTIONS[way.lower()] if way else BOTH, port, factor)
    return None


@dataclass(frozen=True)
class Flow:
    """Rate of bytes over a link between samples.

    Parameters
    ----------
    rates
        Bytes per second, each until the next sample.
    wrapped, reset
        Indexes of samples after which the counter wrapped around, and after which it was reset.
    is_ambiguous
        True if the link can carry more than the counter holds between two samples, so that the
        counter may have wrapped around unnoticed.
    """

    rates: Samples
    wrapped: Array
    reset: Array
    is_ambiguous: bool = False


def link_flow(samples: Samples, series: LinkSeries) -> Flow:
    """Compute the rate of bytes over a link between samples, in bytes per second."""
    if series.link.method == COUNTER:
        return _counter_flow(samples, series)
    return _rate_flow(samples, series)


def _rate_flow(samples: Samples, series: LinkSeries) -> Flow:
    value = samples.value * series.factor
    possible = (value >= 0) & (value <= series.link.max_rate)
    rates = samples.as_steps(np.where(possible, value, 0.0), samples.unknown | ~possible)
    empty = np.zeros(0, np.int64)
    return Flow(rates, empty, empty)


def _counter_flow(samples: Samples, series: LinkSeries) -> Flow:
    """Divide each rise of a counter by the time that it took."""
    max_rate, wraps_at = series.link.max_rate, series.link.wraps_at
    counted = counter_rates.counter_rates(
        samples,
        max_rate,
        factor=series.factor,
        wraps_at=wraps_at,
        slack_ns=samples.resolution_ns,
    )
    capacity = np.diff(samples.ts) * 1e-9 * max_rate
    ambiguous = bool(wraps_at and (capacity > wraps_at).any())
    return Flow(counted.rates, counted.wrapped, counted.impossible, ambiguous)
