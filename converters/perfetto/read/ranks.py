"""Ranks of the processes of a Perfetto trace, and the metadata of the trace that is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays.members import is_any
from chopper_interop.converters.perfetto.read import kinds
from chopper_interop.io import inputs
from chopper_interop.issues import RANK_ASSUMED, Fault, Severity
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.schemas.meta import ASSUMED, Device, Meta, Rank, Source

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.converters.perfetto.read.nodes import Nodes
    from chopper_interop.converters.perfetto.read.recording import Recording

PROCESSES_AS_RANKS = Fault(
    "processes-as-ranks",
    Severity.INFO,
    "Processes without a rank in their names or labels were numbered by their process ids.",
)

_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d{1,7})", re.IGNORECASE)


@dataclass(frozen=True)
class Ranks:
    """Ranks of processes.

    Parameters
    ----------
    by_pid
        Process id → rank.
    known_by
        Source of the ranks, as in `meta.Rank`.
    """

    by_pid: dict[int, int]
    known_by: str


def assign_ranks(recording: Recording, used: list[int], user_rank: int | None) -> Ranks:
    """Assign ranks to the processes that have slices: by the user, labels, file name, or order.

    Parameters
    ----------
    recording
        The trace.
    used
        Ids of these processes in ascending order.
    user_rank
        Rank that the user chose, if any.
    """
    tracks, issues = recording.tracks, recording.issues
    with_counters = {tracks.process_of(u) for u, t in tracks.by_uuid.items() if t.is_counter}
    labels = {pid: tracks.rank_of(pid) for pid in [*used, *sorted(with_counters)]}
    if user_rank is not None and len(used) <= 1:
        return Ranks(dict.fromkeys(used, user_rank), "user")
    labelled = {pid: rank for pid, rank in labels.items() if rank is not None}
    if used and all(pid in labelled for pid in used) and _are_distinct(labelled, used):
        return Ranks(labelled, "labels")
    in_name = _IN_NAME.search(recording.path.name)
    if len(used) == 1 and in_name:
        return Ranks({used[0]: int(in_name.group(1))}, "name")
    issues.add(PROCESSES_AS_RANKS, len(used) if len(used) > 1 else 0)
    issues.add(RANK_ASSUMED, int(len(used) == 1))
    return Ranks({pid: number for number, pid in enumerate(used)}, ASSUMED)


def _are_distinct(labelled: dict[int, int], used: list[int]) -> bool:
    return len({labelled[pid] for pid in used}) == len(used)


def build_meta(
    recording: Recording, builder: TraceBuilder, tool: str, ranks: Ranks, nodes: Nodes
) -> Meta:
    """Build the metadata of the trace, when all else of it is in the builder."""
    lanes = builder.lanes()
    work = is_any(nodes.kind, GPU_WORK)
    used = {lanes[i] for i in np.unique(nodes.lane[work]).tolist()}
    devices = sorted({d for _, d, _, _ in used if d >= 0})
    by_rank = {r: [d for rr, d, _, _ in used if rr == r and d >= 0] for r in ranks.by_pid.values()}
    with_lanes = {lane[0] for lane in lanes}
    meta_ranks = tuple(
        Rank(
            r, pid=pid if pid > 0 else -1, device=min(by_rank.get(r) or [-1]),
            known_by=ranks.known_by,
        )
        for pid, r in sorted(ranks.by_pid.items(), key=lambda item: item[1])
        if r >= 0 and r in with_lanes
    )  # fmt: skip
    source = Source(
        str(recording.path),
        "perfetto",
        tool,
        inputs.sha256(recording.path),
        recording.path.stat().st_size,
        int(recording.event_count),
        len(nodes.kind),
    )
    has_agents = tool == kinds.ROCPROF
    return Meta(
        job=inputs.plain_name(recording.path),
        clock=recording.metadata.clock(recording.clocks.name),
        offsets=recording.clocks.offsets,
        clocks=tuple(dict.fromkeys(recording.metadata.fits)),
        ranks=meta_ranks,
        devices=tuple(Device("", d, "", tool, agent=d if has_agents else -1) for d in devices),
        sources=(source,),
        issues=tuple(recording.issues),
    )
