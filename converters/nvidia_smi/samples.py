"""Samples of nvidia-smi: ``--query-gpu`` as CSV, ``dmon``, and ``-q`` as text or XML.

One row is one GPU at one time. Rows become samples of one lane for each value, which is named as
for any other tool (`lanes`). Times are those of a wall clock without its zone
(`sampling.wall_clock`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.converters.nvidia_smi import csv, dmon, lanes, log, nvml
from chopper_interop.converters.nvidia_smi import faults as own_faults
from chopper_interop.converters.nvidia_smi.headers import DMON_HEADER
from chopper_interop.converters.nvidia_smi.nvml_lanes import PREFERRED
from chopper_interop.converters.nvidia_smi.sniff import Output, output_of
from chopper_interop.converters.nvidia_smi.table_builder import Identity, Table
from chopper_interop.converters.nvidia_smi.text_table import owners_of, timed_rows
from chopper_interop.converters.sampling import faults, rows
from chopper_interop.converters.sampling.text import decode_lines
from chopper_interop.converters.sampling.time_options import OF_LAST_ROWS, TimeOptions
from chopper_interop.converters.sampling.wall_clock import parse_zone, times_of_rows
from chopper_interop.errors import ReadError, UsageError
from chopper_interop.io import inputs
from chopper_interop.issues import IssueLog
from chopper_interop.registry import with_option_texts
from chopper_interop.trace import Trace

_MAX_GPUS = 64
"""Rows that come together are of at most so many GPUs. Chosen: four times as many as a node has."""

_APART_NS = 500_000_000
"""Rows that are so far apart are not of GPUs that were read together: those come within 100 ms."""

SOURCE = "nvidia-smi"
RULES = rows.LaneRules(nvml.named_by(lanes.meaning), PREFERRED)


class Options(NamedTuple):
    """Options of `read`."""

    tz: str | None
    columns: str | None
    date: str | None
    times: TimeOptions


@with_option_texts(OF_LAST_ROWS)
def read(  # noqa: PLR0913 - options of the format
    paths: list[Path],
    *,
    tz: str | None = None,
    columns: str | None = None,
    date: str | None = None,
    at_ns: int | None = None,
    period_ms: float | None = None,
    at: str | None = None,
) -> Trace:
    """Read one file of nvidia-smi.

    Parameters
    ----------
    paths
        The file, alone in a list.
    tz
        Zone of the machine that wrote it, ``Europe/Berlin`` or ``+02:00``: times are then real
        times. Without it they are those of a wall clock, unless the file states its zone.
    columns
        What stood behind ``--query-gpu=``, for CSV without a header. For ``dmon`` without one,
        its names, which begin with ``gpu``: ``"gpu pwr gtemp sm mem"``; say ``--from nvidia-smi``
        then, as nothing in such a file identifies it.
    date
        Day of the first row, ``2024-05-01``, for ``dmon -o T``.
    period_ms
        Time between rows of a file without times, milliseconds.

    Returns
    -------
    Trace
        Without nodes: one series for each value of each GPU, and its samples.

    Raises
    ------
    ReadError
        It cannot be opened, or has no header and `columns` is missing.
    UsageError
        An option makes no sense.
    """
    (path,) = paths
    options = Options(tz, columns, date, TimeOptions(at_ns, at, period_ms))
    issues = IssueLog(str(path))
    parse_zone(options.tz)  # which may be wrong, although no row needs it
    if options.date is not None and not dmon.next_day(options.date, 0):
        raise UsageError(f"-O date={options.date}: that is no day; say it as 2024-05-01")
    text = decode_lines(inputs.read(path, issues))
    table = _table(path, text, options, issues)
    issues.add(faults.EMPTY, int(not table.events))
    table, no_gpu = with_gpus(table, options.tz)
    owners = owners_of(table, SOURCE)
    timed = timed_rows(table, no_gpu, owners, options.tz, options=options.times, path=path)
    source = rows.source_of_file(path, "nvidia-smi", SOURCE, table.events)
    return rows.trace_of_rows(timed, source, owners.devices, table.facts, RULES, issues)


def _table(path: Path, text: str, options: Options, issues: IssueLog) -> Table:
    columns = options.columns
    output = output_of(text[: inputs.HEAD_BYTES].encode("utf-8", "replace"))
    if output is Output.DMON or DMON_HEADER.match(f"# {columns}"):
        return dmon.read(text, options.date, issues, columns or "")
    if output is Output.LOG:
        return log.read_text(text, issues)
    if output is Output.XML:
        return log.read_xml(text, issues)
    table = csv.read(text, columns, issues)
    if not columns and table.events and not len(table.gpu) and not table.columns:
        headless = [i for i in issues if i.code == own_faults.NO_HEADER.code]
        if headless and headless[0].count == table.events:
            raise ReadError(
                "it has no header, so that its columns are unknown",
                path=path,
                hint="say -O columns=<what stood behind --query-gpu=>",
            )
    return table


def with_gpus(table: Table, tz: str | None) -> tuple[Table, Array]:
    """The table with GPUs by order if no row names its GPU, and a mask of rows without a GPU.

    Rows that have neither a GPU nor a time are of one GPU, as each is a time of its own.
    """
    silent = np.array([not gpu.is_known for gpu in table.gpus], bool)[table.gpu]
    if not (silent.any() and silent.all()):
        return table, silent
    time = times_of_rows(table.stamp, tz, IssueLog()).ns
    count = _rows_a_tick(time)
    if count is None:
        return table, silent
    fault = own_faults.BY_ORDER if count > 1 else own_faults.ONE_GPU
    table.issues.add(fault, len(table.gpu), f"{count} GPUs" if count > 1 else "")
    place = np.arange(len(table.gpu)) % count
    first, gpu = gather.distinct(place, table.gpu)
    gpus = [
        Identity(number=str(row % count), name=table.gpus[table.gpu[row]].name)
        for row in first.tolist()
    ]
    return replace(table, gpu=gpu, gpus=gpus), np.zeros(len(gpu), bool)


def _rows_a_tick(time: Array) -> int | None:
    """Number of rows that are written at each tick; None if it varies."""
    if (time < 0).all() or len(time) < 2:  # noqa: PLR2004 - a gap needs two
        return 1
    if (time < 0).any():
        return None
    gap = np.diff(time)
    place = np.arange(len(gap))
    for count in range(2, min(_MAX_GPUS, len(time) // 2) + 1):
        between = place % count == count - 1
        if gap[between].min() > 4 * gap[~between].max() and (gap[~between] >= 0).all():
            return count
    usual = float(np.median(gap))
    if gap.min() >= _APART_NS:
        return 1
    ticks = np.count_nonzero(gap > 16 * usual)  # rows of one GPU pause, but not this often
    return 1 if gap.min() * 4 > usual > 0 and ticks * _MAX_GPUS < len(time) else None
