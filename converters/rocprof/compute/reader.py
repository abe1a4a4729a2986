"""Workloads of rocprof-compute and Omniperf: counters of dispatches in tables of all passes.

``pmc_perf.csv`` has the counters of all passes next to each other, or below each other where
rocprof-compute took them from rocpd databases (ROCm 7); ``SQ_*.csv`` and
``pmc_perf_N.csv`` are of single passes; ``timestamps.csv`` is the run without counters. Each file
is a source: the job adds the counters to the dispatches of ``timestamps.csv``, or takes those of
one file where that is missing. Files that rocprof-compute left as the profiler wrote them are read
as that profiler's (``rocprof-v1``, ``rocprofv2``).

Formats: ``src/utils/utils.py`` of rocprofiler-compute, Omniperf 1.0 to rocprof-compute 3.x.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from chopper_interop.converters.rocm.agents import hardware_fields
from chopper_interop.converters.rocm.csv_headers import names_in
from chopper_interop.converters.rocm.dispatch_recording import (
    SourceTables,
    build_source_trace,
    read_csv_tables,
)
from chopper_interop.converters.rocm.dispatch_tables import dispatch_table, pass_table
from chopper_interop.converters.rocm.file_names import RANK_OF_PROCESS, path_info
from chopper_interop.converters.rocm.sniff import is_compute_system
from chopper_interop.converters.rocm.tables import DISPATCHES, PASSES
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs
from chopper_interop.issues import IssueLog
from chopper_interop.registry import with_option_texts
from chopper_interop.trace import Trace

TOOL = "rocprof-compute"
_TABLES = (DISPATCHES, PASSES)
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
"""Columns of ``sysinfo.csv`` → names of facts, as of rocprofv3's agents; of two columns of one fact
the first counts."""


@with_option_texts(RANK_OF_PROCESS)
def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read one table of a workload.

    Parameters
    ----------
    paths
        The table, and ``sysinfo.csv`` if there is one.

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
    tables = [path for path in paths if not is_compute_system(inputs.head(path))]
    systems = [path for path in paths if path not in tables]
    if not tables:
        raise ReadError(
            "it describes the machine of a workload and holds no dispatches",
            path=paths[0],
            hint="give a table of dispatches next to it, such as pmc_perf.csv",
        )
    rows = [rows for path in tables for rows in read_csv_tables(path, TOOL, issues, only=_TABLES)]
    events = issues.events()
    dispatches = [
        pass_table(r, issues)
        if r.form is PASSES
        else dispatch_table(r, issues, merge_instances=True)
        for r in rows
    ]
    source = SourceTables(
        paths=paths,
        format="rocprof-compute",
        tool=TOOL,
        info=path_info(tables[0]),
        events=events + sum(int(d.weight.sum()) for d in dispatches),
        dispatches=dispatches,
        counts_agents="queue-id" in names_in(inputs.head(tables[0])),
    )
    trace = build_source_trace(source, rank, issues)
    return _with_system(trace, _read_system(systems[0])) if systems else trace


def _read_system(path: Path) -> dict[str, str]:
    """Return the first row of ``sysinfo.csv``; columns in lower case."""
    text = inputs.read(path).tobytes().decode("utf-8", "replace").replace("\0", "")
    try:
        rows = [row for row in csv.reader(text.splitlines()) if row]
    except csv.Error:
        return {}
    names = [name.strip().lower() for name in rows[0]]
    return dict(zip(names, rows[1], strict=False)) if len(rows) > 1 else {}


def _with_system(trace: Trace, system: dict[str, str]) -> Trace:
    """Add the facts of ``sysinfo.csv`` to the node and to its GPUs, which are alike."""
    host = system.get("hostname", "")
    model = system.get("gpu_model") or system.get("gpu_soc") or system.get("name", "")
    facts = {fact: system[c] for c, fact in reversed(FACTS) if system.get(c)}
    return trace.with_meta(
        facts={**trace.meta.facts, **facts},
        ranks=tuple(replace(r, host=r.host or host) for r in trace.meta.ranks),
        devices=tuple(
            replace(d, host=host, name=model, **hardware_fields(facts)) for d in trace.meta.devices
        ),
    )
