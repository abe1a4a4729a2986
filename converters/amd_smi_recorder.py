"""The recorder's telemetry: a CSV of AMD's ``gpu_metrics`` with three clocks in every row.

Columns by name: ``realtime_ns``, ``monotonic_ns`` and ``boottime_ns`` were read one after the
other beside reading ``gpu``; ``system_clock_counter`` is the driver's own time of the sample on
the clock since boot, and is taken where it is there. The rest is values (`amd_smi_recorder_table`);
what that does not know keeps its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chopper_interop.build import TraceBuilder
from chopper_interop.columns import arrow
from chopper_interop.converters import (
    amd_smi_recorder_clocks,
    telemetry_names,
    telemetry_series,
    telemetry_values,
)
from chopper_interop.converters import amd_smi_recorder_file as file
from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters.amd_smi_recorder_table import DEVICE_CLOCKS, LANES
from chopper_interop.converters.telemetry_cells import Column, of_text
from chopper_interop.converters.telemetry_names import unknown
from chopper_interop.converters.telemetry_units import factor
from chopper_interop.files import inputs
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.registry import Converter
from chopper_interop.schemas.meta import Device, Meta, Source

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.amd_smi_recorder_clocks import Clocks
    from chopper_interop.converters.telemetry_names import Name
    from chopper_interop.trace import Trace

    Readings = list[telemetry_values.Reading]

NO_CLOCK = Fault(
    "row-without-clock",
    Severity.LOSS,
    "Rows without a real time or a GPU were left out.",
    events=True,
)
SAME_SAMPLE = Fault(
    "sample-read-again",
    Severity.INFO,
    "Rows that show the driver's previous sample once more were left out.",
    events=True,
)
LEFT_OUT = Fault(
    "column-left-out",
    Severity.INFO,
    "Columns that count a device's own time are no samples and were left out.",
)

SOURCE = "recorder"


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is a recorder's."""
    return file.is_recorder(file.names_of(head.partition(b"\n")[0]))


def read(paths: list[Path]) -> Trace:
    """Read one file of the recorder.

    Parameters
    ----------
    paths
        The file, alone in a list.

    Returns
    -------
    Trace
        Without nodes: one series for each value of each GPU, its samples in epoch nanoseconds,
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
    clocks = amd_smi_recorder_clocks.of_table(table)
    again = clocks.usable & _read_again(table, clocks)
    kept = clocks.usable & ~again
    issues.add(NO_CLOCK, np.count_nonzero(~clocks.usable))
    issues.add(SAME_SAMPLE, np.count_nonzero(again))
    issues.add(faults.SAMPLED, np.count_nonzero(kept))
    table, clocks = arrow.take(table, kept), clocks.where(kept)
    time, uncertainty_ns = amd_smi_recorder_clocks.times(clocks, issues)
    builder = TraceBuilder(_meta(path, clocks, events))
    groups = telemetry_series.groups_of(clocks.gpu, np.full(len(time), -1), time)
    lanes = telemetry_series.Lanes(builder, groups, SOURCE, uncertainty_ns, issues)
    lanes.add(telemetry_series.ordered(_readings(table, issues)))
    return builder.finish().with_meta(issues=tuple(issues))


def _read_again(table: pa.Table, clocks: Clocks) -> Array:
    """Rows that repeat the GPU's previous sample: the driver holds one for a millisecond."""
    again = np.zeros(table.num_rows, bool)
    order = np.argsort(clocks.gpu, kind="stable")
    later, earlier = order[1:], order[:-1]
    counter = file.whole(table, file.SAMPLED_AT)
    same = (clocks.gpu[later] == clocks.gpu[earlier]) & (counter[later] == counter[earlier])
    same &= (clocks.at[later] >= 0) & (clocks.at[earlier] >= 0)
    later, earlier = later[same], earlier[same]
    for name in table.column_names if later.size else ():
        if name not in file.WHOLE:
            values = table[name].combine_chunks()
            alike = _equal(arrow.take(values, later), arrow.take(values, earlier))
            later, earlier = later[alike], earlier[alike]
    again[later] = True
    return again


def _equal(a: pa.Array, b: pa.Array) -> Array:
    """Where two columns have the same value, or both none."""
    return arrow.numbers(pc.equal(a, b)) | ~(arrow.known(a) | arrow.known(b))


def _readings(table: pa.Table, issues: IssueLog) -> Readings:
    found: Readings = []
    for key in table.column_names:
        if key in DEVICE_CLOCKS:
            issues.add(LEFT_OUT, 1, key)
        elif key not in file.WHOLE:
            name = telemetry_names.meaning(key, LANES) or unknown(key)
            texts = pa.types.is_string(table[key].type)
            found += (_of_texts if texts else _of_numbers)(key, table[key], name, issues)
    return found


def _of_numbers(key: str, column: pa.ChunkedArray, name: Name, issues: IssueLog) -> Readings:
    value = arrow.numbers(column, np.nan).copy()
    stand_in = np.isin(value, list(telemetry_values.sentinels(name.lane)))
    issues.add(faults.SENTINEL, np.count_nonzero(stand_in), key)
    value[stand_in] = np.nan
    unit = name.lane.unit or ""
    scale = factor(name.lane.bare or unit, unit) or 1.0
    with np.errstate(over="ignore"):  # garbled cells may hold any number
        value *= scale
    endless = np.isinf(value)
    issues.add(faults.GARBLED, np.count_nonzero(endless), key)
    value[endless] = np.nan
    return [telemetry_values.Reading(key, name, name.full, unit, value)]


def _of_texts(key: str, column: pa.ChunkedArray, name: Name, issues: IssueLog) -> Readings:
    """Lanes of a column of lists, or of one in which words stand between numbers."""
    encoded = pc.fill_null(column.combine_chunks(), "").dictionary_encode()
    cells = [of_text(text) for text in encoded.dictionary.to_pylist()]
    row = np.arange(len(encoded), dtype=np.int64)
    whole = Column(key, row, arrow.numbers(encoded), cells)
    return telemetry_values.readings(whole, name, len(encoded), issues)


def _meta(path: Path, clocks: Clocks, events: int) -> Meta:
    gpus = [int(gpu) for gpu in np.unique(clocks.gpu)]
    size = path.stat().st_size
    return Meta(
        job=inputs.plain_name(path),
        offsets=clocks.offsets(),
        devices=tuple(Device("", gpu, "", SOURCE, index=gpu) for gpu in gpus),
        sources=(Source(str(path), RECORDER.name, "recorder", size=size, events=events),),
    )


RECORDER = Converter(
    name="recorder",
    description="telemetry of AMD GPUs by gpu_metrics, with three clocks a row",
    versions="gpu_metrics 1.3 to 1.8",
    suffixes=(".csv",),
    sniff=sniff,
    read=read,
    carries="power, clocks, temperatures, activity, energy, throttling as shares of time, at the "
    "driver's own times; how the node's clocks relate",
)
