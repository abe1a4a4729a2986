"""rocprof-compute's and Omniperf's workloads: counters of dispatches in tables of all passes.

``pmc_perf.csv`` has the counters of all passes side by side; ``SQ_*.csv`` and ``pmc_perf_N.csv``
are of single passes; ``timestamps.csv`` is the run without counters. Each file is a source: the
job carries the counters over to the dispatches of ``timestamps.csv``, or takes those of one file
where that is not there. Files that the profiler below wrote and rocprof-compute left as they were
are read as that profiler's (``rocprof-v1``, ``rocprofv2``).

Formats: ``src/utils/utils.py`` of rocprofiler-compute, Omniperf 1.0 to rocprof-compute 3.x.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import TYPE_CHECKING

from chopper_interop.converters.rocprof_agents import hardware
from chopper_interop.converters.rocprof_files import told_by
from chopper_interop.converters.rocprof_lines import header_of
from chopper_interop.converters.rocprof_tables import DISPATCHES, format_of
from chopper_interop.converters.rocprof_v1_dispatches import dispatches_of
from chopper_interop.converters.rocprof_v1_recording import Found, tables_of, trace_of_found
from chopper_interop.errors import ReadError
from chopper_interop.files import inputs
from chopper_interop.issues import IssueLog
from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

TOOL = "rocprof-compute"
_RAW = ({"queue-index", "index"}, {"queue_id", "pid", "tid", "correlation_id"})
"""Columns that tell a table as rocprof v1 or rocprofv2 wrote it, untouched."""
_SYSTEM = frozenset({"gpu_arch", "ip_blocks", "cu_per_gpu"})
_OLD_SYSTEM = frozenset({"ip_blocks", "numcu", "numse"})
FACTS: tuple[tuple[str, str], ...] = (
    ("gpu_arch", "gfx"),
    ("num_xcd", "num_xcc"),
    ("cu_per_gpu", "cu_count"),
    ("numcu", "cu_count"),
    ("simd_per_cu", "simd_per_cu"),
    ("max_sclk", "max_engine_clk_mhz"),
    ("sclk", "max_engine_clk_mhz"),
    ("rocm_version", "rocm"),
)
"""Columns of ``sysinfo.csv`` → names of facts, as of rocprofv3's agents."""
_OTHERS: tuple[frozenset[str], ...] = (
    frozenset({"kernel_name", "count", "sum(ns)"}),
    frozenset({"kernelname", "count", "sum(ns)"}),
    frozenset({"device", "hbmbw", "hbmbwlow"}),
)
"""Headers of statistics, and of ``roofline.csv``."""
_LISTS: tuple[frozenset[str], ...] = (
    frozenset({"dispatch_id", "kernel_name", "gpu_id"}),
    frozenset({"dispatch_id", "kernel_name"}),
    frozenset({"index", "kernelname", "gpu-id"}),
)
"""Headers of ``pmc_dispatch_info.csv``: these columns and no others."""


def is_raw(names: set[str]) -> bool:
    """Whether a table of dispatches is as rocprof v1 or rocprofv2 wrote it."""
    return any(columns <= names for columns in _RAW)


def names_in(head: bytes) -> set[str]:
    """Names in a header, in lower case."""
    return {name.strip().strip('"').strip().lower() for name in header_of(head, len(head))}


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is a table of dispatches that rocprof-compute made."""
    if format_of(header_of(head)) is DISPATCHES:
        return not is_raw(names_in(head))
    return is_system(head)


def sniff_others(head: bytes) -> bool:
    """Whether a file that begins so holds what rocprof-compute derived or measured beside."""
    names = names_in(head)
    return any(names >= header for header in _OTHERS) or names in _LISTS


def is_system(head: bytes) -> bool:
    """Whether a file that begins so is a workload's ``sysinfo.csv``."""
    names = names_in(head)
    return names >= _SYSTEM or names >= _OLD_SYSTEM


def group(paths: list[Path]) -> list[list[Path]]:
    """Each table is a source, with the ``sysinfo.csv`` that lies beside it."""
    system = [path for path in paths if is_system(inputs.head(path))]
    beside = {path.parent: path for path in system}
    tables = [path for path in paths if path not in system]
    groups = [[p, *([beside[p.parent]] if p.parent in beside else [])] for p in tables]
    served = {path.parent for path in tables}
    return groups + [[path] for path in system if path.parent not in served]


def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read one table of a workload.

    Parameters
    ----------
    paths
        The table, and ``sysinfo.csv`` if there is one.
    rank
        Rank to give the process, over what the names of its files say.

    Returns
    -------
    Trace
        On the clock of the node's boot; without times, in the order of the dispatches.

    Raises
    ------
    ReadError
        The table cannot be read at all. What is lost otherwise is counted in ``meta.issues``.
    """
    issues = IssueLog(str(paths[0]))
    tables = [path for path in paths if not is_system(inputs.head(path))]
    if not tables:
        raise ReadError(
            "it describes the machine of a workload and holds no dispatches",
            path=paths[0],
            hint="give the workload's folder",
        )
    rows = [rows for path in tables for rows in tables_of(path, TOOL, issues)]
    events = issues.events()
    dispatches = [dispatches_of(r, issues, merge_instances=True) for r in rows]
    found = Found(
        paths=paths,
        format=ROCPROF_COMPUTE.name,
        tool=TOOL,
        told=told_by(tables[0]),
        events=events + sum(int(d.weight.sum()) for d in dispatches),
        dispatches=dispatches,
        counts_agents="queue-id" in names_in(inputs.head(tables[0])),
    )
    trace = trace_of_found(found, rank, issues)
    known = [system for path in paths if path not in tables for system in [_system(path)]]
    return _described(trace, known[0]) if known else trace


def _system(path: Path) -> dict[str, str]:
    """The first row of ``sysinfo.csv``; columns in lower case."""
    text = inputs.read(path).tobytes().decode("utf-8", "replace").replace("\0", "")
    try:
        rows = [row for row in csv.reader(text.splitlines()) if row]
    except csv.Error:
        return {}
    names = [name.strip().lower() for name in rows[0]]
    return dict(zip(names, rows[1], strict=False)) if len(rows) > 1 else {}


def _described(trace: Trace, system: dict[str, str]) -> Trace:
    """The trace with what ``sysinfo.csv`` tells of the node and its GPUs, which are alike."""
    host = system.get("hostname", "")
    model = system.get("gpu_model") or system.get("gpu_soc") or system.get("name", "")
    facts = {fact: system[c] for c, fact in reversed(FACTS) if system.get(c)}
    return trace.with_meta(
        facts={**trace.meta.facts, **facts},
        ranks=tuple(replace(r, host=r.host or host) for r in trace.meta.ranks),
        devices=tuple(
            replace(d, host=host, name=model, **hardware(facts)) for d in trace.meta.devices
        ),
    )


ROCPROF_COMPUTE = Converter(
    name="rocprof-compute",
    description="rocprof-compute and Omniperf workloads",
    versions="Omniperf 1.0 to rocprof-compute 3.x",
    sniff=sniff,
    group=group,
    read=read,
    carries="dispatches with sizes and registers, hardware counters (channels summed), what "
    "sysinfo.csv says of the GPUs",
)

ROCPROF_COMPUTE_OTHERS = Converter(
    name="rocprof-compute-others",
    description="rocprof-compute statistics, lists and rooflines",
    sniff=sniff_others,
    not_read_because="what is derived from a workload and has no times is not read",
)
