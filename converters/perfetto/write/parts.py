"""A trace as a file for each rank, for jobs that are too large for a browser.

A manifest says how Perfetto (v58 on) merges those that are put in one archive
(``tar cf some.tar perfetto_manifest.json rank0.pftrace rank7.pftrace``).
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.arrays import arrow
from chopper_interop.io import outputs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from chopper_interop.trace import Trace

MANIFEST = "perfetto_manifest.json"
_HOST_FILE = "host.pftrace"
_RANK_FILE = re.compile(r"rank\d+\.pftrace")


def parts(trace: Trace) -> Iterator[tuple[str, str, Trace]]:
    """Yield name and host of the file of each rank, and of one for series of no such rank."""
    hosts = {rank.rank: rank.host for rank in trace.meta.ranks}
    for rank in trace.ranks:
        yield f"rank{rank}.pftrace", hosts.get(rank, ""), trace.rank(rank)
    rest = np.flatnonzero(~np.isin(trace.array("rank", "series"), trace.ranks))
    if len(rest) or not trace.ranks:
        empty = {name: getattr(trace, name).slice(0, 0) for name in ("nodes", "edges", "counters")}
        new_row = np.full(trace.series.num_rows, -1, np.int32)  # of each series, -1 if left out
        new_row[rest] = np.arange(len(rest), dtype=np.int32)
        owner = new_row[trace.array("series", "samples")]
        samples = arrow.replace_column(
            arrow.take(trace.samples, owner >= 0), "series", owner[owner >= 0]
        )
        series = arrow.take(trace.series, rest)
        yield _HOST_FILE, "", replace(trace, series=series, samples=samples, **empty)


def between_files(trace: Trace) -> int:
    """Count the edges that lead from one rank to another, and so from one file to another."""
    rank = trace.array("rank")
    src, dst = (trace.array(column, "edges") for column in ("src", "dst"))
    return int(np.count_nonzero(rank[src] != rank[dst]))


def manifest(hosts: dict[str, str]) -> str:
    """Return the manifest of files, by their names and hosts; several hosts are several machines."""
    several = len(set(hosts.values()) - {""}) > 1
    files: list[dict[str, Any]] = [
        {"path": name, **({"machine": {"name": host}} if several and host else {})}
        for name, host in hosts.items()
    ]
    attributes = {"written_by": outputs.MARK}
    content = {"perfetto_manifest": {"version": 1, "attributes": attributes, "files": files}}
    return json.dumps(content)


def is_part(path: Path) -> bool:
    """True for a file that an earlier conversion wrote into such a folder."""
    is_our_name = path.name in (MANIFEST, _HOST_FILE) or _RANK_FILE.fullmatch(path.name)
    return bool(is_our_name) and outputs.is_marked(path)
