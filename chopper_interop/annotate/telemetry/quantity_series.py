"""Quantities of GPUs and the series that give them: one table over the series of all samplers.

Between samples a value either holds or changes linearly to the next one:

* A clock is what the firmware set: it stays until it is set again, so a sample holds until the
  next. So does a throttle status; a throttle share is stored at the beginning of the interval that
  it was measured over, so that holding it is exact.
* Power is an average over a window that ends with the sample and is documented for no GPU but
  some of NVIDIA's (25 ms of every 100 ms, or 1 s). Held, it would be late by half a period; linear
  interpolation is neither late nor early on average, and its integral is the trapezoid rule that
  the published energies of such logs use. Temperature cannot jump.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

PER_CENT = 0.01
_WATTS = {"W": 1.0, "watts": 1.0, "mW": 1e-3}
_MEGAHERTZ = {"MHz": 1.0, "mhz": 1.0, "": 1.0}
CELSIUS = {"°C": 1.0, "C": 1.0, "deg C": 1.0}
_SHARE = {"%": PER_CENT}

_DIES = r"(?: XCP 0)?(?: XCD (?P<die>\d+))?"
"""Dies; a GPU that is one partition has the number 0 in some names. Series of other partitions are
assigned to no rank, as no source says which of them a process computes on."""
_SYSTEMS_GPU = r"(?:GPU \[\d+\]|\[GPU \d+\]) "
"""Beginning of the names of counter tracks of rocprofiler-systems and Omnitrace."""
_CAUSE = r"(?P<cause>.+?)(?: XCP \d+)?(?: XCD (?P<die>\d+))?"
COUNTED_CAUSES = {
    "sw_power_cap": "SW power cap",
    "hw_slowdown": "HW slowdown",
    "sync_boost": "sync boost",
    "sw_thermal_slowdown": "SW thermal slowdown",
    "hw_thermal_slowdown": "HW thermal slowdown",
    "hw_power_brake_slowdown": "HW power brake slowdown",
}
"""Counters of nvidia-smi since driver 555, microseconds → name of the cause in statuses."""
WITHIN_WINDOWS = "power within windows"
"""Series of mean power (W) of windows around which a counter was read; see `SeriesPattern`."""


@lru_cache(maxsize=1 << 16)
def _full_match(pattern: str, name: str) -> re.Match[str] | None:
    """Match a name, once for all the stages that ask for it."""
    return re.fullmatch(pattern, name)


@dataclass(frozen=True)
class SeriesPattern:
    """Pattern of the names of series that give a quantity, and what their samples mean.

    Parameters
    ----------
    name
        Regular expression that their whole name matches; group ``die`` numbers dies.
    units
        Units that they may have → factor to the quantity's unit.
    is_counter
        True if they are counters and the quantity is their rate, per second.
    is_logged
        True if a sample exists only where the value changed, and once more where logging ended.
    is_numbered
        True if a profiler sampled them that numbers GPUs in its own way.
    is_status
        True if any value but 0 means that it is so: one cause is 1, a mask of causes has more.
    is_window
        True if samples are means of windows around which a counter was read: one at each window's
        beginning, and the same once more at its end; where windows touch, the next one's alone.
    """

    name: str
    units: dict[str, float]
    is_counter: bool = False
    is_logged: bool = False
    is_numbered: bool = False
    is_status: bool = False
    is_window: bool = False

    @property
    def is_instantaneous(self) -> bool:
        """True if values are of the times of their samples, not counted between samples."""
        return not self.is_counter and not self.is_window

    def match(self, name: str) -> re.Match[str] | None:
        """Match the name of a series."""
        return _full_match(self.name, name)


@dataclass(frozen=True)
class Quantity:
    """Quantity of a GPU, given by telemetry, that becomes columns of nodes.

    Parameters
    ----------
    name
        Beginning of the names of its columns.
    unit
        End of the names of its columns.
    min_value, max_value
        No GPU has values below or above; wide limits that exclude only damaged samples.
    patterns
        Series that give it, the best first among those that are sampled equally well.
    is_linear
        True if it changes linearly from sample to sample; otherwise it holds.
    """

    name: str
    unit: str
    min_value: float
    max_value: float
    patterns: tuple[SeriesPattern, ...]
    is_linear: bool = False

    def columns(self, die: int | None = None) -> tuple[str, str, str]:
        """Names of the columns of its mean, minimum and maximum."""
        stem = self.name if die is None else f"{self.name}_xcd{die}"
        return f"{stem}_{self.unit}", f"{stem}_min_{self.unit}", f"{stem}_max_{self.unit}"


GFXCLK = Quantity(
    "gfxclk",
    "mhz",
    0.0,
    1e5,
    (
        SeriesPattern(rf"gfx clock{_DIES}", _MEGAHERTZ),
        SeriesPattern(rf"gfx clock average{_DIES}", _MEGAHERTZ),
        SeriesPattern(r"SM clock|graphics clock", _MEGAHERTZ),
        SeriesPattern(r"sclk(?: sclk)?", _MEGAHERTZ, is_logged=True),
    ),
)
MEMCLK = Quantity(
    "memclk",
    "mhz",
    0.0,
    1e5,
    (
        SeriesPattern(r"memory clock(?: AID (?P<die>\d+))?", _MEGAHERTZ),
        SeriesPattern(r"memory clock average", _MEGAHERTZ),
        SeriesPattern(r"mclk(?: mclk)?", _MEGAHERTZ, is_logged=True),
    ),
)
POWER = Quantity(
    "power",
    "w",
    0.0,
    1e5,
    (
        SeriesPattern(r"socket power", _WATTS),
        SeriesPattern(r"socket power (?:instant|draw)", _WATTS),
        SeriesPattern(r"socket power average", _WATTS),
        SeriesPattern(rf"{_SYSTEMS_GPU}(?:Current )?Power(?: \(S\))?", _WATTS, is_numbered=True),
        SeriesPattern(r"GPU Power \[\d+\](?: \(S\))?", _WATTS, is_numbered=True),
        SeriesPattern(r"energy", {"J": 1.0, "mJ": 1e-3}, is_counter=True),
        SeriesPattern(WITHIN_WINDOWS, _WATTS, is_window=True),
    ),
    is_linear=True,
)
TEMPERATURE = Quantity(
    "temperature",
    "c",
    -273.15,
    1e4,
    (
        SeriesPattern(r"temperature hotspot", CELSIUS),
        SeriesPattern(r"temperature GPU", CELSIUS),
    ),
    is_linear=True,
)
"""Of the hotspot on AMD; NVIDIA reports one temperature of the GPU. The edge is not a hotspot, and is
what Omnitrace calls the temperature; rocprofiler-systems does not say which it samples."""
THROTTLE = Quantity(
    "throttle",
    "share",
    0.0,
    1.0,
    (
        SeriesPattern(rf"throttle share {_CAUSE}", _SHARE),
        SeriesPattern(rf"throttle time {_CAUSE}", {"ns": 1e-9}, is_counter=True),
        SeriesPattern(
            rf"clocks_event_reasons_counters_(?P<cause>{'|'.join(COUNTED_CAUSES)})",
            {"us": 1e-6, "µs": 1e-6, "": 1e-6},
            is_counter=True,
        ),
        SeriesPattern(rf"throttle activity {_CAUSE}", _SHARE),
        SeriesPattern(rf"throttle status(?: {_CAUSE})?", {"": 1.0}, is_status=True),
    ),
)
"""Share of time in which the clock is held down; `telemetry.throttle_causes` has the single causes
and combines them. Masks of causes are not here: converters write each bit as a status."""
EDGE = Quantity(
    "edge_temperature",
    "c",
    -273.15,
    1e4,
    (SeriesPattern(r"temperature edge", CELSIUS),),
    is_linear=True,
)
"""Of the die's edge: all that CharLLM-PPT and older tools sample on AMD."""
UTILIZATION = Quantity(
    "utilization", "share", 0.0, 1.0, (SeriesPattern(r"GFX activity(?: XCP 0)?", {"%": 0.01}),)
)
"""Share of time in which anything ran, as the tool reports it."""

QUANTITIES = (GFXCLK, MEMCLK, POWER, TEMPERATURE, THROTTLE)

ENERGY_UNITS = dict.fromkeys(("amd-smi", "rocm-smi"), 2.0**-16 / 15.3e-6)
"""Tools that round the unit of the hardware's energy counter (2^-16 J, rounded to 15.3 µJ) → factor
that corrects their values."""

NUMBERED_AS_LANES = ("rpd",)
"""Tools that number the GPUs of the node's series as they number those of their operations."""

PARTITION = re.compile(r".* XCP (\d+)(?: XCD \d+)?")
"""Name of a series of one partition of a GPU."""

WINDOW = re.compile(r"(?:duration|energy|mean power) of .+")
"""Name of a series of windows that were measured as a whole; a sample is at each begin."""

DUAL_DIE = re.compile(r"MI250|MI250X", re.IGNORECASE)
"""GPUs that are one of two dies on a module, of which the first reports the power of both."""
