"""Which series tell what of a GPU: one table over all samplers, and how their samples are joined.

Between samples a value either holds or goes straight to the next one:

* A clock is what the firmware set: it stays until it is set again, so a sample holds until the
  next. So does a throttle status; a throttle share is stored at the beginning of the interval that
  it was measured over, so that holding it is exact.
* Power is an average over a window that ends with the sample and is documented for no GPU but
  some of NVIDIA's (25 ms of every 100 ms, or 1 s). Held, it would come half a period late; straight
  lines come neither late nor early on average, and their integral is the trapezoid rule that the
  published energies of such logs use. Temperature cannot jump.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PER_CENT = 0.01
_WATTS = {"W": 1.0, "watts": 1.0, "mW": 1e-3}
_MEGAHERTZ = {"MHz": 1.0, "mhz": 1.0, "": 1.0}
_CELSIUS = {"°C": 1.0, "C": 1.0, "deg C": 1.0}
_SHARE = {"%": PER_CENT}

_DIES = r"(?: XCP 0)?(?: XCD (?P<die>\d+))?"
"""Dies; a GPU that is one partition has the number 0 in some names. Other partitions' series are
of nobody, for nothing says which of them a process computes on."""
_SYSTEMS_GPU = r"(?:GPU \[\d+\]|\[GPU \d+\]) "
"""How counter tracks of rocprofiler-systems and Omnitrace begin."""
_CAUSE = r"(?P<cause>.+?)(?: XCP \d+)?(?: XCD (?P<die>\d+))?"
COUNTED_CAUSES = {
    "sw_power_cap": "SW power cap",
    "hw_slowdown": "HW slowdown",
    "sync_boost": "sync boost",
    "sw_thermal_slowdown": "SW thermal slowdown",
    "hw_thermal_slowdown": "HW thermal slowdown",
    "hw_power_brake_slowdown": "HW power brake slowdown",
}
"""Counters of nvidia-smi since driver 555, microseconds → what statuses call the cause."""
WITHIN_WINDOWS = "power within windows"
"""Name of the series of mean power (W) of windows that a counter was read around; see `Told`."""


@dataclass(frozen=True)
class Told:
    """Series that tell a quantity.

    Parameters
    ----------
    name
        Regular expression that their whole name matches; group ``die`` numbers dies.
    units
        Units that they may have → what to multiply by.
    is_counter
        Whether they count up what the quantity is the rate of, per second.
    is_logged
        Whether a sample stands only where the value changed, and once more where logging ended.
    is_numbered
        Whether a profiler sampled it that numbers GPUs in its own way.
    is_status
        Whether any value but 0 says that it is so: one cause is 1, a mask of causes has more.
    is_window
        Whether samples are means of windows that a counter was read around: one at each window's
        beginning, and the same once more at its end; where windows meet, the next one's alone.
    """

    name: str
    units: dict[str, float]
    is_counter: bool = False
    is_logged: bool = False
    is_numbered: bool = False
    is_status: bool = False
    is_window: bool = False

    @property
    def is_shown(self) -> bool:
        """Whether values are shown as they are at a moment, and not what was counted meanwhile."""
        return not self.is_counter and not self.is_window

    def match(self, name: str) -> re.Match[str] | None:
        """How a series' name matches."""
        return re.fullmatch(self.name, name)


@dataclass(frozen=True)
class Quantity:
    """What becomes columns of nodes.

    Parameters
    ----------
    name
        Begins the names of its columns.
    unit
        Ends them.
    least, most
        No GPU has less or more.
    told
        What tells it, the best first of what is sampled equally well.
    is_straight
        Whether it goes straight from sample to sample; it holds otherwise.
    """

    name: str
    unit: str
    least: float
    most: float
    told: tuple[Told, ...]
    is_straight: bool = False

    def columns(self, die: int | None = None) -> tuple[str, str, str]:
        """Columns of its mean, least and most."""
        stem = self.name if die is None else f"{self.name}_xcd{die}"
        return f"{stem}_{self.unit}", f"{stem}_min_{self.unit}", f"{stem}_max_{self.unit}"


