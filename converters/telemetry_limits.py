"""What a machine cannot measure: one table of least and most by unit, and how it is told.

The limits are far beyond what any GPU reaches, so that only a garbled value, a wrong unit or a
counter that was set back is outside. Values stay as they are.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

IMPOSSIBLE = Fault(
    "value-impossible",
    Severity.ERROR,
    "Samples of which no machine has so much or so little (negative power, clocks over 100 GHz, "
    "power over 100 kW, 200 % and more) were taken as they are: see what wrote them.",
)

LIMITS: dict[str, tuple[float, float]] = {
    "W": (0.0, 1e5),
    "MHz": (0.0, 1e5),
    "%": (0.0, math.nextafter(200.0, 0.0)),
    "°C": (-273.15, 1e4),
    "J": (0.0, math.inf),
    "B": (0.0, math.inf),
    "s": (0.0, math.inf),
}
"""Unit of a lane → the least and the most that it can have."""

OTHERWISE: tuple[tuple[str, tuple[float, float]], ...] = (
    (r"GFX busy accumulated.*", (0.0, math.inf)),
    (r".*overdrive.*", (-100.0, math.inf)),
    (r".*fan .*", (0.0, math.inf)),
    (r"duration of .*", (math.nextafter(0.0, 1.0), math.inf)),
)
"""Names of lanes to which others apply: sums, settings, fans beyond what they are rated for, and
windows, which take some time."""


def note_impossible(name: str, unit: str, value: Array, issues: IssueLog) -> None:
    """Count samples of a lane that are beyond its limits.

    Parameters
    ----------
    name, unit
        Name and unit of the lane.
    value
        Its samples.
    issues
        Where they are counted.
    """
    if unit not in LIMITS:
        return
    other = (limits for pattern, limits in OTHERWISE if re.fullmatch(pattern, name))
    least, most = next(other, LIMITS[unit])
    outside = (value < least) | (value > most)
    if outside.any():
        first = f"{name}: {value[outside][0]:g} {unit}"
        issues.add(IMPOSSIBLE, np.count_nonzero(outside), first)
