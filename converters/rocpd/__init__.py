"""rocpd, the database that rocprofv3 writes since ROCm 7.0, and rocprofiler-systems on demand.

Every row of a table of events is an event of the source, and so is every row of counters: these
become counters of the dispatches, or series. The whole is read by columns, table by table in the
order of the file, and joined here: the databases have no indexes.

Format: rocprofiler-sdk's ``lib/output/generateRocpd.cpp`` and its tables, schemas 3 to 3.0.5.
"""

from __future__ import annotations

from pathlib import Path

from chopper_interop.io.sqlite_files import mentions_table
from chopper_interop.io.sqlite_schema import has_tables
from chopper_interop.registry import Converter

_OWN = ("rocpd_info_",)


def sniff(head: bytes) -> bool:
    """True if a file that begins so is a rocpd database: it names the first tables."""
    return mentions_table(head, *_OWN)


def confirms(path: Path, head: bytes) -> bool:
    """True if a database has tables of rocpd."""
    return has_tables(path, head, _OWN)


ROCPD = Converter(
    name="rocpd",
    description="rocpd database (rocprofv3 and rocprofiler-systems)",
    versions="schemas 3 to 3.0.5 (ROCm 7.0 on)",
    sniff=sniff,
    json=False,
    confirms=confirms,
    read="chopper_interop.converters.rocpd.reader:read",
    carries="kernels, HIP, HSA, RCCL and other calls with their arguments, roctx markers, copies "
    "and allocations with their sizes, scratch, graph launches, HIP events, hardware counters of "
    "dispatches (sums over instances), sampled counters as series, launches, agents, ranks, nodes; "
    "of the environment nothing but the rank",
)
