"""Recognition of the files of ROCm's profilers by their first bytes."""

from __future__ import annotations

import re
from pathlib import Path

from chopper_interop.converters.rocm import csv_headers
from chopper_interop.converters.rocm.tables import DISPATCHES, MARKS, PASSES, RECORDS
from chopper_interop.converters.rocm.v1_text_lines import line_format
from chopper_interop.io import sqlite_schema
from chopper_interop.io.sqlite_files import MAGIC, mentions_table

V3_JSON_KEY = "rocprofiler-sdk-tool"
"""The only key of rocprofv3's JSON: a list with an object for each process."""
V3_JSON = re.compile(rb'\s*\{\s*"' + V3_JSON_KEY.encode() + rb'"\s*:')
_V3_TOOL = "rocprofv3"

V1_JSON_WORDS = (b'"name":"process_name","sort_index":',)
"""End of `_V1_LABEL`, which is among the first bytes of each JSON object of rocprof v1: `Converter.json_words`."""
_V1_STATISTICS = frozenset({"name", "calls", "totaldurationns", "averagens", "percentage"})
_V1_LABEL = rb'\{"args":\{"name":"[^"\n]*"\},"ph":"M","pid":\d+,"name":"process_name","sort_index":'
_V1_JSON = re.compile(rb'\s*\{\s*"traceEvents"\s*:\s*\[\s*\{\s*\}\s*,\s*' + _V1_LABEL)
_V1_JSON_FRAGMENT = re.compile(rb"\s*," + _V1_LABEL)
_V1_TABLE = re.compile(
    rb'CREATE TABLE "?(?:KERN|HIP|HSA|OPS|COPY|rocTX)"?\s*\(\s*"(?:Index|BeginNs)"', re.IGNORECASE
)
V1_TEXT_OTHERS = re.compile(
    rb"\s*(?:0x[0-9a-f]+ agent (?:cpu|gpu)|dispatch\[\d+\], gpu-id\(|\d{12,19}\s*(?:\n\d{12,19}\s*)*$)"
)
"""Files with handles, a begin, or the dispatches that tables hold."""

_V2_SAMPLES = frozenset({"dispatch_id", "timestamp", "gpu_id", "pc_sample"})

_RAW = ({"queue-index", "index"}, {"queue_id", "pid", "tid", "correlation_id"})
"""Columns of tables that rocprof v1 or rocprofv2 wrote and rocprof-compute left untouched."""
_SYSTEM = frozenset({"gpu_arch", "ip_blocks", "cu_per_gpu"})
_OLD_SYSTEM = frozenset({"ip_blocks", "numcu", "numse"})
_COMPUTE_DERIVED: tuple[frozenset[str], ...] = (
    frozenset({"kernel_name", "count", "sum(ns)"}),
    frozenset({"kernelname", "count", "sum(ns)"}),
    frozenset({"device", "hbmbw", "hbmbwlow"}),
)
"""Headers of statistics, and of ``roofline.csv``."""
_COMPUTE_RESULTS = ("compute_workload", "compute_metric_definition")
"""Tables of what ``rocprof-compute analyze`` writes for viewers."""
_COMPUTE_LISTS: tuple[frozenset[str], ...] = (
    frozenset({"dispatch_id", "kernel_name", "gpu_id"}),
    frozenset({"dispatch_id", "kernel_name"}),
    frozenset({"index", "kernelname", "gpu-id"}),
)
"""Headers of ``pmc_dispatch_info.csv``: these columns and no others."""


def is_v3_csv(head: bytes) -> bool:
    """True if a file that begins so is one of rocprofv3's tables."""
    form = csv_headers.format_in(head)
    return form is not None and form.tool == _V3_TOOL


def is_v3_statistics(head: bytes) -> bool:
    """True if a file that begins so holds rocprofv3's statistics."""
    return csv_headers.is_statistics(csv_headers.plain_names(csv_headers.header_names(head)))


def is_v3_samples(head: bytes) -> bool:
    """True if a file that begins so holds samples of program counters or counters."""
    return csv_headers.is_samples(csv_headers.plain_names(csv_headers.header_names(head)))


def is_v1(head: bytes) -> bool:
    """True if a file that begins so is a table, a trace or a database of rocprof v1."""
    if head.lstrip()[:1] == b"{":
        return is_v1_json(head)
    return is_v1_json(head) or _is_v1_database(head) or _is_v1_csv(head)


def confirms_v1(path: Path, head: bytes) -> bool:
    """True if a file is one of rocprof v1, by all definitions of tables if it is a database."""
    if _is_v1_csv(head) or is_v1_json(head):
        return True
    if not head.startswith(MAGIC):
        return False
    tables = sqlite_schema.tables_of(path)
    if tables is None:
        return _is_v1_database(head)
    return any(_V1_TABLE.match(sql.encode()) for sql in tables.values())


def is_v1_json(head: bytes) -> bool:
    """True if a file that begins so is a Chrome trace of rocprof v1."""
    return _V1_JSON.match(head) is not None or _V1_JSON_FRAGMENT.match(head) is not None


def is_v1_statistics(head: bytes) -> bool:
    """True if a file that begins so holds statistics of rocprof v1."""
    return csv_headers.names_in(head) == _V1_STATISTICS


def is_v1_text(head: bytes) -> bool:
    """True if a file that begins so is a raw text trace of rocprof v1 or roctracer."""
    return head[:1].isdigit() and line_format(head) is not None


def is_v2(head: bytes) -> bool:
    """True if a file that begins so is one of rocprofv2's tables."""
    form = csv_headers.format_in(head)
    if form is DISPATCHES:
        names = csv_headers.names_in(head)
        return _is_raw(names) and "gpu-id" not in names
    return form in (RECORDS, MARKS)


def is_v2_samples(head: bytes) -> bool:
    """True if a file that begins so holds rocprofv2's samples of program counters."""
    return csv_headers.names_in(head) >= _V2_SAMPLES


def is_compute(head: bytes) -> bool:
    """True if a file that begins so is a table of dispatches, or a description, of a workload."""
    form = csv_headers.format_in(head)
    if form is DISPATCHES:
        return not _is_raw(csv_headers.names_in(head))
    return form is PASSES or is_compute_system(head)


def is_compute_derived(head: bytes) -> bool:
    """True if a file that begins so holds what rocprof-compute derived from a workload."""
    if mentions_table(head, *_COMPUTE_RESULTS):
        return True
    names = csv_headers.names_in(head)
    return any(names >= header for header in _COMPUTE_DERIVED) or names in _COMPUTE_LISTS


def confirms_compute_derived(path: Path, head: bytes) -> bool:
    """True if a file holds what rocprof-compute derived, by all its tables if it is a database."""
    if head.startswith(MAGIC):
        return sqlite_schema.has_tables(path, head, _COMPUTE_RESULTS)
    return is_compute_derived(head)


def is_compute_system(head: bytes) -> bool:
    """True if a file that begins so is a workload's ``sysinfo.csv``."""
    names = csv_headers.names_in(head)
    return names >= _SYSTEM or names >= _OLD_SYSTEM


def _is_v1_csv(head: bytes) -> bool:
    if csv_headers.format_in(head) is not DISPATCHES:
        return False
    names = csv_headers.names_in(head)
    return "gpu-id" in names and _is_raw(names)


def _is_v1_database(head: bytes) -> bool:
    return head.startswith(MAGIC) and _V1_TABLE.search(head) is not None


def _is_raw(names: frozenset[str]) -> bool:
    """True if a table of dispatches is as rocprof v1 or rocprofv2 wrote it."""
    return any(columns <= names for columns in _RAW)
