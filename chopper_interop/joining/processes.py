"""Several processes of one rank: one that a rank starts inherits its environment, and its number."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.meta import BOOTTIME, Rank

if TYPE_CHECKING:
    from chopper_interop.joining.fragment import Fragment

OF_ONE_RANK = Fault.info(
    "processes-of-one-rank",
    "Processes that have the rank of another one on their node, which started them or ran at the "
    "same time, are part of that rank, on lanes of their own.",
)
CLOCKS_UNRELATED = Fault.info(
    "clocks-of-hosts-unrelated",
    "Hosts whose times count from their own boot, and whose clocks no source relates: their ranks "
    "keep the times that they recorded, and times of two hosts cannot be compared.",
)


def children_last(fragments: Iterable[Fragment]) -> list[Fragment]:
    """Sort fragments so that processes started by others come after these."""
    fragments = list(fragments)
    pids = {(r.host, r.pid) for f in fragments for r in f.trace.meta.ranks if r.pid >= 0}
    return sorted(
        fragments, key=lambda f: any((r.host, r.parent) in pids for r in f.trace.meta.ranks)
    )


def are_of_one_rank(first: Fragment, second: Fragment, rank: int) -> bool:
    """True if two fragments are of different processes of one rank.

    Both must state their parents, so that the rank is known to be that of a process; two that did
    not start each other must overlap in time, or they would be two runs.
    """
    a, b = (f.rank_of(rank) for f in (first, second))
    if a.host != b.host or a.pid == b.pid or min(a.parent, b.parent) < 0:
        return False
    if a.pid == b.parent or b.pid == a.parent:
        return True
    (start, stop), (start_2, stop_2) = first.window_ns, second.window_ns
    return max(start, start_2) < min(stop, stop_2)


def name_lanes_by_process(fragment: Fragment, owners: Sequence[Rank]) -> Fragment:
    """Give a fragment the ranks of other processes, and its lanes the id of its own process.

    Parameters
    ----------
    fragment
        A process that has the numbers of ranks of other processes.
    owners
        These ranks, as the other processes describe them.
    """
    trace = fragment.trace
    owner_of = {rank.rank: rank for rank in owners}
    pids = {r.rank: r.pid for r in trace.meta.ranks if r.rank in owner_of}
    names = [
        f"{name} (process {pids[rank]})" if rank in pids else name
        for rank, name in zip(
            trace.lanes["rank"].to_pylist(), trace.lanes["name"].to_pylist(), strict=True
        )
    ]
    at = trace.lanes.schema.get_field_index("name")
    field = trace.lanes.schema.field(at)
    lanes = trace.lanes.set_column(at, field, pa.array(names, field.type))
    ranks = tuple(owner_of.get(r.rank, r) for r in trace.meta.ranks)
    return replace(fragment, trace=replace(trace, lanes=lanes).with_meta(ranks=ranks))


def note_unrelated_clocks(
    fragments: Iterable[Fragment], issues: IssueLog, set_by_user: Container[Path] = ()
) -> None:
    """Note hosts whose clocks are unrelated, but for files whose clock the user states."""
    hosts = {
        r.host
        for f in fragments
        if f.trace.meta.clock == BOOTTIME and f.path not in set_by_user
        for r in f.trace.meta.ranks
        if r.host
    }
    if len(hosts) > 1:
        issues.add(CLOCKS_UNRELATED, len(hosts), ", ".join(sorted(hosts)))
