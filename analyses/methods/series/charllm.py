"""Averages of telemetry and volumes of links as CharLLM-PPT's figures define them (dad5f278)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, arrow
from chopper_interop.errors import NoSuchDefinitionsError, UsageError

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.series.samples import Series

NAME = "charllm"
AVERAGES = {
    "definition": "CharLLM-PPT dad5f278, calculate_average_metric: the sum of each value times the "
    "time to the next sample by the sum of these times; peaks are of all samples",
    "window": "all samples, whether the GPU worked or not",
    "links": "nothing of the trace but its telemetry counts",
    "gaps": "a value holds until the next sample, however late that is",
    "units": "GHz for MHz; GB/s, of 1024**2 KB/s each, for throughput of PCIe",
    "differs": "it is computed for any telemetry and of all of its metrics; of clocks and throughput "
    "CharLLM-PPT gives no peak; samples of -1, which it averages, were left out as files were read",
    "memset and copies": "do not matter",
    "left out": "nothing",
}
VOLUMES = {
    "definition": "CharLLM-PPT dad5f278, calculate_average_metric: the sum of differences; where a "
    "counter falls, (2**32 - 1 - before) + after, which is one short, for counters of any width",
    "window": "all samples, whether the GPU worked or not",
    "links": "nothing of the trace but its telemetry counts",
    "units": "NVLink KiB / 1024**2 and PCIe B / 1024**3 are called GB, InfiniBand B / 1024**2 MB",
    "differs": "it is computed of each GPU and each node; InfiniBand is summed over all devices whose "
    "names begin with ib, of pairs of files alone in CharLLM-PPT",
    "memset and copies": "do not matter",
}
_KB_IN_MBIT = 8e-3
"""Megabits of a kilobyte."""
_WRAP = float(1 << 32)
_VOLUMES = (
    (re.compile(r"NVLink bytes (?P<way>sent|received).*"), "NVLink", 1024.0, 1024.0**2, "GB"),
    (re.compile(r"PCIe bytes (?P<way>sent|received).*"), "PCIe", 1.0, 1024.0**3, "GB"),
    (re.compile(r"InfiniBand (?:ib\S*) bytes (?P<way>sent|received)"), "InfiniBand", 1.0, 1024.0**2, "MB"),
)  # fmt: skip
"""Series, link, bytes of a count, counts of a unit, the unit's name."""


def check(compat: str, options: dict[str, bool]) -> None:
    """Check that the definitions are known, and requested without other options.

    Raises
    ------
    UsageError
        They are unknown, or requested with options that they do not have.
    """
    if compat != NAME:
        raise NoSuchDefinitionsError(f"compat={compat}: there is {NAME}")
    for option, given in options.items():
        if given:
            raise UsageError(
                f"compat={NAME} has rows of ranks over all samples", hint=f"leave {option} out"
            )


def averages(all_series: Sequence[Series]) -> pa.Table:
    """Average and peak of each series in the units of its figures."""
    rows = [_average(series) for series in all_series]
    types = {
        "rank": pa.int32(), "device": pa.int32(), "name": pa.string(), "unit": pa.string(),
        "source": pa.string(), "mean": pa.float64(), "max": pa.float64(), "samples": pa.int64(),
    }  # fmt: skip
    return pa.Table.from_pylist(rows, pa.schema(types))


def _average(series: Series) -> dict[str, Any]:
    ts, value = (column[: series.count] for column in (series.samples.ts, series.samples.value))
    step = np.diff(ts)
    mean = float(np.sum(value[:-1] * step) / step.sum()) if step.sum() else None
    unit, factor = _unit(series)
    return {
        "rank": series.place.rank if series.place.rank >= 0 else None,
        "device": series.place.device if series.place.device >= 0 else None,
        "name": series.name,
        "unit": unit,
        "source": series.source,
        "mean": None if mean is None else mean * factor,
        "max": float(value.max()) * factor,
        "samples": len(ts),
    }


def _unit(series: Series) -> tuple[str, float]:
    if series.unit == "MHz":
        return "GHz", 1e-3
    if series.unit == "Mb/s" and series.name.startswith("PCIe"):
        return "GB/s", 1 / _KB_IN_MBIT / 1024**2
    return series.unit, 1.0


def volumes(all_series: Sequence[Series]) -> pa.Table:
    """Volume over each link of each GPU, and over InfiniBand of each node."""
    total: dict[tuple[int, str, str, str], float] = {}
    for series in all_series:
        for pattern, link, size, unit, name in _VOLUMES:
            match = pattern.fullmatch(series.name)
            if match:
                key = (series.place.rank, link, match["way"], name)
                value = series.samples.value
                if link != "InfiniBand":  # which reading has carried on beyond 32 bits
                    value = np.mod(value, _WRAP * size)
                total[key] = total.get(key, 0.0) + _volume(value, size) / unit
    ranks = np.array([key[0] for key in total], np.int32)
    texts = {c: [key[i] for key in total] for i, c in ((1, "link"), (2, "direction"), (3, "unit"))}
    columns: dict[str, Any] = {"rank": arrow.negative_to_null(ranks)}
    columns |= {c: pa.array(values, pa.string()) for c, values in texts.items()}
    columns["amount"] = pa.array(list(total.values()), pa.float64())
    return pa.table(columns)


def _volume(value: Array, size: float) -> float:
    """Counts between the first and the last sample, as if of a counter of 32 bits."""
    raw = value / size
    rise = np.diff(raw)
    return float(np.sum(np.where(rise < 0, _WRAP - 1 - raw[:-1] + raw[1:], rise)))
