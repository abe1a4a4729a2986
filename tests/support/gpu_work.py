"""Small traces of GPU work, and what is true of them nanosecond by nanosecond."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from chopper_interop.build import TraceBuilder
from chopper_interop.schemas.kinds import GPU_WORK, Kind, LaneKind

if TYPE_CHECKING:
    import chopper_interop as ci


@dataclass(frozen=True)
class Work:
    """A node of GPU work."""

    kind: Kind
    start: int
    dur: int
    rank: int = 0
    device: int = 0
    stream: int = 0
    name: str = "k"
    iteration: int = -1
    operation: str = ""
    collective: str = ""

    @property
    def gpu(self) -> tuple[int, int]:
        """Rank and device."""
        return self.rank, self.device

    @property
    def sort(self) -> str:
        """compute, comm or copy."""
        return {Kind.COMM: "comm", Kind.MEMCPY: "copy"}.get(self.kind, "compute")

    def instants(self) -> set[tuple[int, int, int]]:
        """Rank, device and time of every nanosecond of it."""
        return {(*self.gpu, t) for t in range(self.start, self.start + self.dur)}


WORKS = st.lists(
    st.builds(
        Work,
        kind=st.sampled_from(GPU_WORK),
        start=st.integers(0, 40),
        dur=st.integers(0, 15),
        rank=st.integers(0, 2),
        device=st.integers(0, 1),
        stream=st.integers(0, 1),
        name=st.sampled_from(["a", "b"]),
        iteration=st.integers(-1, 1),
        operation=st.sampled_from(["", "mm", "add"]),
        collective=st.sampled_from(["", "all_reduce", "broadcast"]),
    ),
    max_size=14,
)


def trace(works: list[Work], origin_ns: int = 0) -> ci.Trace:
    """The trace of this work, with what is known of it as columns."""
    builder = TraceBuilder()
    if not works:
        return builder.finish()
    lanes = {
        (w.rank, w.device, w.stream): builder.lane(
            w.rank,
            LaneKind.STREAM,
            10 * w.device + w.stream,
            f"s{10 * w.device + w.stream}",
            w.device,
        )
        for w in works
    }
    builder.nodes(
        kind=np.array([int(w.kind) for w in works]),
        name=[w.name for w in works],
        rank=np.array([w.rank for w in works]),
        lane=np.array([lanes[w.rank, w.device, w.stream] for w in works]),
        ts=np.array([origin_ns + w.start for w in works]),
        dur=np.array([w.dur for w in works]),
    )
    made = builder.finish()
    # nodes with equal places may come in any order, so rows are identified by how they were sorted
    order = sorted(range(len(works)), key=lambda i: (works[i].rank, works[i].start, -works[i].dur))
    rows = [works[i] for i in order]
    assert [w.dur for w in rows] == made.array("dur").tolist()
    assert [int(w.kind) for w in rows] == made.array("kind").tolist()
    return made.with_columns(
        iteration=[None if w.iteration < 0 else w.iteration for w in rows],
        operation=[w.operation or None for w in rows],
        collective=[w.collective or None for w in rows],
    )


def instants(works: list[Work]) -> set[tuple[int, int, int]]:
    """Every nanosecond in which any of this ran on its GPU."""
    return set().union(*(work.instants() for work in works))
