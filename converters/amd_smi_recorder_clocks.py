"""When the recorder's samples were taken, by the clocks that stand in every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters import amd_smi_recorder_file as file
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.meta import BOOTTIME, Offset

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.columns.types import Array

FAR_CLOCK = Fault(
    "sample-clock-far",
    Severity.INFO,
    "Samples whose own time is more than a minute from the recorder's got the recorder's.",
)
UNSTEADY = Fault(
    "clocks-moved",
    Severity.INFO,
    "The wall clock was set while the recorder ran, or the recorder was held up between reading "
    "its clocks; `series.uncertainty_ns` says how far times may be off.",
)

MONOTONIC = "monotonic"
"""Nanoseconds since the node was booted, without sleep (Linux ``CLOCK_MONOTONIC``)."""
_LATEST_NS = 4_000_000_000_000_000_000
"""Beyond this, sums and differences of clocks leave 64 bits."""
_LARGEST_GPU = (1 << 31) - 1
_FAR_NS = 60_000_000_000
_UNSTEADY_NS = 1_000_000


@dataclass(frozen=True)
class Clocks:
    """Clocks and GPU of each row.

    Parameters
    ----------
    usable
        Whether a row has a real time and a GPU.
    real, gpu
        These.
    since
        Real time minus another clock of the node, by the name of that clock; 0 where unknown.
    at
        Real time of the sample by the driver; -1 where it does not tell.
    far
        Whether the driver tells a time that cannot be.
    """

    usable: Array
    real: Array
    gpu: Array
    since: dict[str, Array]
    at: Array
    far: Array

    def where(self, keep: Array) -> Clocks:
        """Those of some rows."""
        since = {name: values[keep] for name, values in self.since.items()}
        usable, real, gpu = self.usable[keep], self.real[keep], self.gpu[keep]
        return Clocks(usable, real, gpu, since, self.at[keep], self.far[keep])

    def offsets(self) -> tuple[Offset, ...]:
        """How the node's clocks relate: medians, uncertain by the spread of all rows."""
        known = {name: values[values != 0] for name, values in self.since.items()}
        return tuple(
            Offset(name, int(np.sort(values)[len(values) // 2]), _spread(values))
            for name, values in known.items()
            if values.size
        )


def of_table(table: pa.Table) -> Clocks:
    """Clocks of a recorder's rows."""
    real, gpu, boot, mono, counter = (
        _within(file.whole(table, name), largest)
        for name, largest in (
            (file.REALTIME, _LATEST_NS),
            (file.GPU, _LARGEST_GPU),
            (file.BOOTTIME, _LATEST_NS),
            (file.MONOTONIC, _LATEST_NS),
            (file.SAMPLED_AT, _LATEST_NS),
        )
    )
    since = {
        name: np.where((clock > 0) & (real > 0), real - clock, 0)
        for name, clock in ((BOOTTIME, boot), (MONOTONIC, mono))
    }
    told = (counter > 0) & (boot > 0)
    far = told & (np.abs(counter - boot) > _FAR_NS)
    at = np.where(told & ~far, counter + since[BOOTTIME], -1)
    return Clocks((real > 0) & (gpu >= 0), real, gpu, since, at, far)


def _within(values: Array, largest: int) -> Array:
    """Numbers as they are, those that cannot be as -1."""
    return np.where((values >= 0) & (values <= largest), values, -1)


def times(clocks: Clocks, issues: IssueLog) -> tuple[Array, int]:
    """Epoch nanoseconds of each sample, and how far they may be off.

    The driver's time is exact on the clock since boot; bringing it to real time by the same row
    costs what passed between reading both clocks. As these run alike, their difference only
    varies by that, and its spread over the file bounds it. Without the driver's time a sample is
    taken as of its row, and was read at most one step between rows away.
    """
    issues.add(FAR_CLOCK, np.count_nonzero(clocks.far))
    driver = clocks.at >= 0
    off = 0
    if driver.any():
        off = _spread(clocks.since[BOOTTIME][driver])
        issues.add(UNSTEADY, int(off > _UNSTEADY_NS), f"{off} ns")
    if not driver.all():
        off = max(off, _step_ns(clocks))
    return np.where(driver, clocks.at, clocks.real), off


def _spread(values: Array) -> int:
    return int(values.max() - values.min()) if values.size else 0


def _step_ns(clocks: Clocks) -> int:
    """Longest time from a row to the next of the same tick; of one GPU, to its next row."""
    step = np.diff(clocks.real)
    within = np.diff(clocks.gpu) > 0
    step = step[within] if within.any() else step
    return int(step.max()) if step.size and step.max() > 0 else 0
