"""rocm-smi's output: JSON, CSV and the form for people, one-shot or out of a loop.

What one output says of one card is a row; rows become samples of the lanes that amd-smi has.
rocm-smi writes no times: they are taken from the lines or columns that a loop added, else from
the options.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters import (
    rocm_smi_csv,
    rocm_smi_json,
    rocm_smi_tables,
    rocm_smi_text,
    telemetry_rows,
)
from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters.rocm_smi_records import SYSTEM
from chopper_interop.converters.rocm_smi_sniff import Form, form_of
from chopper_interop.converters.rocm_smi_time import SECOND
from chopper_interop.converters.telemetry_cells import ColumnBuilder, Rows, of_text, rows_where
from chopper_interop.converters.telemetry_clock import note_steps
from chopper_interop.converters.telemetry_facts import (
    amount,
    joined,
    levels_as_facts,
    pci_of,
    shown,
    words,
)
from chopper_interop.converters.telemetry_given import Given
from chopper_interop.converters.telemetry_text import decoded
from chopper_interop.files import inputs
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.registry import Converter
from chopper_interop.schemas.meta import LOCALTIME, REALTIME, Device, Meta, Source

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chopper_interop.converters.rocm_smi_records import Record, Records
    from chopper_interop.converters.rocm_smi_time import Moment
    from chopper_interop.converters.telemetry_rows import Timed
    from chopper_interop.trace import Trace

SOURCE = "rocm-smi"
RUNNING_NS = SECOND
"""How long a call takes to read its values: 0.3 to 3 s were seen, the longest at its first."""
_READERS = {
    Form.JSON: rocm_smi_json.read,
    Form.CSV: rocm_smi_csv.read,
    Form.TEXT: rocm_smi_text.read,
}

NO_TIME = Fault(
    faults.NO_TIME.code,
    Severity.LOSS,
    "rocm-smi writes no time, and a time is not made up: such rows were left out. Give "
    "-O at_ns=<epoch nanoseconds> or -O at=mtime, of a loop -O period_ms=<its period> too, or "
    "record with 'amd-smi metric -w 1 --csv'.",
    events=True,
)
BESIDE = Fault(
    "time-beside-output",
    Severity.INFO,
    "rocm-smi writes no time; that which a loop put beside its output was taken. How far a sample "
    "may be off stands in `series.uncertainty_ns`.",
)
NO_ZONE = Fault(
    "time-without-zone",
    Severity.INFO,
    "Times stand without a zone: they are what a wall clock showed.",
)


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is rocm-smi's."""
    return form_of(head) is not None


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
    at_ns
        When a file without times was written, epoch nanoseconds. Of several outputs in it, the
        last was. Files with times do not need it and do not heed it.
    at
        ``"mtime"`` to take the time at which the file was last changed for that.
    period_ms
        How far the outputs of a loop without times are apart; without it only the last is taken.

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
    given = Given(at_ns, at, period_ms)
    issues = IssueLog(str(path))
    data = inputs.read(path, issues)
    form = form_of(data[: inputs.HEAD].tobytes()) or Form.TEXT
    records = _READERS[form](decoded(data), issues)
    valued = [r for r in records.found if r.card != SYSTEM and _has_values(r)]
    issues.add(faults.DESCRIBED, len(records.found) - len(valued))
    issues.add(faults.EMPTY, int(not records.found and not records.lost_events))
    rows = _rows(valued)
    timed = _timed(rows, valued, records, path, given, issues)
    events = len(records.found) + records.lost_events
    meta = Meta(
        job=inputs.plain_name(path),
        clock=timed.clock,
        devices=_devices(records.found),
        sources=(
            Source(str(path), ROCM_SMI.name, SOURCE, size=path.stat().st_size, events=events),
        ),
        facts=_facts(records.found),
    )
    return telemetry_rows.trace_of(timed, meta, SOURCE, issues, rocm_smi_tables.LANES)


def _is_value(key: str) -> bool:
    return not rocm_smi_tables.DESCRIBING.fullmatch(key)


def _has_values(record: Record) -> bool:
    return any(_is_value(key) for key in record.values)


