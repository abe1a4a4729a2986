"""Samples of rocm-smi in all its forms.

A row is what one output says of one card; rows become samples of the lanes that amd-smi has.
rocm-smi writes no times: they are taken from the lines or columns that a loop added, else from
the options.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import gather
from chopper_interop.converters.amd_smi import (
    loop_times,
    rocm_smi_csv,
    rocm_smi_json,
    rocm_smi_lanes,
    rocm_smi_text,
)
from chopper_interop.converters.amd_smi.rocm_smi_records import SYSTEM, Record
from chopper_interop.converters.amd_smi.rocm_smi_table import FACT, LEVELS, VALUE, Key, RecordTable
from chopper_interop.converters.amd_smi.sniff import RocmSmiForm, rocm_smi_form
from chopper_interop.converters.sampling import facts, faults
from chopper_interop.converters.sampling import rows as sampling_rows
from chopper_interop.converters.sampling.cells import Rows, marked, renumbered
from chopper_interop.converters.sampling.text import decode
from chopper_interop.converters.sampling.time_options import OF_LAST_OUTPUT, TimeOptions
from chopper_interop.converters.sampling.timestamps import SECOND
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.registry import with_option_texts
from chopper_interop.schemas.meta import LOCALTIME, REALTIME, Device
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.rows import TimedRows

SOURCE = "rocm-smi"
RULES = sampling_rows.LaneRules(
    sampling_rows.named_by(rocm_smi_lanes.LANES), faults={"energy": faults.ENERGY}
)
_READERS = {
    RocmSmiForm.JSON: rocm_smi_json.read,
    RocmSmiForm.CSV: rocm_smi_csv.read,
    RocmSmiForm.TEXT: rocm_smi_text.read,
}

NO_TIME = Fault.loss_of_events(
    faults.NO_TIME.code,
    "rocm-smi writes no time, and a time is not made up: such rows were left out. Give "
    "-O at_ns=<epoch nanoseconds> or -O at=mtime, of a loop -O period_ms=<its period> too, or "
    "record with 'amd-smi metric -w 1 --csv'.",
)


@with_option_texts(OF_LAST_OUTPUT)
def read(
    paths: list[Path],
    *,
    at_ns: int | None = None,
    at: str | None = None,
    period_ms: float | None = None,
) -> Trace:
    """Read one file of rocm-smi.

    Parameters
    ----------
    paths
        The file, alone in a list.

    Returns
    -------
    Trace
        Without nodes: one series for each value of each card, and its samples; names and facts
        of the cards.

    Raises
    ------
    ReadError
        It cannot be opened or unpacked.
    UsageError
        Options are no times or contradict each other.
    """
    (path,) = paths
    options = TimeOptions(at_ns, at, period_ms)
    issues = IssueLog(str(path))
    data = inputs.read(path, issues)
    form = rocm_smi_form(data[: inputs.HEAD_BYTES].tobytes()) or RocmSmiForm.TEXT
    text = decode(data)
    del data  # which is as much memory as the text
    table = _READERS[form](text, issues)
    del text
    issues.add(faults.DESCRIBED, np.count_nonzero(~table.has_values))
    issues.add(faults.EMPTY, int(not len(table.card) and not table.lost))
    timed = _timed_rows(table, path, options, issues)
    events = len(table.card) + table.lost
    source = sampling_rows.source_of_file(path, "rocm-smi", SOURCE, events)
    describing = list(_describing(table))
    devices, known = _devices(table, describing), facts.join_facts(_facts(describing))
    del table  # whose columns hold the text
    return sampling_rows.trace_of_rows(timed, source, devices, known, RULES, issues)


def _rows(table: RecordTable) -> Rows:
    """Return the records that have values in time."""
    columns = [
        replace(column, key=name, row=renumbered(column.row, table.has_values))
        for (kind, name), column in table.columns.items()
        if kind == VALUE
    ]
    card = marked(table.card, table.has_values)
    none = np.full(len(card), -1, np.int64)
    return Rows(none, card, none, columns, len(card))


def _timed_rows(
    table: RecordTable, path: Path, options: TimeOptions, issues: IssueLog
) -> TimedRows:
    """Return rows at the times written with them; without any, at the time of the options."""
    rows = _rows(table)
    stamp, output, offset_ns = (
        marked(column, table.has_values) for column in (table.stamp, table.output, table.offset_ns)
    )
    has_time = np.array([time is not None for time in table.stamps], bool)[stamp]
    if not has_time.any() and has_time.size and options:
        return sampling_rows.times_from_options(rows, output, path, options, issues)
    example = f"{len(has_time)} rows of {path.name}"
    issues.add(NO_TIME, np.count_nonzero(~has_time), example)
    stamp = marked(stamp, has_time)
    ns, is_whole, is_local = loop_times.columns_of(table.stamps)
    uses = np.bincount(stamp, minlength=len(ns))
    local = int((uses * is_local).sum())
    time = ns[stamp]
    time += marked(offset_ns, has_time)
    uncertainty_ns = loop_times.RUNNING_NS + SECOND // 2 * int((uses * is_whole).any())
    kept = rows.select(has_time)
    sampling_rows.note_order(kept, time, marked(output, has_time), issues)
    issues.add(loop_times.ADDED, len(stamp))
    issues.add(loop_times.NO_ZONE, local)
    return sampling_rows.TimedRows(kept, time, uncertainty_ns, LOCALTIME if local else REALTIME)


def _describing(table: RecordTable) -> Iterator[Record]:
    """Yield names and facts of cards as records, each different one once; levels of a clock are in its first one.

    The first is that which counts, and where the present clock is among the levels all others differ.
    """
    columns = {
        key: column.without_slots() for key, column in table.columns.items() if key[0] != VALUE
    }
    codes = []
    for (kind, _), column in columns.items():
        code = np.full(len(table.card), -1, np.int64)
        card = table.card[column.row]
        used = gather.distinct(card)[0] if kind == LEVELS else slice(None)
        code[column.row[used]] = column.code[used]
        codes.append(code)
    first, _ = gather.distinct(table.card, *codes)
    for row in np.sort(first).tolist() if codes else ():
        record = Record(int(table.card[row]), 0)
        for (key, column), code in zip(columns.items(), codes, strict=True):
            if code[row] >= 0:
                _describe(record, key, str(column.distinct[code[row]].items[0].value))
        yield record


def _describe(record: Record, key: Key, text: str) -> None:
    kind, name = key
    if kind == FACT:
        record.values[name] = text
    else:
        record.levels[name] = [float(level) for level in text.split()]


def _devices(table: RecordTable, describing: Iterable[Record]) -> tuple[Device, ...]:
    cards = gather.unique(table.card[table.card != SYSTEM]).tolist()
    devices: dict[int, dict[str, str]] = {card: {} for card in cards}
    for record in describing:
        if record.card != SYSTEM:
            known = devices[record.card]
            for name, keys in rocm_smi_lanes.NAMES.items():
                text = _first(record, keys)
                if text and name not in known:
                    known[name] = text
    return facts.devices_by_names(devices, SOURCE)


@lru_cache(maxsize=1 << 8)
def _matching(keys: str, names: tuple[str, ...]) -> list[str]:
    """Return names that one of these keys matches, in the keys' order; kept, as all rows have the same names."""
    return [n for key in keys.split("|") for n in names if re.fullmatch(key, n, re.IGNORECASE)]


def _first(record: Record, keys: str) -> str:
    """The first of a record's values that have one of these keys, in the keys' order."""
    names = _matching(keys, tuple(record.values))
    return next(filter(None, (facts.text_or_empty(record.values[name]) for name in names)), "")


def _facts(records: Iterable[Record]) -> Iterator[tuple[int, str, str]]:
    for record in records:
        for fact, (key, unit) in rocm_smi_lanes.FACTS.items():
            text = _first(record, key)
            if text and unit:
                parsed = facts.amount(text, unit)
                text = facts.format_number(parsed) if parsed else ""
            if text:
                yield record.card, fact, text
        for clock, levels in record.levels.items():
            name = rocm_smi_lanes.LEVELS.get(clock)
            for fact, text in facts.levels_as_facts(name, levels) if name else ():
                yield record.card, fact, text
