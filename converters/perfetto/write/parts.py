"""A trace as a file for each rank, and for some training steps of it, for jobs that are too large for a browser.

A manifest says how Perfetto (v58 on) merges those that are put in one archive
(``tar cf some.tar perfetto_manifest.json rank0.pftrace rank7.pftrace``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chopper_interop import training_steps
from chopper_interop.arrays import arrow
from chopper_interop.io import outputs
from chopper_interop.trace import Trace

MANIFEST = "perfetto_manifest.json"
WHOLE = "job.pftrace"
_HOST_FILE = "host.pftrace"
LARGE_BYTES = 400_000_000
"""Size of a file that browsers open without trouble: they need up to five times as much, of 2 GB that most give."""
_MEASURED = 100_000
"""Nodes whose bytes are measured. Chosen: a tenth of a second, and names count little among so many."""
_RANK_FILE = re.compile(r"rank\d+(-steps\d+-\d+)?\.pftrace")


class StepWindow(NamedTuple):
    """Some training steps of a rank: the time from their start to that of the steps that follow."""

    first: int
    last: int
    start_ns: int
    end_ns: int


def windows(trace: Trace, each: int) -> list[StepWindow]:
    """Windows of `each` training steps of a trace of one rank, which together have all of it.

    The first begins with the trace and the last ends with it; without steps there are none.
    """
    steps = training_steps.marked(trace)
    groups = [steps[at : at + each] for at in range(0, len(steps), each)]
    if not groups:
        return []
    ts, dur, at = trace.array("ts"), trace.array("dur"), trace.array("ts", "samples")
    starts = [group[0].start_ns for group in groups]
    starts[0] = int(min(starts[0], ts.min(), at.min(initial=starts[0])))
    end = int(max((ts + dur).max(), at.max(initial=starts[-1]))) + 1
    return [
        StepWindow(group[0].iteration, group[-1].iteration, start, until)
        for group, start, until in zip(groups, starts, [*starts[1:], end], strict=True)
    ]


def parts(trace: Trace, each: int = 0) -> Iterator[tuple[str, str, Trace]]:
    """Yield name and host of the file of each rank, and of one for series of no such rank.

    With `each`, of each rank and so many training steps.
    """
    hosts = {rank.rank: rank.host for rank in trace.meta.ranks}
    for rank in trace.ranks:
        part, host = trace.rank(rank), hosts.get(rank, "")
        of_steps = windows(part, each) if each else []
        for one in of_steps:
            name = f"rank{rank}-steps{one.first}-{one.last}.pftrace"
            yield name, host, part.between(one.start_ns, one.end_ns)
        if not of_steps:
            yield f"rank{rank}.pftrace", host, part
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


def choose(trace: Trace, size_of: Callable[[Trace], int]) -> int | None:
    """Choose how a trace is split so that no file is larger than `LARGE_BYTES`.

    Parameters
    ----------
    size_of
        Returns the bytes that a trace takes as a file.

    Returns
    -------
    int or None
        None for one file, 0 for a file for each rank, else training steps of a rank in each file. One
        step, or a rank without steps, may still be larger.
    """
    ranks = trace.rank_rows
    if not ranks:
        return None
    largest = trace.rank(max(ranks, key=lambda rank: ranks[rank].stop - ranks[rank].start))
    ts = np.sort(largest.array("ts"))
    middle = len(ts) // 2
    first, last = max(middle - _MEASURED // 2, 0), min(middle + _MEASURED // 2, len(ts) - 1)
    measured = largest.between(int(ts[first]), int(ts[last]) + 1)
    per_node = size_of(measured) / max(measured.nodes.num_rows, 1)
    if per_node * trace.nodes.num_rows <= LARGE_BYTES:
        return None
    steps = len(training_steps.marked(largest))
    of_rank = per_node * largest.nodes.num_rows
    if of_rank <= LARGE_BYTES or not steps:
        return 0
    return max(int(LARGE_BYTES * steps // of_rank), 1)


def across_files(trace: Trace, each: int = 0) -> tuple[int, int]:
    """Count the edges from one file to another, and the nodes that last beyond the time of their file."""
    ts, rank = trace.array("ts"), trace.array("rank")
    end = ts + trace.array("dur")
    part, beyond = np.zeros(len(ts), np.int64), 0
    for number, rows in trace.rank_rows.items() if each else ():
        starts = [one.start_ns for one in windows(trace.rank(number), each)[1:]]
        part[rows] = np.searchsorted(starts, ts[rows], side="right")
        beyond += np.count_nonzero(np.searchsorted(starts, end[rows]) > part[rows])
    src, dst = (trace.array(column, "edges") for column in ("src", "dst"))
    apart = (rank[src] != rank[dst]) | (part[src] != part[dst])
    return int(np.count_nonzero(apart)), int(beyond)


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
    is_our_name = path.name in (MANIFEST, WHOLE, _HOST_FILE) or _RANK_FILE.fullmatch(path.name)
    return bool(is_our_name) and outputs.is_marked(path)
