"""Raw text files of rocprof v1 and roctracer: what the tables of one run are made of.

``hip_api_trace.txt``, ``hsa_api_trace.txt``, ``hcc_ops_trace.txt``, ``async_copy_trace.txt`` and
``roctx_trace.txt`` of one folder are one source, also where each process has files of its own
(``PID_hip_api_trace.txt``). What a file holds is told by its first line.

Formats: ``bin/tblextr.py`` of ROCm/rocprofiler, ``src/tracer_tool`` of ROCm/roctracer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chopper_interop.columns import arrow, gather
from chopper_interop.converters.rocprof_files import told_by
from chopper_interop.converters.rocprof_parse import NOT_UTF8
from chopper_interop.converters.rocprof_v1_recording import Found, trace_of_found
from chopper_interop.converters.rocprof_v1_roctx import ranges
from chopper_interop.converters.rocprof_v1_sections import (
    DEVICE,
    SECTIONS,
    Column,
    apart,
    rows_of,
    sized,
    tied,
)
from chopper_interop.errors import ReadError
from chopper_interop.files import inputs
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.converters.rocprof_rows import Rows
    from chopper_interop.trace import Trace

UNREADABLE = Fault(
    "line-unreadable",
    Severity.LOSS,
    "Lines that are no record of their file were left out.",
    events=True,
)
CUT_SHORT = Fault(
    "line-cut-short",
    Severity.LOSS,
    "A file ends within a line, whose numbers may be cut short: it was left out.",
    events=True,
)
MERGED = Fault(
    "same-events-in-another-file",
    Severity.INFO,
    "Files of single processes are in the file of all of them, and were left out.",
)

TOOL = "rocprof"
_SPAN = r"^(?P<BeginNs>\d{1,18}):(?P<EndNs>\d{1,18}) "
_CALL = (
    _SPAN + r"(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) (?P<Name>%s[^\s(:]*)(?P<args>\(.*?)"
    r"(?:\s+kernel=(?P<kernel>.*?))?(?: :(?P<Index>\d{0,18}))?\s*$"
)


@dataclass(frozen=True)
class _Kind:
    """One kind of file.

    Parameters
    ----------
    section
        What its rows are.
    pattern
        A line, its groups named as columns.
    """

    section: str
    pattern: str


_KINDS = (
    _Kind("HIP", _CALL % "(?:hip|__hip|hcc|roc)"),
    _Kind("HSA", _CALL % "hsa_"),
    _Kind("COPY", _SPAN + r"(?P<Name>async-copy):(?P<Index>\d{1,18})(?::(?P<pid>\d{1,10}))?\s*$"),
    _Kind(
        "OPS",
        _SPAN + r"(?P<dev>\d{1,9}):(?P<queue>\d{1,18}) (?P<Name>.*?):(?P<Index>\d{1,18})"
        r"(?::(?P<pid>\d{1,10}))?\s*$",
    ),
    _Kind(
        "rocTX",
        r"^(?P<BeginNs>\d{1,18}) (?P<pid>\d{1,10}):(?P<tid>\d{1,10}) (?P<cid>\d{1,4}):"
        r'(?P<rid>\d{1,18}):"(?P<Name>.*)"\s*$',
    ),
)
"""The more particular before those that would match them too."""
_RENAMED = {"dev": DEVICE, "queue": "queue-id"}
_TEXTS = ("Name", "args", "kernel")
_OF_PROCESS = re.compile(r"\d+_(.*)")
_BARRIER = "Marker"


def _kind_of(head: bytes) -> _Kind | None:
    line = next((line for line in head.split(b"\n", 20) if line.strip()), b"")[:32768]
    text = line.decode("utf-8", "replace").rstrip("\r")
    return next((kind for kind in _KINDS if re.match(kind.pattern, text)), None)


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is a raw text file of a trace."""
    return head[:1].isdigit() and _kind_of(head) is not None


_OTHERS = re.compile(
    rb"\s*(?:0x[0-9a-f]+ agent (?:cpu|gpu)|dispatch\[\d+\], gpu-id\(|\d{12,19}\s*(?:\n\d{12,19}\s*)*$)"
)


def sniff_others(head: bytes) -> bool:
    """Whether a file that begins so holds handles, a begin, or the dispatches that tables hold."""
    return _OTHERS.match(head) is not None


def group(paths: list[Path]) -> list[list[Path]]:
    """The files of a folder are one source."""
    groups: dict[Path, list[Path]] = {}
    for path in paths:
        groups.setdefault(path.parent, []).append(path)
    return list(groups.values())


def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read the text files of one run.

    Parameters
    ----------
    paths
        The files; what each is, its first line tells.
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
    kept = _once(paths, issues)
    lines: dict[str, list[pa.Table]] = {}
    for path in kept:
        kind = _kind_of(inputs.head(path))
        if kind is None:
            raise ReadError(
                "its first line is no record of a trace of rocprof",
                path=path,
                hint="was it damaged, or is it of another tool?",
            )
        lines.setdefault(kind.section, []).append(_parsed(path, kind, issues))
    records = {name: pa.concat_tables(parts).combine_chunks() for name, parts in lines.items()}
    events = issues.events() + sum(table.num_rows for table in records.values())
    where = paths[0].parent.name
    tables = _tables(records, where, issues)
    found = Found(
        paths=paths,
        format=ROCPROF_V1_TEXT.name,
        tool=TOOL,
        told=replace(told_by(paths[0]), prefix="", pid=-1),
        events=events,
        tables=list(sized(tied(tables)).values()),
    )
    return trace_of_found(found, rank, issues)


