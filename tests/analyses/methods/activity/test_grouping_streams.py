"""Streams of several ranks in groups, and keys that are not known."""

from __future__ import annotations

import numpy as np
from gpu_work import Work, trace

import chopper_interop as ci
from chopper_interop.analyses.methods.activity import grouping
from chopper_interop.build import TraceBuilder
from chopper_interop.schemas.kinds import Kind, LaneKind


def test_streams_of_one_name_on_several_ranks_have_their_rank() -> None:
    job = trace([Work(Kind.KERNEL, 0, 9, rank=rank) for rank in (0, 1)])
    streams = ci.analyze(job, "kernels", by="stream").rows["stream"].to_pylist()
    assert sorted(streams) == ["rank 0, s0", "rank 1, s0"]
    assert ci.analyze(job, "kernels", by="rank,stream").rows["stream"].to_pylist() == ["s0", "s0"]
    alone = trace([Work(Kind.KERNEL, 0, 9)])
    assert ci.analyze(alone, "kernels", by="stream").rows["stream"].to_pylist() == ["s0"]


def test_lanes_of_one_name_on_one_rank_are_told_apart() -> None:
    """Threads of a process have its name, and each GPU of a process may have a stream 7."""
    builder = TraceBuilder()
    for rank in (0, 1):
        for kind, number, name, device in (
            (LaneKind.THREAD, 41, "python", -1), (LaneKind.THREAD, 42, "python", -1),
            (LaneKind.STREAM, 7, "stream 7", 0), (LaneKind.STREAM, 7, "stream 7", 1),
        ):  # fmt: skip
            lane = builder.lane(rank, kind, number, name, device)
            builder.nodes(kind=0, name="op", rank=rank, lane=lane, ts=np.array([0]), dur=np.array([1]))  # fmt: skip
    job = builder.finish()
    apart = {"python 41", "python 42", "GPU 0, stream 7", "GPU 1, stream 7"}

    def streams(by: str) -> list[str]:
        rows = np.arange(job.nodes.num_rows)
        return grouping.group_nodes(job, rows, by).keys["stream"].to_pylist()

    assert sorted(streams("rank,stream")) == sorted([*apart, *apart])
    assert set(streams("stream")) == {f"rank {rank}, {name}" for rank in (0, 1) for name in apart}


def test_a_key_that_nothing_has_is_named() -> None:
    """The printed table leaves out its column, and a sum of everything would pass for the groups asked for."""
    job = trace([Work(Kind.KERNEL, 0, 9, operation="mm"), Work(Kind.KERNEL, 9, 9)])
    notes = ci.analyze(job, "kernels", by="operation,layer,module").notes
    assert notes["by"] == "no layer and no module is known"
    assert "by" not in ci.analyze(job, "kernels", by="operation").notes
