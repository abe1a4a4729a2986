"""Samples of rocm-smi in all its forms.

A row is what one output says of one card; rows become samples of the lanes that amd-smi has.
rocm-smi writes no times: they are taken from the lines or columns that a loop added, else from
the options.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters.amd_smi import (
    rocm_smi_csv,
    rocm_smi_json,
    rocm_smi_lanes,
    rocm_smi_text,
)
from chopper_interop.converters.amd_smi.rocm_smi_records import SYSTEM, Record, Records
from chopper_interop.converters.amd_smi.sniff import RocmSmiForm, rocm_smi_form
from chopper_interop.converters.sampling import facts, faults
from chopper_interop.converters.sampling import rows as sampling_rows
from chopper_interop.converters.sampling.cells import (
    ColumnBuilder,
    Rows,
    cell_of_text,
    rows_from_keys,
)
from chopper_interop.converters.sampling.text import decode
from chopper_interop.converters.sampling.time_options import OF_LAST_OUTPUT, TimeOptions
from chopper_interop.converters.sampling.timestamps import SECOND, Timestamp
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
RUNNING_NS = SECOND
"""Time that a call takes to read its values: 0.3 to 3 s were seen, the longest at its first."""
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
TIME_ADDED = Fault.info(
    "time-of-loop",
    "rocm-smi writes no time; that which a loop wrote next to its output was taken. "
    "How far a sample may be off stands in `series.uncertainty_ns`.",
)
NO_ZONE = Fault.info(
    "stamp-without-zone", "Times stand without a zone: they are what a wall clock showed."
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
    records = _READERS[form](decode(data), issues)
    valued = [r for r in records.entries if r.card != SYSTEM and _has_values(r)]
    issues.add(faults.DESCRIBED, len(records.entries) - len(valued))
    issues.add(faults.EMPTY, int(not records.entries and not records.lost))
    timed = _timed_rows(valued, records, path, options, issues)
    events = len(records.entries) + records.lost
    source = sampling_rows.source_of_file(path, "rocm-smi", SOURCE, events)
    devices, known = _devices(records.entries), facts.join_facts(_facts(records.entries))
    return sampling_rows.trace_of_rows(timed, source, devices, known, RULES, issues)


@lru_cache(maxsize=1 << 14)  # the same keys come in every row
def _is_value(key: str) -> bool:
    return not rocm_smi_lanes.DESCRIBING.fullmatch(key)


def _has_values(record: Record) -> bool:
    return any(_is_value(key) for key in record.values)


def _rows(records: Sequence[Record]) -> Rows:
    columns: dict[str, ColumnBuilder] = {}
    for number, record in enumerate(records):
        for key, value in record.values.items():
            if _is_value(key):
                columns.setdefault(key, ColumnBuilder(key)).add(number, cell_of_text(value))
    keys = [(-1, record.card, -1) for record in records]
    return rows_from_keys(keys, [c.finish() for c in columns.values()], len(records))


def _timed_rows(
    records: Sequence[Record],
    all_records: Records,
    path: Path,
    options: TimeOptions,
    issues: IssueLog,
) -> TimedRows:
    """Return rows at the times written with them; without any, at the time of the options."""
    rows = _rows(records)
    by_output = _times_by_output(all_records)
    stamps = [r.moment or by_output.get(r.output) for r in records]
    has_time = np.array([stamp is not None for stamp in stamps], bool)
    output = np.array([r.output for r in records], np.int64)
    if not has_time.any() and has_time.size and options:
        return sampling_rows.times_from_options(rows, output, path, options, issues)
    example = f"{len(has_time)} rows of {path.name}"
    issues.add(NO_TIME, np.count_nonzero(~has_time), example)
    known = [stamp for stamp in stamps if stamp is not None]
    local = sum(not stamp.has_zone for stamp in known)
    # The middle of a second is at most half a second off, wherever in it the time was taken.
    half = SECOND // 2
    time = np.array([s.ns + half * (s.digits == 0) for s in known], np.int64)
    uncertainty_ns = RUNNING_NS + half * any(s.digits == 0 for s in known)
    kept = rows.select(has_time)
    tick = np.unique(output[has_time], return_inverse=True)[1]
    sampling_rows.note_order(kept, time, tick, issues)
    issues.add(TIME_ADDED, len(known))
    issues.add(NO_ZONE, local)
    return sampling_rows.TimedRows(kept, time, uncertainty_ns, LOCALTIME if local else REALTIME)


def _times_by_output(records: Records) -> dict[int, Timestamp]:
    """Times in front of outputs, or after them if the first has none in front."""
    before = records.before
    first = min((r.output for r in records.entries), default=0)
    if first in before or not before:
        return before
    return {output - 1: stamp for output, stamp in before.items()}


def _devices(records: Sequence[Record]) -> tuple[Device, ...]:
    devices: dict[int, dict[str, str]] = {}
    for record in records:
        if record.card != SYSTEM:
            known = devices.setdefault(record.card, {})
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


def _facts(records: Sequence[Record]) -> Iterator[tuple[int, str, str]]:
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
