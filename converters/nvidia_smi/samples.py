"""Samples of nvidia-smi: ``--query-gpu`` as CSV, ``dmon``, ``-q`` as text or XML, its table in a loop.

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
from chopper_interop.converters.nvidia_smi import csv, dmon, lanes, log, nvml, summary
from chopper_interop.converters.nvidia_smi import faults as own_faults
from chopper_interop.converters.nvidia_smi.headers import DMON_HEADER
from chopper_interop.converters.nvidia_smi.nvml_lanes import PREFERRED
from chopper_interop.converters.nvidia_smi.sniff import Output, output_of
from chopper_interop.converters.nvidia_smi.table_builder import Identity, Table
from chopper_interop.converters.nvidia_smi.text_table import owners_of, timed_rows
from chopper_interop.converters.sampling import faults, rows
from chopper_interop.converters.sampling.text import decode_lines
from chopper_interop.converters.sampling.time_options import OF_LAST_ROWS, TimeOptions
from chopper_interop.converters.sampling.timestamps import SECOND
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

_STEP_NS = 1_000_000
"""Shorter gaps are equal: nvidia-smi writes milliseconds."""

_COMPLETE = 10
"""At most one tick of so many lacks rows. Chosen: rows are lost rarely, and GPUs that answer late
and divide each tick (3, 2 and 3 rows of 8) are far above."""

_EQUAL = 20
"""Of so many gaps of one GPU's rows, less than one is not about as long as is usual, as rows pause.
Chosen: up to 20 GPUs have a gap of another length in each tick."""

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
    if output is Output.SUMMARY:
        return summary.read(text, issues)
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
    place = _places_in_ticks(times_of_rows(table.stamp, tz, IssueLog()).ns)
    kept = np.flatnonzero(place >= 0)
    if not len(kept):
        return table, silent
    count = int(place.max()) + 1
    fault = own_faults.BY_ORDER if count > 1 else own_faults.ONE_GPU
    table.issues.add(fault, len(kept), f"{count} GPUs" if count > 1 else "")
    first, of_kept = gather.distinct(place[kept], table.gpu[kept])
    rows = kept[first].tolist()
    gpus = [Identity(number=str(place[r]), name=table.gpus[table.gpu[r]].name) for r in rows]
    gpu = np.zeros(len(place), np.int64)
    gpu[kept] = of_kept
    return replace(table, gpu=gpu, gpus=gpus), place < 0


def _places_in_ticks(time: Array) -> Array:
    """Place of each row among those that were written together; -1 where others of them are missing.

    All are -1 if it is not certain how many rows are written together.
    """
    one, unknown = np.zeros(len(time), np.int64), np.full(len(time), -1, np.int64)
    if (time < 0).all() or len(time) < 2:  # noqa: PLR2004 - a gap needs two
        return one
    gap = np.diff(time)
    if (time < 0).any() or gap.min() < 0:
        return unknown
    if gap.min() >= _APART_NS:
        return one
    in_seconds = not (time % SECOND).any()  # a tick may have two, so that none may lack rows
    for between in _gaps_between_ticks(gap):
        starts = np.concatenate(([0], np.flatnonzero(gap >= between) + 1))
        sizes = np.diff(starts, append=len(time))
        complete = sizes == sizes.max()
        lacking = np.count_nonzero(~complete[not in_seconds : -1])  # the first and last may be cut
        if (
            1 < sizes.max() <= _MAX_GPUS
            and np.count_nonzero(complete) > 1
            and lacking * _COMPLETE <= (0 if in_seconds else len(sizes))
        ):
            place = np.arange(len(time)) - np.repeat(starts, sizes)
            return np.where(np.repeat(complete, sizes), place, -1)
    usual = float(np.median(gap))
    unlike = np.count_nonzero((gap > 1.5 * usual) | (1.5 * gap < usual))
    return one if gap.min() * 4 > usual > 0 and unlike * _EQUAL < len(time) else unknown


def _gaps_between_ticks(gap: Array) -> list[int]:
    """Gaps from which on ticks may end, the likeliest first: each four times all that are shorter, so that there are few."""
    lengths = np.unique(gap)
    shorter, longer = np.maximum(lengths[:-1], _STEP_NS), lengths[1:]
    may_be = (longer > 4 * lengths[:-1]) & (lengths[:-1] < _APART_NS)
    order = np.argsort(-(longer / shorter)[may_be], kind="stable")
    return [int(between) for between in longer[may_be][order]]
