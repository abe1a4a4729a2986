"""Units, words that are numbers, and texts that mean "not available"."""

from __future__ import annotations

import re

from chopper_interop.converters.sampling.lane_names import Kind

STATES = {
    "ACTIVE": 1.0, "NOT ACTIVE": 0.0, "TRUE": 1.0, "FALSE": 0.0, "THROTTLED": 1.0,
    "UNTHROTTLED": 0.0,
}  # fmt: skip
"""Words of `Kind.STATE` lanes, in upper case."""

ABSENT = re.compile(r"|[\[(]?(N/A|Not Supported|Not Applicable)[\])]?( .*)?", re.IGNORECASE)
"""Texts that mean "not available": empty, ``N/A``, ``N/A mV``, ``[Not Supported]``."""

KNOWN_WORDS = re.compile(
    r"(?:EN|DIS)ABLED?|ON|OFF|YES|NO|NONE|NULL|UNKNOWN|AUTO|MANUAL|LOW|HIGH|DEFAULT|DYNAMIC"
    r"|(?:NOT[ _])?ACTIVE|TRUE|FALSE|(?:UN)?THROTTLED|(?:UN)?LOCKED|PENDING|IDLE"
    r"|NA|NOT[ _](?:AVAILABLE|FOUND|SUPPORTED|APPLICABLE|YET[ _]IMPLEMENTED)|UNSUPPORTED"
    r"|.*\b(?:ERROR|FAILED|FAILURE|INVALID|EXCEPTION|PERMISSION|DENIED|UNABLE|CANNOT|LOST)\b.*"
    r"|(?:AMDSMI|RSMI|NVML|DCGM)_\w+.*|\[.*\]|\(.*\)",
    re.IGNORECASE | re.DOTALL,
)
"""Words that tools write in place of a number: settings, states and errors."""

NAN = re.compile(r"[-+]?nan(?:\s*\S{1,8})?", re.IGNORECASE)
"""Not a number, with or without unit."""

NUMBER_LIKE = re.compile(r"[-+]?\d+(?:[.,]\d+)*[.,]?(?:[eE][-+]?\d+)?\s*(?:[^\W\d_]|[%°/])*")
"""Text that begins like a number, with or without unit; a mask, an address or a date does not."""

SENTINELS = frozenset({-1.0, 65535.0, 4294967295.0, 18446744073709551615.0})
"""Largest numbers of 16, 32 and 64 bits, with a sign or without, which mean "not available" (amd-smi
5.7.1, and gpu_metrics)."""

WIDE_SENTINELS = SENTINELS - {65535.0}
"""Numbers that mean "not available" of values that may exceed 16 bits."""

COUNTING = frozenset({Kind.STEADY, Kind.RESIDENCY, Kind.TICKS})
"""Kinds that `WIDE_SENTINELS` apply to, in addition to values in joules and bytes."""

_K = 1024.0
_FACTORS = {
    "W": {"W": 1.0, "mW": 1e-3, "uW": 1e-6, "kW": 1e3},
    "mV": {"mV": 1.0, "V": 1e3},
    "MHz": {"Hz": 1e-6, "kHz": 1e-3, "KHz": 1e-3, "MHz": 1.0, "Mhz": 1.0, "GHz": 1e3},
    "°C": {
        "C": 1.0,
        "c": 1.0,
        "°C": 1.0,
        "_C": 1.0,
    },  # the last by rocm-smi where ° is no character
    "%": {"%": 1.0},
    "J": {"uJ": 1e-6, "mJ": 1e-3, "J": 1.0, "kJ": 1e3, "2^-16 J": 2.0**-16},
    "B": {"B": 1.0} | {f"{p}{b}": _K**n for b in ("B", "iB") for n, p in enumerate("KMGT", 1)},
    "Mb/s": {"Kb/s": 1e-3, "Mb/s": 1.0, "Gb/s": 1e3},
    "GT/s": {"0.1 GT/s": 0.1, "MT/s": 1e-3, "GT/s": 1.0},
    "ns": {"ns": 1.0},
    "GB/s": {"GB/s": 1.0},
    "RPM": {"RPM": 1.0, "rpm": 1.0},
}
UNITS = {
    written: (unit, factor)
    for unit, factors in _FACTORS.items()
    for written, factor in factors.items()
}
"""Written unit → the lane's unit and the factor to it."""


def factor(unit: str, lane_unit: str) -> float | None:
    """Return the factor to the lane's unit; None for an unknown unit or one of another quantity."""
    if unit == lane_unit:
        return 1.0
    known = UNITS.get(unit)
    return known[1] if known and known[0] == lane_unit else None
