"""rocprofv2's CSV files, ROCm 5.3 to 6.x: dispatches with counters, calls, copies, markers.

The files of a process end in its id, or in the name that ``-o`` gave: ``results_1234.csv``,
``hip_api_trace_1234.csv``. What a file holds is told by its header, never by its name. Calls do
not say their thread, copies not their device, and markers only when a message was given.

Format: ``plugin/file/file.cpp`` of ROCm/rocprofiler. Its plugin ``file v1`` writes dispatches as
rocprof v1 does; these are read as such.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns import arrow
from chopper_interop.converters.rocprof_agents import id_of, number_in
from chopper_interop.converters.rocprof_compute import is_raw, names_in
from chopper_interop.converters.rocprof_files import told_by
from chopper_interop.converters.rocprof_lines import header_of
from chopper_interop.converters.rocprof_tables import (
    CALLS,
    COPIES,
    DISPATCHES,
    KERNELS,
    MARKS,
    RECORDS,
    format_of,
)
from chopper_interop.converters.rocprof_v1_dispatches import dispatches_of
from chopper_interop.converters.rocprof_v1_recording import Found, tables_of, trace_of_found
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.rocprof_rows import Rows
    from chopper_interop.trace import Trace

NO_THREAD = Fault(
    "thread-unknown",
    Severity.INFO,
    "rocprofv2 does not say on which thread calls and markers were: they share one lane.",
)
NO_DEVICE = Fault(
    "device-unknown",
    Severity.INFO,
    "rocprofv2 does not say on which device the copies and kernels of its traces ran.",
)
RANGE_END = Fault(
    "range-end-unknown",
    Severity.LOSS,
    "roctx rows without a message end a range that they do not name: ranges became moments.",
    events=True,
)
TWICE = Fault(
    "kernel-recorded-twice",
    Severity.INFO,
    "Kernels of a trace that are dispatches of the same run were taken once.",
    events=True,
)

TOOL = "rocprofv2"
_FILE = re.compile(
    r"(?P<kind>results|hip_api_trace|hsa_api_trace|roctx_trace|hcc_ops_trace|async_copy_trace"
    r"|pcs_trace)_(?P<of>[^.]*)(?:\..*)?"
)
_PC_SAMPLES = frozenset({"dispatch_id", "timestamp", "gpu_id", "pc_sample"})
_COPY = re.compile(r"copy|fill|memset|memcpy", re.IGNORECASE)
_MARKER = "MARKER_ROCTX"
_OPERATIONS = "_OPS"
_SECOND_NAME = "#2"
"""The column ``Kernel_Name``, behind ``Operation``."""


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is a table of rocprofv2's that is read."""
    form = format_of(header_of(head))
    if form is DISPATCHES:
        names = names_in(head)
        return is_raw(names) and "gpu-id" not in names
    return form in (RECORDS, MARKS)


def sniff_samples(head: bytes) -> bool:
    """Whether a file that begins so holds rocprofv2's samples of program counters."""
    return names_in(head) >= _PC_SAMPLES


def group(paths: list[Path]) -> list[list[Path]]:
    """Put the files of one process together: same folder, same name behind the kind of table."""
    groups: dict[tuple[str, str], list[Path]] = {}
    for path in paths:
        named = _FILE.fullmatch(path.name)
        key = f"of {named['of']}" if named else path.name
        groups.setdefault((str(path.parent), key), []).append(path)
    return list(groups.values())


def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read the files of one process.

    Parameters
    ----------
    paths
        The files; what each is, its header tells.
    rank
        Rank to give the process, over what the names of its files say.

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
    rows = [rows for path in paths for rows in tables_of(path, TOOL, issues)]
    events = issues.events()
    wide = [r for r in rows if r.form is DISPATCHES]
    dispatches = [dispatches_of(r, issues) for r in wide]
    others = [r for r in rows if r.form is not DISPATCHES]
    events += sum(int(d.weight.sum()) for d in dispatches) + sum(r.count for r in others)
    tables = [t for r in others for t in _tables(r, issues)]
    if any(d.timed for d in dispatches):
        tables = _without_kernels(tables, issues)
    told = told_by(paths[0])
    named = _FILE.fullmatch(paths[0].name)
    if named:
        pid = id_of(number_in(named["of"])) if named["of"].isdecimal() else -1
        told = replace(told, prefix=named["of"], pid=pid)
    found = Found(
        paths=paths,
        format=ROCPROFV2.name,
        tool=TOOL,
        told=told,
        events=events,
        tables=tables,
        dispatches=dispatches,
    )
    return trace_of_found(found, rank, issues)