def _rows(records: Sequence[Record]) -> Rows:
    columns: dict[str, ColumnBuilder] = {}
    for number, record in enumerate(records):
        for key, value in record.values.items():
            if _is_value(key):
                columns.setdefault(key, ColumnBuilder(key)).add(number, of_text(value))
    card = np.array([r.card for r in records], np.int64)
    none = np.full(len(records), -1, np.int64)
    return Rows(none, card, none, [c.finish() for c in columns.values()], len(records))


def _timed(
    rows: Rows,
    records: Sequence[Record],
    all_records: Records,
    path: Path,
    given: Given,
    issues: IssueLog,
) -> Timed:
    """Rows at the times beside them; without any, at the time that was given."""
    beside = _beside(all_records)
    moments = [r.moment or beside.get(r.output) for r in records]
    told = np.array([m is not None for m in moments], bool)
    output = np.array([r.output for r in records], np.int64)
    if not told.any() and told.size and given:
        return telemetry_rows.by_gift(rows, output, path, given, issues)
    issues.add(NO_TIME, np.count_nonzero(~told), f"{len(told)} rows of {path.name}")
    known = [m for m in moments if m is not None]
    local = [m.local for m in known]
    whole = any(m.whole for m in known)
    half = SECOND // 2
    time = np.array([m.ns + half * m.whole for m in known], np.int64)
    kept = rows_where(rows, told)
    tick = np.unique(output[told], return_inverse=True)[1]
    places = telemetry_rows.places_of(kept)
    issues.add(faults.TICK_CUT, telemetry_rows.ticks_cut(tick, places))
    note_steps(time, places, issues)
    issues.add(BESIDE, len(known))
    issues.add(NO_ZONE, sum(local))
    uncertainty = RUNNING_NS + half * whole
    return telemetry_rows.Timed(kept, time, uncertainty, LOCALTIME if any(local) else REALTIME)


def _beside(records: Records) -> dict[int, Moment]:
    """Times of outputs: those in front of them, or behind them if the first has none in front."""
    before = records.before
    first = min((r.output for r in records.found), default=0)
    if first in before or not before:
        return before
    return {output - 1: told for output, told in before.items()}


def _devices(records: Sequence[Record]) -> tuple[Device, ...]:
    found: dict[int, dict[str, str]] = {}
    for record in records:
        if record.card != SYSTEM:
            known = found.setdefault(record.card, {})
            for name, keys in rocm_smi_tables.NAMES.items():
                text = _first(record, keys)
                if text and name not in known:
                    known[name] = text
    return tuple(
        Device(
            "",
            card,
            known.get("name", ""),
            SOURCE,
            agent=int(known["agent"]) if known.get("agent", "").isdecimal() else -1,
            index=card,
            pci=pci_of(known.get("pci", "")),
            uuid=known.get("uuid", ""),
        )
        for card, known in sorted(found.items())
    )


def _first(record: Record, keys: str) -> str:
    """The first of a record's values that have one of these keys, in the keys' order."""
    for key in keys.split("|"):
        for name, value in record.values.items():
            if re.fullmatch(key, name, re.IGNORECASE) and words(value):
                return words(value)
    return ""


def _facts(records: Sequence[Record]) -> dict[str, str]:
    of_card: dict[str, dict[int, str]] = {}
    for record in records:
        for fact, (key, unit) in rocm_smi_tables.FACTS.items():
            text = _first(record, key)
            if text and unit:
                found = amount(text, unit)
                text = shown(found) if found else ""
            if text:
                of_card.setdefault(fact, {}).setdefault(record.card, text)
        for clock, levels in record.levels.items():
            name = rocm_smi_tables.LEVELS.get(clock)
            for fact, text in levels_as_facts(name, levels) if name else ():
                of_card.setdefault(fact, {}).setdefault(record.card, text)
    return joined(of_card)


ROCM_SMI = Converter(
    name="rocm-smi",
    description="telemetry of AMD GPUs: rocm-smi, CSV, JSON or the form for people",
    versions="2.x to 7.x, once or out of a loop",
    suffixes=(".csv", ".json", ".txt"),
    sniff=sniff,
    read=read,
    carries="power, clocks, temperatures, activity, memory, energy, fans; names, addresses and "
    "limits of the cards",
)
