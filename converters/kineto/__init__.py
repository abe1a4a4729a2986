"""PyTorch profiler traces: Kineto's JSON, in all versions since 2020, of any vendor's GPUs.

Only the converter itself stands here, so that asking for a file's format loads nothing heavy:
`read` and `write` import the modules that do the work when they are called.

Format: libkineto's ``output_json.cpp`` is the reference.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.issues import IssueLog
    from chopper_interop.trace import Trace

_TOP_LEVEL_KEYS = (
    b'"traceEvents"',
    b'"schemaVersion"',
    b'"deviceProperties"',
    b'"baseTimeNanoseconds"',
)
"""Keys of the top-level object, one of which stands near the beginning of a trace."""
_EVENT_LIST = re.compile(rb'\[\s*(?:\{\s*\}\s*,\s*)?\{[^{}]*"ph"\s*:\s*"')
"""Beginning of a trace that is a bare list; rocmProfileData's begins with an empty event."""
_ROCPROF_V1 = re.compile(
    rb'\{\s*"traceEvents"\s*:\s*\[\s*\{\s*\}\s*,\s*\{"args":\{"name":"[^"\n]*"\},"ph":"M","pid":\d+,'
    rb'"name":"process_name","sort_index":'
)
"""Beginning of a Chrome trace of rocprof v1: an empty event, then the labels of its sections."""


def sniff(head: bytes) -> bool:
    """True if a file that begins so is a trace of events as Kineto or Chrome write it."""
    start = head.lstrip()
    if start[:1] == b"[":
        return _EVENT_LIST.match(start) is not None
    if _ROCPROF_V1.match(start):
        return False
    return start[:1] == b"{" and any(key in head for key in _TOP_LEVEL_KEYS)


def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read one Kineto file.

    Parameters
    ----------
    paths
        The file, alone in a list.
    rank
        Rank of the file, in place of the one that it states. Not for files of several ranks.

    Returns
    -------
    Trace
        Of one rank, or of several if another tool fused several ranks into the file.

    Raises
    ------
    ReadError
        The file cannot be read at all. All other losses are counted in ``meta.issues``.
    """
    from chopper_interop.converters.kineto import reader

    return reader.read_trace(paths, rank)


def write(trace: Trace, path: Path) -> IssueLog:
    """Write a trace as PyTorch's profiler does.

    Parameters
    ----------
    trace
        Any trace.
    path
        ``….json`` or ``….json.gz`` for one file. Several ranks are fused in it: each has pids of
        its own, and its events state their ``rank`` and their original pid as ``pid_raw``. Any
        other name is that of a folder, which gets a ``rank0.json.gz``, ``rank1.json.gz``, … as
        PyTorch writes them on each rank.

    Returns
    -------
    IssueLog
        Counts of dependencies that have no arrow, of counters and annotation columns that stand
        among arguments, and of series that Kineto cannot describe completely.
    """
    from chopper_interop.converters.kineto import writer

    return writer.write_trace(trace, path)


KINETO = Converter(
    name="kineto",
    description="PyTorch profiler trace (Kineto JSON)",
    versions="schema 1: 2020 legacy lists, torch 1.8.1 to 2.9, CUPTI, roctracer, rocprofiler-sdk; "
    "Chrome traces of JAX, TensorFlow, torch_npu",
    suffixes=(".json", ".json.gz"),
    sniff=sniff,
    read=read,
    write=write,
    carries="operators, annotations, Python stacks, runtime and driver calls, kernels, copies, "
    "fills, waits, memory and other counters, collectives with sizes and groups, launches, "
    "forward to backward; written: the same, counters of kernels as arguments, other edges counted",
)
