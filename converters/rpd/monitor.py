"""Monitored values of an rpd database: clocks of GPUs while the program ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.converters.rocm.database_parts import whole_numbers
from chopper_interop.converters.rpd.tables import UNITS
from chopper_interop.io.sqlite import TEXT
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.converters.rocm.database_parts import Columns
    from chopper_interop.converters.rpd.joined_tables import RpdTables

MONITORED = Fault.info_of_events("value-monitored", "Monitored values became samples of series.")
NO_NUMBER = Fault.loss_of_events(
    "monitor-without-number",
    "Monitored values that are no numbers, or have no time, were left out.",
)
ENDS_BEFORE = Fault.loss(
    "monitor-ends-before-start",
    "Monitored values that end before they start: the value is taken at its start alone.",
)
DEVICE_UNKNOWN = Fault.info(
    "monitor-device-unknown",
    "GPUs are monitored by numbers of the management tool, and the "
    "database does not say which of them the GPUs of its operations are; their series belong to "
    "the node. --map-device states it, as rpd:0=rank0.",
)

_NUMBER = r"^\s*[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?\s*$"


def add_monitors(builder: TraceBuilder, tables: RpdTables, gpus: set[int], issues: IssueLog) -> int:
    """Add monitored values as samples: where each begins, and where the last of a run ends.

    Returns
    -------
    int
        Number of rows.
    """
    columns = whole_numbers(("deviceId", "start", "end"))
    texts = dict.fromkeys(("deviceType", "monitorType", "value"), TEXT)
    table = tables.read("rocpd_monitor", columns | texts)
    if not table.count:
        return 0
    where = tables.base.path.name
    text = arrow.single_chunk(table.table["value"])
    is_number = pc.match_substring_regex(text, _NUMBER)
    numbers = pc.if_else(is_number, pc.utf8_trim_whitespace(text), pa.nulls(1, pa.string())[0])
    value = arrow.to_numpy(numbers.cast(pa.float64()), np.nan)
    timed = table.known("start") & (table.number("start") > 0)
    kept = np.flatnonzero(np.isfinite(value) & timed)
    issues.add(NO_NUMBER, table.count - len(kept), where)
    issues.add(MONITORED, len(kept), where)
    end = table.number("end", 0)[kept]
    early = np.count_nonzero((end > 0) & (end < table.number("start")[kept]))
    issues.add(ENDS_BEFORE, early, where)
    _add(builder, table, kept, value, gpus, issues)
    return table.count


def _add(
    builder: TraceBuilder,
    columns: Columns,
    kept: Array,
    value: Array,
    gpus: set[int],
    issues: IssueLog,
) -> None:
    kind, quantity = (columns.encoded(c) for c in ("deviceType", "monitorType"))
    codes = [arrow.to_numpy(c, -1).astype(np.int64)[kept] for c in (kind, quantity)]
    number = columns.number("deviceId")[kept]
    first, series = gather.distinct(*codes, number)
    kinds, quantities = ([*c.dictionary.to_pylist(), ""] for c in (kind, quantity))
    device = _devices({int(n) for n in number}, gpus)
    if not device:
        issues.add(DEVICE_UNKNOWN, len(np.unique(number)))
    rows = []
    for i in first.tolist():
        device_kind, measured = kinds[codes[0][i]] or "", quantities[codes[1][i]] or ""
        place = device.get(int(number[i]), -1)
        name = measured if place >= 0 else f"{device_kind} {int(number[i])} {measured}".strip()
        rows.append(builder.series(-1, name, UNITS.get(measured.lower(), ""), "rpd", device=place))
    start, end = columns.number("start")[kept], columns.number("end", 0)[kept]
    order = np.lexsort((start, series))
    following = np.append(start[order][1:], 0)
    lasts = np.append(series[order][1:] != series[order][:-1], True)
    stops = (lasts | (end[order] != following)) & (end[order] > start[order])
    stop = order[stops]
    series_of_sample = np.array(rows, np.int32)[np.concatenate([series, series[stop]])]
    builder.samples(
        series_of_sample,
        np.concatenate([start, end[stop]]),
        value[kept][np.concatenate([np.arange(len(kept)), stop])],
    )


def _devices(monitored: set[int], gpus: set[int]) -> dict[int, int]:
    """Monitored number → GPU of the operations, where all GPUs of the node are used; else empty."""
    if len(monitored) != len(gpus):
        return {}
    return dict(zip(sorted(monitored), sorted(gpus), strict=True))
