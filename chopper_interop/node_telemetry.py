"""What telemetry says of each piece of GPU work: clock, power, temperature of its GPU meanwhile."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import arrow
from chopper_interop.schemas.kinds import GPU_WORK

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]

TELEMETRY: dict[str, re.Pattern[str]] = {
    "gfxclk_mhz": re.compile(r"gfx clock( XCD \d+)?$"),
    "power_w": re.compile(r"socket power$"),
    "temperature_c": re.compile(r"temperature (hotspot|GPU)$"),
}
"""Annotation column → names of the series that it is the mean of."""


def columns(trace: Trace) -> dict[str, pa.Array]:
    """Means over each piece of GPU work of what telemetry says of its rank's GPU."""
    series = trace.series.to_pylist()
    bounds = np.searchsorted(trace.array("series", "samples"), np.arange(len(series) + 1))
    on_gpu = np.isin(trace.array("kind"), [int(k) for k in GPU_WORK])
    columns = {}
    for column, names in TELEMETRY.items():
        values = np.full(trace.nodes.num_rows, np.nan)
        for r, rows in trace.rank_rows.items():
            told = [i for i, s in enumerate(series) if s["rank"] == r and names.match(s["name"])]
            best = min((series[i]["uncertainty_ns"] for i in told), default=None)
            parts = [slice(*bounds[i : i + 2]) for i in told if series[i]["uncertainty_ns"] == best]
            if parts:
                mine = np.flatnonzero(on_gpu[rows]) + rows.start
                values[mine] = np.mean([_means(trace, mine, part) for part in parts], axis=0)
        if not np.isnan(values).all():
            columns[column] = arrow.array(values, mask=np.isnan(values))
    return columns


def _means(trace: Trace, nodes: Array, samples: slice) -> Array:
    """Time-weighted mean over each node of samples that hold until the next; NaN outside them."""
    ts, value = trace.array("ts", "samples")[samples], trace.array("value", "samples")[samples]
    start = trace.array("ts")[nodes]
    end = start + trace.array("dur")[nodes]
    area = np.concatenate([[0.0], np.cumsum(np.diff(ts) * value[:-1])])

    def until(moment: Array) -> tuple[Array, Array]:
        at = np.clip(np.searchsorted(ts, moment, "right") - 1, 0, len(ts) - 1)
        return area[at] + (moment - ts[at]) * value[at], value[at]

    first, at_start = until(start)
    last, _ = until(end)
    mean = np.where(end > start, (last - first) / np.maximum(end - start, 1), at_start)
    return np.where((start >= ts[0]) & (end <= ts[-1]), mean, np.nan)