def _tables(rows: Rows, issues: IssueLog) -> list[Rows]:
    """Rows of calls, copies, kernels and markers as tables of their own."""
    if rows.form is MARKS:
        return [_marks(rows, issues)]
    codes, domains = rows.codes("domain")
    of_gpu = np.array([*(_OPERATIONS in domain for domain in domains), False])[codes]
    calls = _with_kernel_names(rows.take(np.flatnonzero(~of_gpu)))
    issues.add(NO_THREAD, calls.count, calls.where)
    issues.add(NO_DEVICE, np.count_nonzero(of_gpu), rows.where)
    return [
        table
        for table in (replace(calls, form=CALLS), *_work(rows.take(np.flatnonzero(of_gpu))))
        if table.count
    ]


def _with_kernel_names(calls: Rows) -> Rows:
    """Calls with the kernel that they launch apart: it stands in a column too many."""
    codes, names = calls.codes("name")
    parts = [name.split('","', 1) for name in names]
    if all(len(part) == 1 for part in parts):
        return calls
    kernels = ["" if len(part) == 1 else part[1] for part in parts]
    texts = {"name": _text(codes, [p[0] for p in parts]), "kernel": _text(codes, kernels)}
    return replace(calls, texts={**calls.texts, **texts})


def _work(rows: Rows) -> list[Rows]:
    """Copies and kernels among operations on GPUs."""
    codes, operations = rows.codes("name")
    second, kernels = rows.codes(_SECOND_NAME)
    is_copy = np.array([*(_COPY.search(o) is not None for o in operations), False])[codes]
    is_copy &= ~np.array([*(bool(k) for k in kernels), False])[second]
    copies = replace(rows, form=COPIES)
    named = np.array([*(bool(k) for k in kernels), False])[second]
    both = np.where(named, len(operations) + second, codes)
    names = {**rows.texts, "name": _text(both, [*operations, *kernels])}
    return [
        copies.take(np.flatnonzero(is_copy)),
        replace(rows, texts=names, form=KERNELS).take(np.flatnonzero(~is_copy)),
    ]


def _text(codes: Array, texts: list[str]) -> Any:
    return arrow.dictionary(codes, texts, mask=codes < 0)


def _marks(rows: Rows, issues: IssueLog) -> Rows:
    """Messages as moments: only they are placed in time."""
    codes, messages = rows.codes("name")
    empty = ~np.array([*(bool(m) for m in messages), False])[codes]
    issues.add(RANGE_END, np.count_nonzero(empty), rows.where)
    kept = rows.take(np.flatnonzero(~empty))
    issues.add(NO_THREAD, kept.count, kept.where)
    numbers = {**kept.numbers, "end": kept.number("start")}
    known = {**kept.known, "end": kept.is_known("start")}
    domain = _text(np.zeros(kept.count, np.int64), [_MARKER])
    return replace(
        kept, numbers=numbers, known=known, texts={**kept.texts, "domain": domain}, form=CALLS
    )


def _without_kernels(tables: list[Rows], issues: IssueLog) -> list[Rows]:
    """The tables without kernels, which the dispatches of the same run are."""
    kernels = [t for t in tables if t.form is KERNELS]
    issues.add(TWICE, sum(t.count for t in kernels), kernels[0].where if kernels else "")
    return [t for t in tables if t.form is not KERNELS]


ROCPROFV2 = Converter(
    name="rocprofv2",
    description="rocprofv2 CSV files",
    versions="ROCm 5.3 to 6.x",
    sniff=sniff,
    group=group,
    read=read,
    carries="kernels, HIP and HSA calls, copies, roctx messages as moments, hardware counters of "
    "dispatches (XCCs summed), launches",
)

ROCPROFV2_PC_SAMPLING = Converter(
    name="rocprofv2-pc-sampling",
    description="rocprofv2 samples of program counters",
    sniff=sniff_samples,
    not_read_because="samples without a timeline are not read",
)
