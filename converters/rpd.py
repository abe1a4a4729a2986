"""rpd, the database of rocmProfileData, schemas 2 and 3 (the older relatives of rocpd).

Calls, GPU operations, values of monitors and counters are events of the source. Ranges of roctx
and rlog (``UserMarker``) become operators of PyTorch or ranges, by their text.

Its times are of ``CLOCK_MONOTONIC``, which is the time since boot unless the node slept; those
that the variant for CUPTI writes are Unix times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop import plausible
from chopper_interop.converters import rpd_read
from chopper_interop.converters.rocprof_launches import count_missing
from chopper_interop.converters.rpd_nodes import Reading
from chopper_interop.converters.rpd_tables import CALLS
from chopper_interop.errors import ReadError
from chopper_interop.files.sqlite import Database
from chopper_interop.files.sqlite_files import names_table
from chopper_interop.files.sqlite_look import has_tables
from chopper_interop.issues import IssueLog
from chopper_interop.registry import Converter
from chopper_interop.schemas.meta import BOOTTIME, REALTIME, Source

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

_OWN = ("rocpd_api", "rocpd_op")
_NOT_OWN = ("rocpd_info_",)
_UNIX_NS = 10**18


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is an rpd database: its first tables are named in there."""
    return names_table(head, *_OWN) and not names_table(head, *_NOT_OWN)


def confirms(path: Path, head: bytes) -> bool:
    """Whether a database has tables of rpd and none of rocpd."""
    return has_tables(path, head, _OWN, _NOT_OWN)


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
    with Database(path, issues) as base:
        tables = rpd_read.Tables(base)
        if not any(tables.has(name) for name in (*CALLS, "rocpd_op")):
            raise ReadError("it has none of the tables of an rpd database", path=path)
        made = Reading(tables, path, rank, issues)
        made.add()
        trace = made.builder.finish()
        plausible.check(trace, issues)
        count_missing(trace, issues)
    source = Source(
        str(path), RPD.name, "rpd", size=path.stat().st_size, events=made.events,
        nodes=trace.nodes.num_rows,
    )  # fmt: skip
    clock = REALTIME if trace.meta.origin_ns >= _UNIX_NS else BOOTTIME
    return trace.with_meta(
        clock=clock,
        ranks=made.owners.ranks,
        devices=made.devices,
        sources=(source,),
        issues=tuple(issues),
        job=path.parent.name or RPD.name,
    )


RPD = Converter(
    name="rpd",
    description="rpd database (rocmProfileData)",
    versions="schemas 2 and 3",
    sniff=sniff,
    confirms=confirms,
    read=read,
    carries="GPU operations with shapes and sizes, HIP, HSA and CUDA calls, roctx and PyTorch's "
    "operators nested on their threads, launches, monitored clocks as series, counters (schema 3)",
)
