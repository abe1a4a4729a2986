"""Raw text files of rocprof v1 and roctracer, from which its tables are made.

``hip_api_trace.txt``, ``hsa_api_trace.txt``, ``hcc_ops_trace.txt``, ``async_copy_trace.txt`` and
``roctx_trace.txt`` of one folder are one source, also where each process has files of its own
(``PID_hip_api_trace.txt``). The contents of a file are determined by its first line.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chopper_interop.arrays import Array, arrow
from chopper_interop.converters.rocm.csv_columns import NOT_UTF8
from chopper_interop.converters.rocm.dispatch_recording import SourceTables, build_source_trace
from chopper_interop.converters.rocm.file_names import RANK_OF_PROCESS, path_info
from chopper_interop.converters.rocm.rows import TableRows, first_match
from chopper_interop.converters.rocm.v1_text_lines import LineFormat, line_format
from chopper_interop.converters.rocprof.v1 import sections
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.registry import with_option_texts
from chopper_interop.trace import Trace

ENDED = Fault.info_of_events("range-ended", "Records that end a roctx range became its end.")
LONE_END = Fault.loss_of_events(
    "range-end-alone", "Records that end a roctx range without a begin were left out."
)
OPEN = Fault.loss("range-not-ended", "roctx ranges without an end became instants.")
# Codes of roctx records in the file.
_PUSH, _POP, _START, _STOP = 1, 2, 3, 4

UNREADABLE = Fault.loss_of_events(
    "line-unreadable", "Lines that are no record of their file were left out."
)
CUT_SHORT = Fault.loss_of_events(
    "line-cut-short", "A file ends within a line, whose numbers may be cut short: it was left out."
)
MERGED = Fault.info(
    "same-events-in-another-file",
    "Files of single processes repeat the file of all processes, and were left out.",
)

TOOL = "rocprof"
_COLUMN_NAMES = {"dev": sections.DEVICE, "queue": "queue-id"}
_TEXTS = ("Name", "args", "kernel")
_OF_PROCESS = re.compile(r"\d+_(.*)")
_BARRIER = "Marker"


@with_option_texts(RANK_OF_PROCESS)
def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read the text files of one run.

    Parameters
    ----------
    paths
        The files, whose first lines say what each holds.

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
    parsed: dict[str, list[pa.Table]] = {}
    for path in _without_repetitions(paths, issues):
        kind = line_format(inputs.head(path))
        if kind is None:
            raise ReadError(
                "its first line is no record of a trace of rocprof",
                path=path,
                hint="was it damaged, or is it of another tool?",
            )
        parsed.setdefault(kind.section, []).append(_parse_lines(path, kind, issues))
    records = {name: pa.concat_tables(parts).combine_chunks() for name, parts in parsed.items()}
    events = issues.events() + sum(table.num_rows for table in records.values())
    tables = _tables(records, paths[0].parent.name, issues)
    source = SourceTables(
        paths=paths,
        format="rocprof-v1-text",
        tool=TOOL,
        info=replace(path_info(paths[0]), prefix="", pid=-1),
        events=events,
        tables=list(sections.with_copy_sizes(sections.with_distinct_correlation(tables)).values()),
    )
    return build_source_trace(source, rank, issues)


def _without_repetitions(paths: list[Path], issues: IssueLog) -> list[Path]:
    """Leave out the files of single processes that the file of all processes repeats."""
    names = {path.name for path in paths}
    copies = [p for p in paths if (m := _OF_PROCESS.fullmatch(p.name)) and m[1] in names]
    issues.add(MERGED, len(copies), str(copies[0]) if copies else "")
    return [path for path in paths if path not in copies]


def _parse_lines(path: Path, kind: LineFormat, issues: IssueLog) -> pa.Table:
    """Parse the records of a file into columns of text."""
    data = inputs.read(path, issues).tobytes()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        issues.add(NOT_UTF8, 1, path.name)
        text = data.decode("utf-8", "replace")
    lines = pa.array([text], pa.large_string())
    lines = pc.split_pattern(lines, "\n").flatten()
    if not text.endswith("\n"):
        last = lines[-1].as_py()
        issues.add(CUT_SHORT, bool(last.strip("\0 \r\t")), f"{path.name}: {last[:60]!r}")
    lines = lines.slice(0, len(lines) - 1)  # the last one is empty or cut short
    lines = lines.filter(pc.match_substring_regex(lines, r"[^\s\x00]"))
    fields = pc.extract_regex(lines, kind.pattern)
    bad = lines.filter(pc.is_null(fields))
    example = f"{path.name}: {bad[0].as_py()[:60]!r}" if len(bad) else ""
    issues.add(UNREADABLE, len(bad), example)
    fields = fields.drop_null()
    names = [field.name for field in fields.type]
    return pa.table(dict(zip(names, fields.flatten(), strict=True)))


def _tables(records: dict[str, pa.Table], where: str, issues: IssueLog) -> dict[str, TableRows]:
    tables: dict[str, TableRows] = {}
    for section in sections.SECTIONS:
        table = records.get(section.name)
        if table is None or not table.num_rows:
            continue
        names = {name: _COLUMN_NAMES.get(name, name) for name in table.column_names}
        numbers = {new: _integers(table[name]) for name, new in names.items() if name not in _TEXTS}
        texts = {name: _encoded(table[name]) for name in _TEXTS if name in names}
        kernel = texts.pop("kernel", None)
        rows = sections.section_rows(
            section, numbers, texts, marked=True, where=where, issues=issues
        )
        if kernel is not None and any(kernel.dictionary.to_pylist()):
            rows = replace(rows, texts={**rows.texts, "kernel": kernel})
        if section.name == "rocTX":
            rows = pair_ranges(rows, numbers["cid"].value, numbers["rid"].value, issues)
        tables[section.name] = _with_call_numbers(rows) if section.name == "HIP" else rows
    ops = tables.pop("OPS", None)
    return tables if ops is None else _with_operations(tables, ops)


def _integers(column: Any) -> sections.IntegerColumn:
    """Convert digits to integers; an empty text is unknown."""
    texts = arrow.single_chunk(column)
    is_empty = pc.equal(texts, "")
    texts = pc.if_else(is_empty, pa.scalar(None, texts.type), texts)
    return sections.IntegerColumn.from_arrow(texts.cast(pa.int64()))


def _encoded(column: Any) -> Any:
    return arrow.single_chunk(column).cast(pa.string()).dictionary_encode()


def _with_call_numbers(calls: TableRows) -> TableRows:
    """Number the calls of each process from 1, unless the file numbers them.

    Calls are sorted by process; the position of a process' first call is repeated for all of its
    calls and subtracted from their positions.
    """
    stated = calls.number("correlation", 0)
    if (stated > 0).any() or not calls.count:
        return calls
    process = calls.number("process")
    order = np.argsort(process, kind="stable")
    begins = np.flatnonzero(np.diff(process[order], prepend=-2))
    first = np.repeat(begins, np.diff(np.append(begins, calls.count)))
    number = np.empty(calls.count, np.int64)
    number[order] = np.arange(calls.count) - first + 1
    return calls.with_numbers(correlation=number)


def _with_operations(tables: dict[str, TableRows], ops: TableRows) -> dict[str, TableRows]:
    """Add the operations of HIP: kernels, by the names in their calls, and copies."""
    calls = tables.get("HIP")
    if calls is not None and "kernel" in calls.texts:
        ops = _with_kernel_names(ops, calls)
    for name, rows in sections.split_operations({"OPS": ops}).items():
        tables[f"{name} of HIP" if name in tables else name] = rows
    return tables


def _with_kernel_names(ops: TableRows, calls: TableRows) -> TableRows:
    """Name operations by the kernels of the calls with their number, in the same process."""
    keys = ("process", "correlation")
    call = first_match([calls.number(k) for k in keys], [ops.number(k) for k in keys])
    kernel_codes, kernels = calls.codes("kernel")
    is_named = calls.per_text("kernel", bool, absent=False)
    kernel = np.append(np.where(is_named, kernel_codes, -1), -1)[call]
    codes, names = ops.codes("name")
    is_barrier = ops.per_text("name", lambda name: _BARRIER in name, absent=False)
    # one dictionary of both lists of names, the kernels behind the operations
    combined = np.where((kernel >= 0) & ~is_barrier, len(names) + kernel, codes)
    name = arrow.dictionary(combined, [*names, *kernels])
    return replace(ops, texts={**ops.texts, "name": name})


def pair_ranges(rows: TableRows, cid: Array, rid: Array, issues: IssueLog) -> TableRows:
    """Turn records of marks, begins and ends into marks and ranges.

    Parameters
    ----------
    rows
        A row for each record, in the order of their file.
    cid
        Type of each record: 0 is a mark, 1 and 2 begin and end a range of a thread, 3 and 4 one
        with a number.
    rid
        Number of each range.
    issues
        Log of ends.
    """
    start = rows.number("start", 0)
    end = start.copy()
    closed = np.zeros(rows.count, bool)
    for begin, stop in (_nested_pairs(rows, cid), _numbered_pairs(rows, cid, rid)):
        end[begin] = np.maximum(start[stop], start[begin])
        closed[begin] = closed[stop] = True
    ends = np.isin(cid, (_POP, _STOP))
    issues.add(ENDED, np.count_nonzero(ends & closed), rows.where)
    issues.add(LONE_END, np.count_nonzero(ends & ~closed), rows.where)
    opened = np.isin(cid, (_PUSH, _START)) & ~closed
    issues.add(OPEN, np.count_nonzero(opened), rows.where)
    thread = np.where(np.isin(cid, (_START, _STOP)), 0, rows.number("thread", 0))
    return rows.with_numbers(end=end, thread=thread).select(~ends)


def _nested_pairs(rows: TableRows, cid: Array) -> tuple[Array, Array]:
    """Pair begins and ends of a thread, which alternate on each level of nesting.

    The depth of nesting is the running sum of +1 for a begin and -1 for an end, less the depth at
    the thread's first record; an end is on the level of the begin that it closes.
    """
    selected = np.flatnonzero(np.isin(cid, (_PUSH, _POP)))
    keys = [rows.number(name)[selected] for name in ("thread", "process")]
    order = selected[np.lexsort((rows.number("start", 0)[selected], *keys))]
    thread = np.stack([rows.number(name)[order] for name in ("thread", "process")])
    is_first = np.any(np.diff(thread, axis=1, prepend=-2) != 0, axis=0)
    group = np.cumsum(is_first)
    step = np.where(cid[order] == _PUSH, 1, -1)
    depth = np.cumsum(step)
    before = np.where(is_first, depth - step, 0)
    first = (
        np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0)) if len(order) else order
    )
    depth = depth - before[first]
    level = np.where(step > 0, depth, depth + 1)
    return _adjacent_pairs(order, (group, level), cid[order] == _PUSH)


def _numbered_pairs(rows: TableRows, cid: Array, rid: Array) -> tuple[Array, Array]:
    """Pair begins and ends with the same number in the same process."""
    selected = np.flatnonzero(np.isin(cid, (_START, _STOP)))
    order = selected[np.argsort(rows.number("start", 0)[selected], kind="stable")]
    process = rows.number("process")[order]
    return _adjacent_pairs(order, (process, rid[order]), cid[order] == _START)


def _adjacent_pairs(order: Array, keys: tuple[Array, Array], begins: Array) -> tuple[Array, Array]:
    """Pair each begin with the next record of the same keys, if that is an end."""
    by_key = np.lexsort((np.arange(len(order)), *keys))
    same = np.ones(max(len(order) - 1, 0), bool)
    for key in keys:
        same &= key[by_key][1:] == key[by_key][:-1]
    pair = np.flatnonzero(same & begins[by_key][:-1] & ~begins[by_key][1:])
    return order[by_key[pair]], order[by_key[pair + 1]]
