"""Output of amd-smi's ``static``, ``list``, ``topology``, ``xgmi``, ``process`` and ``partition``.

It describes the GPUs and gives a trace without nodes: devices with all their names, and facts. A
fact on which all GPUs agree is stored under its name; else under ``<name>[<index>]`` for each.
Counters (traffic of xGMI, memory of processes) become samples where their time is known.
"""

from __future__ import annotations

from pathlib import Path

from chopper_interop.converters.amd_smi import counters as amd_smi_counters
from chopper_interop.converters.amd_smi import descriptions, gpu_names
from chopper_interop.converters.amd_smi import faults as own_faults
from chopper_interop.converters.amd_smi.samples import SOURCE, timed_rows
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling import rows as sampling_rows
from chopper_interop.converters.sampling.text import decode
from chopper_interop.converters.sampling.time_options import OF_LAST_ROWS, TimeOptions
from chopper_interop.io import inputs
from chopper_interop.issues import IssueLog
from chopper_interop.registry import with_option_texts
from chopper_interop.trace import Trace

RULES = sampling_rows.LaneRules(sampling_rows.named_by(amd_smi_counters.LANES))


@with_option_texts(OF_LAST_ROWS)
def read(paths: list[Path], *, at_ns: int | None = None, at: str | None = None) -> Trace:
    """Read one file that describes GPUs.

    Parameters
    ----------
    paths
        The file, alone in a list.
    at_ns
        When it was written, nanoseconds since 1970: counters in it (traffic of xGMI, memory of
        processes) then become samples.

    Returns
    -------
    Trace
        Without nodes: ``meta.devices`` and ``meta.facts``.

    Raises
    ------
    ReadError
        It cannot be opened or unpacked.
    UsageError
        `at` has another value, or both options are given.
    """
    (path,) = paths
    options = TimeOptions(at_ns, at)
    issues = IssueLog(str(path))
    text = decode(inputs.read(path, issues))
    entries, lost = descriptions.read(text, issues)
    counters = [(entry, amd_smi_counters.values_of(entry)) for entry in entries]
    timed_counters = [
        (entry, values) for entry, values in counters if values and (options or entry.stamp >= 0)
    ]
    untimed = sum(len(values) for e, values in counters if not options and e.stamp < 0)
    rows, joined = amd_smi_counters.rows_of(timed_counters)
    issues.add(own_faults.COUNTED, untimed, path.name)
    issues.add(own_faults.JOINED, joined)
    issues.add(faults.DESCRIBED, len(entries) - len(timed_counters))
    issues.add(faults.EMPTY, int(not entries and not lost))
    timed = timed_rows(rows, path, options, issues)
    source = sampling_rows.source_of_file(path, "amd-smi-static", SOURCE, len(entries) + lost)
    devices, names = gpu_names.devices_of(entries, SOURCE), gpu_names.facts_of(entries)
    return sampling_rows.trace_of_rows(timed, source, devices, names, RULES, issues)
