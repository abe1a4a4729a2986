"""What amd-smi prints once: ``static``, ``list``, ``topology``, ``xgmi``, ``process``, ``partition``.

It describes the GPUs and gives a trace without nodes: devices with all their names, and facts. A
fact on which all GPUs agree stands under its name; else under ``<name>[<index>]`` for each. What
was counted until then (traffic of xGMI, memory of processes) becomes samples where a time is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.converters import (
    amd_smi_counted,
    amd_smi_describe,
    amd_smi_names,
    telemetry_rows,
)
from chopper_interop.converters import amd_smi_faults as own_faults
from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters.amd_smi_stamps import by_stamps
from chopper_interop.converters.telemetry_given import Given
from chopper_interop.converters.telemetry_text import decoded
from chopper_interop.files import inputs
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.meta import Meta, Source

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

SOURCE = "amd-smi"
FORMAT = "amd-smi-static"


def read(paths: list[Path], *, at_ns: int | None = None, at: str | None = None) -> Trace:
    """Read one file that describes GPUs.

    Parameters
    ----------
    paths
        The file, alone in a list.
    at_ns
        When it was written, epoch nanoseconds: what it counts (traffic of xGMI, memory of
        processes) then becomes samples.
    at
        ``"mtime"`` to take the time at which the file was last changed for that.

    Returns
    -------
    Trace
        Without nodes: ``meta.devices`` and ``meta.facts``.

    Raises
    ------
    ReadError
        It cannot be opened or unpacked.
    UsageError
        `at` is anything else, or both options are given.
    """
    (path,) = paths
    given = Given(at_ns, at)
    issues = IssueLog(str(path))
    text = decoded(inputs.read(path, issues))
    entries, lost = amd_smi_describe.read(text, issues)
    counted = [(entry, amd_smi_counted.values_of(entry)) for entry in entries]
    counting = [(e, values) for e, values in counted if values and (given or e.stamp >= 0)]
    untimed = sum(len(values) for e, values in counted if not given and e.stamp < 0)
    rows, joined = amd_smi_counted.rows_of(counting)
    issues.add(own_faults.COUNTED, untimed, path.name)
    issues.add(own_faults.JOINED, joined)
    issues.add(faults.DESCRIBED, len(entries) - len(counting))
    issues.add(faults.EMPTY, int(not entries and not lost))
    timed = by_stamps(rows, path, given, issues)
    size, events = path.stat().st_size, len(entries) + lost
    meta = Meta(
        job=inputs.plain_name(path),
        devices=amd_smi_names.devices_of(entries, SOURCE),
        sources=(Source(str(path), FORMAT, SOURCE, size=size, events=events),),
        facts=amd_smi_names.facts_of(entries),
    )
    return telemetry_rows.trace_of(timed, meta, SOURCE, issues, amd_smi_counted.LANES)
