"""Tables of a report that are sorted and filtered in the page: columns with units, plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.errors import MissingDataError
from chopper_interop.plots import style

if TYPE_CHECKING:
    from chopper_interop.report.gather import JobResults

MAX_ROWS = 2000
"""Rows of a table; of more, the first, which are those with most time."""


@dataclass(frozen=True)
class View:
    """A table of a report.

    Parameters
    ----------
    section, title
        Its place and heading.
    analysis, by
        The analysis whose rows it shows, and their groups.
    columns
        Column of the rows → heading with its unit, and the divisor to that unit.
    """

    section: str
    title: str
    analysis: str
    by: str
    columns: dict[str, tuple[str, float]]


_DURATIONS = {
    "count": ("count", 1.0), "total_ns": ("total (ms)", 1e6), "share": ("share (%)", 0.01),
    "mean_ns": ("mean (µs)", 1e3), "median_ns": ("median (µs)", 1e3), "p95_ns": ("95 % (µs)", 1e3),
    "max_ns": ("max (µs)", 1e3), "outliers": ("outliers", 1.0), "tflop_per_s": ("TFLOP/s", 1.0),
    "mem_gbps": ("GB/s", 1.0), "gfxclk_mhz": ("clock (MHz)", 1.0), "energy_j": ("energy (J)", 1.0),
}  # fmt: skip
_RATES = ("tflop_per_s", "mem_gbps")
FINDINGS = View(
    "Summary", "Findings", "findings", "",
    {
        "finding": ("finding", 1.0), "saves_ns": ("saves (ms)", 1e6),
        "saves_low_ns": ("from (ms)", 1e6), "saves_high_ns": ("to (ms)", 1e6),
        "share": ("of step (%)", 0.01), "ranks": ("ranks", 1.0), "where": ("where", 1.0),
        "certainty": ("certainty", 1.0), "command": ("command", 1.0),
    },
)  # fmt: skip
VIEWS = (
    View("Kernels", "All kernels", "kernels", "class,kernel",
         {"kernel": ("kernel", 1.0), "class": ("class", 1.0)} | _DURATIONS),
    View("Kernels", "All operations", "kernels", "operation,phase",
         {"operation": ("operation", 1.0), "phase": ("phase", 1.0)} | _DURATIONS),
)  # fmt: skip


def table(job: JobResults, view: View) -> dict[str, Any] | None:
    """Columns and rows of a view; None where there is nothing to show."""
    try:
        rows = job.result(view.analysis, **({"by": view.by} if view.by else {})).rows
    except MissingDataError:
        return None
    columns = [name for name in view.columns if name in rows.column_names]
    columns = [name for name in columns if rows[name].null_count < rows.num_rows]
    frame = rows.select(columns).slice(0, MAX_ROWS).to_pandas()
    # what has a rate of 0 is work whose FLOPs or bytes are not known, amid fills that have none
    of_rates = [name for name in columns if name in _RATES]
    frame[of_rates] = frame[of_rates].replace(0.0, np.nan)
    for name in columns:
        divisor = view.columns[name][1]
        if divisor != 1.0:
            frame[name] = frame[name].astype(float) / divisor
    values = [list(record.values()) for record in style.records(frame)]
    left_out = rows.num_rows - len(values)
    heads = [view.columns[name][0] for name in columns]
    return {"columns": heads, "rows": values, "left_out": left_out} if values else None
