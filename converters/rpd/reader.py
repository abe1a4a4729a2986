"""rpd, the database of rocmProfileData, schemas 2 and 3 (the older relatives of rocpd).

Calls, GPU operations, values of monitors and counters are events of the source. Ranges of roctx
and rlog (``UserMarker``) become operators of PyTorch or ranges, by their text.

Its times are of ``CLOCK_MONOTONIC``, which is the time since boot unless the node slept; those
that the variant for CUPTI writes are Unix times.
"""

from __future__ import annotations

from pathlib import Path

from chopper_interop import sanity_checks
from chopper_interop.converters.rocm.unlaunched_work import count_unlaunched_work
from chopper_interop.converters.rpd import joined_tables
from chopper_interop.converters.rpd.nodes import DatabaseNodes
from chopper_interop.converters.rpd.tables import CALLS
from chopper_interop.errors import ReadError
from chopper_interop.io import memory
from chopper_interop.io.sqlite import Database
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.meta import BOOTTIME, REALTIME, Source
from chopper_interop.trace import Trace

_UNIX_NS = 10**18
"""Later times are since 1970 (this is 2001), earlier ones since the boot."""


def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read one database.

    Parameters
    ----------
    paths
        The file, alone in a list.
    rank
        Rank to give it. Not for databases of several processes.

    Returns
    -------
    Trace
        On the clock of the node's boot.

    Raises
    ------
    ReadError
        It cannot be read at all. What is lost otherwise is counted in ``meta.issues``.
    """
    (path,) = paths
    issues = IssueLog(str(path))
    size = path.stat().st_size
    with Database(path, issues) as base:
        tables = joined_tables.RpdTables(base)
        if not any(tables.has(name) for name in (*CALLS, "rocpd_op")):
            raise ReadError("it has none of the tables of an rpd database", path=path)
        made = DatabaseNodes(tables, path, rank, issues)
        made.add()
        builder, events = made.builder, made.events
        ranks, devices = made.owners.ranks, made.devices
        del made, tables  # which hold what was read of all tables
        memory.give_back(size)
        trace = builder.finish(keep=False)
        sanity_checks.check(trace, issues)
        count_unlaunched_work(trace, issues)
    source = Source(
        str(path), "rpd", "rpd", size=size, events=events,
        nodes=trace.nodes.num_rows,
    )  # fmt: skip
    clock = REALTIME if trace.meta.origin_ns >= _UNIX_NS else BOOTTIME
    return trace.with_meta(
        clock=clock,
        ranks=ranks,
        devices=devices,
        sources=(source,),
        issues=tuple(issues),
        job=path.parent.name or "rpd",
    )
