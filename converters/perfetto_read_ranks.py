"""Ranks of the processes of a Perfetto trace, and the trace's metadata."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.clocks import relations
from chopper_interop.columns.members import is_any
from chopper_interop.converters import perfetto_read_kinds as kinds
from chopper_interop.files import inputs
from chopper_interop.issues import RANK_ASSUMED, Fault, Severity
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.schemas.meta import ASSUMED, Device, Meta, Rank, Source

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.converters.perfetto_read_nodes import Nodes
    from chopper_interop.converters.perfetto_read_recording import Recording

PROCESSES_AS_RANKS = Fault(
    "processes-as-ranks",
    Severity.INFO,
    "Processes that do not say their rank were numbered by their process ids.",
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
        How they are known, as `meta.Rank` says it.
    """

    by_pid: dict[int, int]
    known_by: str


def ranks(recording: Recording, used: list[int], given: int | None) -> Ranks:
    """Ranks of the processes that have slices.

    Parameters
    ----------
    recording
        The trace.
    used
        Ids of these processes in ascending order.
    given
        What the user says it is, if anything.
    """
    tracks, issues = recording.tracks, recording.issues
    counted = {tracks.owner(u) for u, t in tracks.by_uuid.items() if t.counts}
    said = {pid: tracks.rank_of(pid) for pid in [*used, *sorted(counted)]}
    if given is not None and len(used) <= 1:
        return Ranks(dict.fromkeys(used, given), "user")
    stated = {pid: rank for pid, rank in said.items() if rank is not None}
    if used and all(pid in stated for pid in used) and _differ(stated, used):
        return Ranks(stated, "labels")
    in_name = _IN_NAME.search(recording.path.name)
    if len(used) == 1 and in_name:
        return Ranks({used[0]: int(in_name.group(1))}, "name")
    issues.add(PROCESSES_AS_RANKS, len(used) if len(used) > 1 else 0)
    issues.add(RANK_ASSUMED, int(len(used) == 1))
    return Ranks({pid: number for number, pid in enumerate(used)}, ASSUMED)


def _differ(stated: dict[int, int], used: list[int]) -> bool:
    return len({stated[pid] for pid in used}) == len(used)


def meta(
    recording: Recording, builder: TraceBuilder, tool: str, ranks: Ranks, nodes: Nodes
) -> Meta:
    """Metadata of the trace when all else of it is made."""
    lanes_of = builder.lanes()
    work = is_any(nodes.kind, GPU_WORK)
    used = {lanes_of[i] for i in np.unique(nodes.lane[work]).tolist()}
    devices = sorted({d for _, d, _, _ in used if d >= 0})
    of_rank = {r: [d for rr, d, _, _ in used if rr == r and d >= 0] for r in ranks.by_pid.values()}
    made = tuple(
        Rank(
            r, pid=pid if pid > 0 else -1, device=min(of_rank.get(r) or [-1]),
            known_by=ranks.known_by,
        )
        for pid, r in sorted(ranks.by_pid.items(), key=lambda item: item[1])
        if r >= 0 and r in {k[0] for k in lanes_of}
    )  # fmt: skip
    source = Source(
        str(recording.path),
        "perfetto",
        tool,
        inputs.sha256(recording.path),
        recording.path.stat().st_size,
        int(recording.counted),
        len(nodes.kind),
    )
    agents = tool == kinds.ROCPROF
    return Meta(
        job=inputs.plain_name(recording.path),
        clock=recording.about.clock(recording.clocks.name),
        offsets=recording.clocks.offsets,
        clocks=relations.distinct(recording.about.fits),
        ranks=made,
        devices=tuple(Device("", d, "", tool, agent=d if agents else -1) for d in devices),
        sources=(source,),
        issues=tuple(recording.issues),
    )
