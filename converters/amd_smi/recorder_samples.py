"""Samples of the recorder: AMD's ``gpu_metrics`` with three clocks in every row.

The columns ``realtime_ns``, ``monotonic_ns`` and ``boottime_ns`` were read one after the other while
reading ``gpu``; ``system_clock_counter`` is the driver's own time of the sample on the clock since
boot, and is used where it is present. The other columns are values (`recorder_lanes`);
unknown ones keep their name.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chopper_interop.arrays import Array, arrow
from chopper_interop.build import TraceBuilder
from chopper_interop.converters.amd_smi import recorder_clocks
from chopper_interop.converters.amd_smi import recorder_csv as file
from chopper_interop.converters.amd_smi import recorder_lanes as columns
from chopper_interop.converters.amd_smi.recorder_lanes import DEVICE_CLOCKS, LANES
from chopper_interop.converters.sampling import faults, lane_names, series
from chopper_interop.converters.sampling import values as sampling_values
from chopper_interop.converters.sampling.cells import CellColumn, cell_of_text
from chopper_interop.converters.sampling.lane_names import Name, name_by_key
from chopper_interop.converters.sampling.rows import devices_by_index, source_of_file
from chopper_interop.converters.sampling.units import factor
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.meta import Meta
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.converters.amd_smi.recorder_clocks import Clocks

    Readings = list[sampling_values.LaneValues]

NO_CLOCK = Fault.loss_of_events(
    "row-without-clock", "Rows without a real time or a GPU were left out."
)
SAME_SAMPLE = Fault.info_of_events(
    "sample-read-again", "Rows that repeat the driver's previous sample were left out."
)
LEFT_OUT = Fault.info(
    "column-left-out", "Columns that count a device's own time hold no samples and were left out."
)

SOURCE = "recorder"


def read(paths: list[Path]) -> Trace:
    """Read one file of the recorder.

    Parameters
    ----------
    paths
        The file, alone in a list.

    Returns
    -------
    Trace
        Without nodes: one series for each value of each GPU, its samples in nanoseconds since 1970,
        and in ``meta.offsets`` how the node's clocks relate.

    Raises
    ------
    ReadError
        It cannot be opened, or has not the columns of a recorder.
    """
    (path,) = paths
    issues = IssueLog(str(path))
    table, events = file.load(path, inputs.read(path, issues), issues)
    issues.add(faults.EMPTY, int(not events))
    clocks = recorder_clocks.clocks_of_table(table)
    again = clocks.usable & _read_again(table, clocks)
    kept = clocks.usable & ~again
    issues.add(NO_CLOCK, np.count_nonzero(~clocks.usable))
    issues.add(SAME_SAMPLE, np.count_nonzero(again))
    issues.add(faults.SAMPLED, np.count_nonzero(kept))
    table, clocks = arrow.take(table, kept), clocks.where(kept)
    time, uncertainty_ns = recorder_clocks.times(clocks, issues)
    builder = TraceBuilder(_meta(path, clocks, events))
    none = np.full(len(time), -1)
    readings = series.ordered(_readings(table, issues))
    for device, is_of_host in ((clocks.gpu, False), (none, True)):
        groups = series.groups_of(device, none, time)
        writer = series.LaneWriter(builder, groups, SOURCE, uncertainty_ns, issues)
        writer.add([r for r in readings if r.key.startswith(columns.HOST) == is_of_host])
    return builder.finish().with_meta(issues=tuple(issues))


def _read_again(table: pa.Table, clocks: Clocks) -> Array:
    """Mask of rows that repeat the GPU's previous sample: the driver keeps one for a millisecond."""
    again = np.zeros(table.num_rows, bool)
    order = np.argsort(clocks.gpu, kind="stable")
    later, earlier = order[1:], order[:-1]
    counter = file.integer_column(table, columns.SAMPLED_AT)
    same = (clocks.gpu[later] == clocks.gpu[earlier]) & (counter[later] == counter[earlier])
    same &= (clocks.at[later] >= 0) & (clocks.at[earlier] >= 0)
    later, earlier = later[same], earlier[same]
    for name in table.column_names if later.size else ():
        if name not in columns.INTEGERS:
            values = table[name].combine_chunks()
            alike = _equal(arrow.take(values, later), arrow.take(values, earlier))
            later, earlier = later[alike], earlier[alike]
    again[later] = True
    return again


def _equal(a: pa.Array, b: pa.Array) -> Array:
    """Mask of rows in which two columns have the same value, or none."""
    return arrow.to_numpy(pc.equal(a, b)) | ~(arrow.is_valid(a) | arrow.is_valid(b))


def _readings(table: pa.Table, issues: IssueLog) -> Readings:
    result: Readings = []
    for key in table.column_names:
        if key in DEVICE_CLOCKS:
            issues.add(LEFT_OUT, 1, key)
        elif key not in columns.INTEGERS:
            name = lane_names.meaning(key, LANES) or name_by_key(key)
            texts = pa.types.is_string(table[key].type)
            result += (_readings_of_texts if texts else _readings_of_numbers)(
                key, table[key], name, issues
            )
    return result


def _readings_of_numbers(
    key: str, column: pa.ChunkedArray, name: Name, issues: IssueLog
) -> Readings:
    value = arrow.to_numpy(column, np.nan).copy()
    sentinel = np.isin(value, list(sampling_values.sentinels(name.lane)))
    issues.add(faults.SENTINEL, np.count_nonzero(sentinel), key)
    value[sentinel] = np.nan
    unit = name.lane.unit or ""
    scale = factor(name.lane.bare or unit, unit) or 1.0
    with np.errstate(over="ignore"):  # garbled cells may hold any number
        value *= scale
    infinite = np.isinf(value)
    issues.add(faults.GARBLED, np.count_nonzero(infinite), key)
    value[infinite] = np.nan
    return [sampling_values.LaneValues(key, name, name.full, unit, value)]


def _readings_of_texts(key: str, column: pa.ChunkedArray, name: Name, issues: IssueLog) -> Readings:
    """Return the readings of a column of lists, or of one with words among its numbers."""
    encoded = arrow.fill_null(column.combine_chunks(), "").dictionary_encode()
    cells = [cell_of_text(text) for text in encoded.dictionary.to_pylist()]
    row = np.arange(len(encoded), dtype=np.int64)
    cells_column = CellColumn(key, row, arrow.to_numpy(encoded), cells)
    return sampling_values.readings(cells_column, name, len(encoded), issues)


def _meta(path: Path, clocks: Clocks, events: int) -> Meta:
    return Meta(
        job=inputs.plain_name(path),
        offsets=clocks.offsets(),
        devices=devices_by_index(clocks.gpu[clocks.gpu >= 0], SOURCE),
        sources=(source_of_file(path, "recorder", SOURCE, events),),
    )
