"""CSV files of rocprofv2, ROCm 5.3 to 6.x: dispatches with counters, calls, copies, markers.

The files of a process end in its id, or in the name that ``-o`` gave: ``results_1234.csv``,
``hip_api_trace_1234.csv``. The contents of a file are determined by its header, never by its name.
Calls do not state their thread, nor copies their device, and a marker's text is not always given.

Format: ``plugin/file/file.cpp`` of ROCm/rocprofiler. Its plugin ``file v1`` writes dispatches as
rocprof v1 does; these are read as such.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays.arrow import dictionary
from chopper_interop.converters.rocm.agents import number_in, valid_id
from chopper_interop.converters.rocm.dispatch_recording import (
    SourceTables,
    build_source_trace,
    read_csv_tables,
)
from chopper_interop.converters.rocm.dispatch_tables import dispatch_table
from chopper_interop.converters.rocm.file_names import RANK_OF_PROCESS, path_info, v2_name
from chopper_interop.converters.rocm.tables import CALLS, COPIES, DISPATCHES, KERNELS, MARKS
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.registry import with_option_texts
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.converters.rocm.rows import TableRows

NO_THREAD = Fault.info(
    "thread-unknown",
    "rocprofv2 does not say on which thread calls and markers were: they share one lane.",
)
NO_DEVICE = Fault.info(
    "device-unknown",
    "rocprofv2 does not say on which device the copies and kernels of its traces ran.",
)
RANGE_END = Fault.loss_of_events(
    "range-end-unknown",
    "roctx rows without a message end a range that they do not name: ranges became instants.",
)
TWICE = Fault.info_of_events(
    "kernel-taken-once",
    "Kernels of a trace that are dispatches of the same run were taken once.",
)

TOOL = "rocprofv2"
_COPY = re.compile(r"copy|fill|memset|memcpy", re.IGNORECASE)
_MARKER = "MARKER_ROCTX"
_OPERATIONS = "_OPS"
_KERNEL_NAME = "#2"
"""The column ``Kernel_Name``, which follows ``Operation``: both are names."""


@with_option_texts(RANK_OF_PROCESS)
def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read the files of one process.

    Parameters
    ----------
    paths
        The files, whose headers say what each holds.

    Returns
    -------
    Trace
        On the clock of the node's boot.

    Raises
    ------
    ReadError
        A file cannot be read at all. What is lost otherwise is counted in ``meta.issues``.
    """
    issues = IssueLog(str(paths[0]))
    rows = [rows for path in paths for rows in read_csv_tables(path, TOOL, issues)]
    events = issues.events()
    dispatches = [dispatch_table(r, issues) for r in rows if r.form is DISPATCHES]
    others = [r for r in rows if r.form is not DISPATCHES]
    events += sum(int(d.weight.sum()) for d in dispatches) + sum(r.count for r in others)
    tables = [t for r in others for t in _split_records(r, issues)]
    if any(d.timed for d in dispatches):
        tables = _without_kernels(tables, issues)
    info = path_info(paths[0])
    name = v2_name(paths[0])
    if name is not None:
        pid = valid_id(number_in(name)) if name.isdecimal() else -1
        info = replace(info, prefix=name, pid=pid)
    source = SourceTables(
        paths=paths,
        format="rocprofv2",
        tool=TOOL,
        info=info,
        events=events,
        tables=tables,
        dispatches=dispatches,
    )
    return build_source_trace(source, rank, issues)


def _split_records(rows: TableRows, issues: IssueLog) -> list[TableRows]:
    """Split rows of calls, copies, kernels and markers into tables of their own."""
    if rows.form is MARKS:
        return [_markers(rows, issues)]
    of_gpu = rows.per_text("domain", lambda domain: _OPERATIONS in domain, absent=False)
    calls = _with_kernel_names(rows.select(~of_gpu))
    issues.add(NO_THREAD, calls.count, calls.where)
    issues.add(NO_DEVICE, np.count_nonzero(of_gpu), rows.where)
    tables = (replace(calls, form=CALLS), *_gpu_work(rows.select(of_gpu)))
    return [table for table in tables if table.count]


def _with_kernel_names(calls: TableRows) -> TableRows:
    """Split the kernel that a call launches off its name: the file has a column too many."""
    codes, names = calls.codes("name")
    parts = [name.split('","', 1) for name in names]
    if all(len(part) == 1 for part in parts):
        return calls
    kernels = ["" if len(part) == 1 else part[1] for part in parts]
    texts = {
        "name": dictionary(codes, [part[0] for part in parts]),
        "kernel": dictionary(codes, kernels),
    }
    return replace(calls, texts={**calls.texts, **texts})


def _gpu_work(rows: TableRows) -> list[TableRows]:
    """Split operations on GPUs into copies and kernels."""
    codes, operations = rows.codes("name")
    kernel_codes, kernels = rows.codes(_KERNEL_NAME)
    is_kernel = rows.per_text(_KERNEL_NAME, bool, absent=False)
    is_copy = rows.per_text("name", lambda name: _COPY.search(name) is not None, absent=False)
    is_copy &= ~is_kernel
    # one dictionary of both lists of names, the kernels behind the operations
    combined = np.where(is_kernel, len(operations) + kernel_codes, codes)
    texts = {**rows.texts, "name": dictionary(combined, [*operations, *kernels])}
    return [
        replace(rows, form=COPIES).select(is_copy),
        replace(rows, texts=texts, form=KERNELS).select(~is_copy),
    ]


def _markers(rows: TableRows, issues: IssueLog) -> TableRows:
    """Return messages as instants: only rows with a message have a known name."""
    has_message = rows.per_text("name", bool, absent=False)
    issues.add(RANGE_END, np.count_nonzero(~has_message), rows.where)
    messages = rows.select(has_message)
    issues.add(NO_THREAD, messages.count, messages.where)
    numbers = {**messages.numbers, "end": messages.number("start")}
    known = {**messages.known, "end": messages.is_known("start")}
    domain = dictionary(np.zeros(messages.count, np.int64), [_MARKER])
    texts = {**messages.texts, "domain": domain}
    return replace(messages, numbers=numbers, known=known, texts=texts, form=CALLS)


def _without_kernels(tables: list[TableRows], issues: IssueLog) -> list[TableRows]:
    """Leave out the tables of kernels, which repeat the dispatches of the same run."""
    kernels = [t for t in tables if t.form is KERNELS]
    issues.add(TWICE, sum(t.count for t in kernels), kernels[0].where if kernels else "")
    return [t for t in tables if t.form is not KERNELS]