def _once(paths: list[Path], issues: IssueLog) -> list[Path]:
    """The files without those of processes that the file of all of them holds too."""
    names = {path.name for path in paths}
    copies = [p for p in paths if (m := _OF_PROCESS.fullmatch(p.name)) and m[1] in names]
    issues.add(MERGED, len(copies), str(copies[0]) if copies else "")
    return [path for path in paths if path not in copies]


def _parsed(path: Path, kind: _Kind, issues: IssueLog) -> pa.Table:
    """Records of a file as columns of text."""
    data = inputs.read(path, issues).tobytes()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        issues.add(NOT_UTF8, 1, path.name)
        text = data.decode("utf-8", "replace")
    lines = pa.array([text], pa.large_string())
    lines = pc.split_pattern(lines, "\n").flatten()
    whole = text.endswith("\n")
    if not whole:
        last = lines[-1].as_py()
        issues.add(CUT_SHORT, bool(last.strip("\0 \r\t")), f"{path.name}: {last[:60]!r}")
    lines = lines.slice(0, len(lines) - 1)
    lines = lines.filter(pc.match_substring_regex(lines, r"[^\s\x00]"))
    fields = pc.extract_regex(lines, kind.pattern)
    bad = lines.filter(pc.is_null(fields))
    example = f"{path.name}: {bad[0].as_py()[:60]!r}" if len(bad) else ""
    issues.add(UNREADABLE, len(bad), example)
    fields = fields.drop_null()
    names = [field.name for field in fields.type]
    return pa.table(dict(zip(names, fields.flatten(), strict=True)))


def _tables(records: dict[str, pa.Table], where: str, issues: IssueLog) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for section in SECTIONS:
        table = records.get(section.name)
        if table is None or not table.num_rows:
            continue
        names = {name: _RENAMED.get(name, name) for name in table.column_names}
        numbers = {new: _integers(table[name]) for name, new in names.items() if name not in _TEXTS}
        texts = {name: _encoded(table[name]) for name in _TEXTS if name in names}
        kernel = texts.pop("kernel", None)
        rows = rows_of(section, numbers, texts, marked=True, where=where, issues=issues)
        if kernel is not None and any(kernel.dictionary.to_pylist()):
            rows = replace(rows, texts={**rows.texts, "kernel": kernel})
        if section.name == "rocTX":
            rows = ranges(rows, numbers["cid"].value, numbers["rid"].value, issues)
        found[section.name] = _counted(rows) if section.name == "HIP" else rows
    ops = found.pop("OPS", None)
    return found if ops is None else _with_operations(found, ops)


def _integers(column: Any) -> Column:
    """Whole numbers of digits; an empty text is unknown."""
    flat = arrow.flat(column)
    empty = pc.equal(flat, "")
    made = pc.if_else(empty, pa.scalar(None, flat.type), flat).cast(pa.int64())
    return Column(arrow.numbers(made), arrow.known(made))


def _encoded(column: Any) -> Any:
    flat = arrow.flat(column)
    return flat.cast(pa.string()).dictionary_encode()


def _counted(calls: Rows) -> Rows:
    """Calls with the number that they have in their process, where they have no other."""
    given = calls.number("correlation", 0)
    if (given > 0).any() or not calls.count:
        return calls
    process = calls.number("process")
    order = np.argsort(process, kind="stable")
    begins = np.flatnonzero(np.diff(process[order], prepend=-2))
    first = np.repeat(begins, np.diff(np.append(begins, calls.count)))
    number = np.empty(calls.count, np.int64)
    number[order] = np.arange(calls.count) - first + 1
    numbers = {**calls.numbers, "correlation": number}
    known = {k: v for k, v in calls.known.items() if k != "correlation"}
    return replace(calls, numbers=numbers, known=known)


def _with_operations(found: dict[str, Rows], ops: Rows) -> dict[str, Rows]:
    """Tables with the operations of HIP: kernels by the names that their calls told, and copies."""
    calls = found.get("HIP")
    if calls is not None and "kernel" in calls.texts:
        ops = _named(ops, calls)
    for name, rows in apart({"OPS": ops}).items():
        both = [found[name], rows] if name in found else [rows]
        found[name if len(both) == 1 else f"{name} of HIP"] = rows
    return found


def _named(ops: Rows, calls: Rows) -> Rows:
    """Operations by the kernels of the calls with the same number in the same process."""
    keys = [
        np.concatenate([calls.number(name), ops.number(name)])
        for name in ("process", "correlation")
    ]
    first, code = gather.distinct(*keys)
    codes, kernels = calls.codes("kernel")
    told = np.array([*(bool(k) for k in kernels), False])[codes]
    source = np.where(
        first < calls.count, np.concatenate([codes, np.full(ops.count, -1)])[first], -1
    )
    source = np.where(np.concatenate([told, np.zeros(ops.count, bool)])[first], source, -1)
    mine = source[code[calls.count :]]
    own, names = ops.codes("name")
    marks = np.array([*(_BARRIER in n for n in names), False])[own]
    both = np.where((mine >= 0) & ~marks, len(names) + mine, own)
    return replace(ops, texts={**ops.texts, "name": arrow.dictionary(both, [*names, *kernels])})


ROCPROF_V1_TEXT = Converter(
    name="rocprof-v1-text",
    description="raw text traces of rocprof (v1) and roctracer",
    versions="ROCm 2 to 6",
    sniff=sniff,
    group=group,
    read=read,
    carries="HIP and HSA calls with arguments, kernels, copies, roctx ranges, launches",
)

ROCPROF_V1_OTHERS = Converter(
    name="rocprof-v1-others",
    description="raw text files of rocprof (v1) beside its traces",
    sniff=sniff_others,
    not_read_because="handles, begins and raw dispatches are not read: its tables hold them",
)
