"""Several processes of one rank: what a rank starts has its environment, and so its number."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from chopper_interop.issues import Fault, Severity
from chopper_interop.schemas.meta import BOOTTIME

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence
    from pathlib import Path

    from chopper_interop.issues import IssueLog
    from chopper_interop.joining.fragment import Fragment
    from chopper_interop.schemas.meta import Rank

OF_ONE_RANK = Fault(
    "processes-of-one-rank",
    Severity.INFO,
    "Processes that have the rank of another one on their node, which started them or ran at the "
    "same time, stand in that rank, on lanes of their own.",
)
CLOCKS_OF_NODES = Fault(
    "clocks-of-nodes",
    Severity.INFO,
    "Nodes whose times count from their own boot, and of which no source tells the relation: their "
    "ranks stand where they say they were, and times of two nodes cannot be compared.",
)


def children_last(fragments: Iterable[Fragment]) -> list[Fragment]:
    """The fragments, those of processes that others of them started behind these."""
    found = list(fragments)
    pids = {(r.host, r.pid) for f in found for r in f.trace.meta.ranks if r.pid >= 0}
    return sorted(found, key=lambda f: any((r.host, r.parent) in pids for r in f.trace.meta.ranks))


def share(first: Fragment, second: Fragment, rank: int) -> bool:
    """Whether two fragments are of different processes of one rank.

    Both must tell their parents, so that a rank is known to be one of a process; two that did not
    start each other must overlap in time, or they would be two runs.
    """
    one, other = (f.rank_of(rank) for f in (first, second))
    if one.host != other.host or one.pid == other.pid or min(one.parent, other.parent) < 0:
        return False
    if one.pid == other.parent or other.pid == one.parent:
        return True
    (start, stop), (start_2, stop_2) = first.window_ns, second.window_ns
    return max(start, start_2) < min(stop, stop_2)


def beside(fragment: Fragment, owners: Sequence[Rank]) -> Fragment:
    """A fragment whose ranks are those of other processes: its lanes say which process it is."""
    trace = fragment.trace
    taken = {rank.rank: rank for rank in owners}
    pids = {r.rank: r.pid for r in trace.meta.ranks if r.rank in taken}
    names = [
        f"{name} (process {pids[rank]})" if rank in pids else name
        for rank, name in zip(
            trace.lanes["rank"].to_pylist(), trace.lanes["name"].to_pylist(), strict=True
        )
    ]
    at = trace.lanes.schema.get_field_index("name")
    field = trace.lanes.schema.field(at)
    lanes = trace.lanes.set_column(at, field, pa.array(names, field.type))
    ranks = tuple(taken.get(r.rank, r) for r in trace.meta.ranks)
    return replace(fragment, trace=replace(trace, lanes=lanes).with_meta(ranks=ranks))


def note_clocks(
    fragments: Iterable[Fragment], issues: IssueLog, told: Container[Path] = ()
) -> None:
    """Tell of nodes whose clocks have nothing in common, but for files of which the user told."""
    hosts = {
        r.host
        for f in fragments
        if f.trace.meta.clock == BOOTTIME and f.files.paths[0] not in told
        for r in f.trace.meta.ranks
        if r.host
    }
    if len(hosts) > 1:
        issues.add(CLOCKS_OF_NODES, len(hosts), ", ".join(sorted(hosts)))