GFXCLK = Quantity(
    "gfxclk",
    "mhz",
    0.0,
    1e5,
    (
        Told(rf"gfx clock{_DIES}", _MEGAHERTZ),
        Told(rf"gfx clock average{_DIES}", _MEGAHERTZ),
        Told(r"SM clock|graphics clock", _MEGAHERTZ),
        Told(r"sclk(?: sclk)?", _MEGAHERTZ, is_logged=True),
    ),
)
MEMCLK = Quantity(
    "memclk",
    "mhz",
    0.0,
    1e5,
    (
        Told(r"memory clock(?: AID (?P<die>\d+))?", _MEGAHERTZ),
        Told(r"memory clock average", _MEGAHERTZ),
        Told(r"mclk(?: mclk)?", _MEGAHERTZ, is_logged=True),
    ),
)
POWER = Quantity(
    "power",
    "w",
    0.0,
    1e5,
    (
        Told(r"socket power", _WATTS),
        Told(r"socket power (?:instant|draw)", _WATTS),
        Told(r"socket power average", _WATTS),
        Told(rf"{_SYSTEMS_GPU}(?:Current )?Power(?: \(S\))?", _WATTS, is_numbered=True),
        Told(r"GPU Power \[\d+\](?: \(S\))?", _WATTS, is_numbered=True),
        Told(r"energy", {"J": 1.0, "mJ": 1e-3}, is_counter=True),
        Told(WITHIN_WINDOWS, _WATTS, is_window=True),
    ),
    is_straight=True,
)
TEMPERATURE = Quantity(
    "temperature",
    "c",
    -273.15,
    1e4,
    (
        Told(r"temperature hotspot", _CELSIUS),
        Told(r"temperature GPU", _CELSIUS),
    ),
    is_straight=True,
)
"""Of the hotspot on AMD; NVIDIA tells one temperature of the GPU. The edge is no hotspot, and it is
what Omnitrace calls the temperature; rocprofiler-systems does not say which it samples."""
THROTTLE = Quantity(
    "throttle",
    "share",
    0.0,
    1.0,
    (
        Told(rf"throttle share {_CAUSE}", _SHARE),
        Told(rf"throttle time {_CAUSE}", {"ns": 1e-9}, is_counter=True),
        Told(
            rf"clocks_event_reasons_counters_(?P<cause>{'|'.join(COUNTED_CAUSES)})",
            {"us": 1e-6, "µs": 1e-6, "": 1e-6},
            is_counter=True,
        ),
        Told(rf"throttle activity {_CAUSE}", _SHARE),
        Told(rf"throttle status(?: {_CAUSE})?", {"": 1.0}, is_status=True),
    ),
)
"""What holds a clock down; `telemetry.throttle_causes` tells causes apart, and what they are together.
Masks of causes are not here: converters tell each bit as a status."""
EDGE = Quantity(
    "edge_temperature",
    "c",
    -273.15,
    1e4,
    (Told(r"temperature edge", _CELSIUS),),
    is_straight=True,
)
"""Of the die's edge: all that CharLLM-PPT and older tools sample on AMD."""
UTILIZATION = Quantity(
    "utilization", "share", 0.0, 1.0, (Told(r"GFX activity(?: XCP 0)?", {"%": 0.01}),)
)
"""How much of the time something ran, as the tool says."""

QUANTITIES = (GFXCLK, MEMCLK, POWER, TEMPERATURE, THROTTLE)

ENERGY_UNITS = dict.fromkeys(("amd-smi", "rocm-smi"), 2.0**-16 / 15.3e-6)
"""Tools that round the unit of the hardware's energy counter → what theirs is to be multiplied by."""

NUMBERED_AS_LANES = ("rpd",)
"""Tools that number GPUs of the node's series as they number those of their operations."""

PARTITION = re.compile(r".* XCP (\d+)(?: XCD \d+)?")
"""Name of a series of one partition of a GPU."""

WINDOW = re.compile(r"(?:duration|energy|mean power) of .+")
"""Name of a series of windows that were measured as a whole, told where they begin."""

DUAL_DIE = re.compile(r"MI250|MI250X", re.IGNORECASE)
"""GPUs that are one of two dies on a module, of which the first tells the power of both."""
