"""Times of the recorder's samples, from the clocks in every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, arrow
from chopper_interop.converters.amd_smi import recorder_csv as file
from chopper_interop.converters.amd_smi import recorder_lanes as columns
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.meta import BOOTTIME, Offset

if TYPE_CHECKING:
    import pyarrow as pa


FAR_CLOCK = Fault.info(
    "sample-clock-far",
    "Samples whose own time differs from the recorder's by more than a minute got the recorder's.",
)
UNSTEADY = Fault.info(
    "clocks-moved",
    "The wall clock was set while the recorder ran, or the recorder was interrupted "
    "between reading its clocks; `series.uncertainty_ns` holds the largest error of the times.",
)

NO_GPU = -1
"""Number in rows of the host alone."""
MONOTONIC = "monotonic"
"""Nanoseconds since the node was booted, without sleep (Linux ``CLOCK_MONOTONIC``)."""
_LATEST_NS = 4_000_000_000_000_000_000
"""Beyond this, sums and differences of clocks leave 64 bits."""
_LARGEST_GPU = (1 << 31) - 1
_FAR_NS = 60_000_000_000
"""Chosen: far beyond any delay of a read; a larger difference means another clock."""
_UNSTEADY_NS = 1_000_000
"""Chosen: reading the clocks one after the other takes microseconds."""


@dataclass(frozen=True)
class Clocks:
    """Clocks and GPU of each row.

    Parameters
    ----------
    usable
        Mask of rows that have a real time and a GPU, or are of the host.
    real, gpu
        Real time, nanoseconds, and GPU of each row.
    since
        Real time minus another clock of the node, by the name of that clock; 0 where unknown.
    at
        Real time of the sample by the driver; -1 where it is unknown.
    far
        Mask of rows whose time by the driver is impossible.
    """

    usable: Array
    real: Array
    gpu: Array
    since: dict[str, Array]
    at: Array
    far: Array

    def where(self, keep: Array) -> Clocks:
        """Return the clocks of some rows."""
        since = {name: values[keep] for name, values in self.since.items()}
        usable, real, gpu = self.usable[keep], self.real[keep], self.gpu[keep]
        return Clocks(usable, real, gpu, since, self.at[keep], self.far[keep])

    def offsets(self) -> tuple[Offset, ...]:
        """Return the offsets of the node's clocks: medians, uncertain by the spread of all rows."""
        known = {name: values[values != 0] for name, values in self.since.items()}
        return tuple(
            Offset(name, int(np.sort(values)[len(values) // 2]), _spread(values))
            for name, values in known.items()
            if values.size
        )


def clocks_of_table(table: pa.Table) -> Clocks:
    """Read the clocks of a recorder's rows."""
    real, gpu, boot, mono, counter = (
        _possible_or_unknown(file.integer_column(table, name), largest)
        for name, largest in (
            (columns.REALTIME, _LATEST_NS),
            (columns.GPU, _LARGEST_GPU),
            (columns.BOOTTIME, _LATEST_NS),
            (columns.MONOTONIC, _LATEST_NS),
            (columns.SAMPLED_AT, _LATEST_NS),
        )
    )
    since = {
        name: np.where((clock > 0) & (real > 0), real - clock, 0)
        for name, clock in ((BOOTTIME, boot), (MONOTONIC, mono))
    }
    has_both = (counter > 0) & (boot > 0)
    far = has_both & (np.abs(counter - boot) > _FAR_NS)
    at = np.where(has_both & ~far, counter + since[BOOTTIME], -1)
    is_host = arrow.to_numpy(table[columns.GPU], _LARGEST_GPU) == NO_GPU
    return Clocks((real > 0) & ((gpu >= 0) | is_host), real, gpu, since, at, far)


def _possible_or_unknown(values: Array, largest: int) -> Array:
    """Replace impossible numbers by -1."""
    return np.where((values >= 0) & (values <= largest), values, -1)


def times(clocks: Clocks, issues: IssueLog) -> tuple[Array, int]:
    """Return the time of each sample, nanoseconds since 1970, and their largest error.

    The driver's time is exact on the clock since boot. Converting it to real time by the two clocks
    of its row adds the time that passed between reading them. As both clocks run equally fast, their
    difference varies by that time alone, so its spread over the file bounds the error. Without the
    driver's time a sample gets that of its row, from which it was read at most one step between rows
    away.
    """
    issues.add(FAR_CLOCK, np.count_nonzero(clocks.far))
    driver = clocks.at >= 0
    uncertainty_ns = 0
    if driver.any():
        uncertainty_ns = _spread(clocks.since[BOOTTIME][driver])
        issues.add(UNSTEADY, int(uncertainty_ns > _UNSTEADY_NS), f"{uncertainty_ns} ns")
    if not driver.all():
        uncertainty_ns = max(uncertainty_ns, _step_ns(clocks))
    return np.where(driver, clocks.at, clocks.real), uncertainty_ns


def _spread(values: Array) -> int:
    return int(values.max() - values.min()) if values.size else 0


def _step_ns(clocks: Clocks) -> int:
    """Longest time from a row to the next of the same tick; with one GPU, to its next row."""
    step = np.diff(clocks.real)
    within = np.diff(clocks.gpu) > 0
    step = step[within] if within.any() else step
    return int(step.max()) if step.size and step.max() > 0 else 0
