"""Jobs of made collectives, of which it is known what belongs together and what clocks show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.build import TraceBuilder
from chopper_interop.schemas.kinds import Collective, Kind, LaneKind
from chopper_interop.schemas.meta import Meta, Rank

if TYPE_CHECKING:
    import chopper_interop as ci

EPOCH = 1_767_189_312_000_000_000


@dataclass
class Member:
    """One rank's part in a collective, on the true clock."""

    truth: int
    """Number of the collective."""
    rank: int
    start: int
    end: int
    group: str = ""
    kind: str | None = Collective.ALL_REDUCE
    size: int | None = 64
    seq: int | None = None
    peer: int | None = None
    root: int | None = None


def clock(t: int, offset_ns: int, drift_ppm: float) -> int:
    """Reading of a clock at a time since `EPOCH` that is off by this."""
    return t + offset_ns + round(t * drift_ppm / 1e6)


def job(
    members: list[Member],
    clocks: dict[int, tuple[int, float]] | None = None,
    groups: dict[str, list[int]] | None = None,
    hosts: dict[int, str] | None = None,
) -> ci.Trace:
    """A trace of these members, a rank's times by its clock: its offset and its drift in ppm.

    The argument ``truth`` of a node is the number of its collective.
    """
    ranks = sorted({m.rank for m in members})
    about = tuple(Rank(r, host=(hosts or {}).get(r, ""), device=0) for r in ranks)
    builder = TraceBuilder(Meta(ranks=about))
    rows = {name: builder.group(name, listed) for name, listed in (groups or {}).items()}
    for m in members:
        lane = builder.lane(m.rank, LaneKind.STREAM, 7, "stream 7", 0)
        start, end = (clock(t, *(clocks or {}).get(m.rank, (0, 0.0))) for t in (m.start, m.end))
        stated: dict[str, Any] = {"seq": m.seq, "peer": m.peer, "root": m.root, "bytes": m.size}
        stated["collective"] = m.kind
        if m.group in rows:
            stated["group"] = rows[m.group]
        builder.nodes(
            kind=int(Kind.COMM),
            name="nccl",
            rank=m.rank,
            lane=lane,
            ts=np.array([EPOCH + start], np.int64),
            dur=end - start,
            correlation=m.truth,
            **{name: value for name, value in stated.items() if value is not None},
        )
    return builder.finish()


def truth(trace: ci.Trace) -> list[list[int]]:
    """Rows of each collective that more than one rank has, as made."""
    return _together(trace.array("correlation").tolist())


def rows_of_instances(trace: ci.Trace) -> list[list[int]]:
    """Rows of each instance."""
    return _together([-1 if v is None else v for v in instances(trace)])


def instances(trace: ci.Trace) -> list[int | None]:
    """The instance of each node."""
    return trace.nodes["instance"].to_pylist()  # type: ignore[no-any-return]


def _together(numbers: list[int]) -> list[list[int]]:
    rows: dict[int, list[int]] = {}
    for row, number in enumerate(numbers):
        if number >= 0:
            rows.setdefault(number, []).append(row)
    return sorted(r for r in rows.values() if len(r) > 1)
