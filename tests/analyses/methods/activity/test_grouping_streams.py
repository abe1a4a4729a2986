"""Streams of several ranks in groups."""

from __future__ import annotations

from gpu_work import Work, trace

import chopper_interop as ci
from chopper_interop.schemas.kinds import Kind


def test_streams_of_one_name_on_several_ranks_have_their_rank() -> None:
    job = trace([Work(Kind.KERNEL, 0, 9, rank=rank) for rank in (0, 1)])
    streams = ci.analyze(job, "kernels", by="stream").rows["stream"].to_pylist()
    assert sorted(streams) == ["rank 0, s0", "rank 1, s0"]
    assert ci.analyze(job, "kernels", by="rank,stream").rows["stream"].to_pylist() == ["s0", "s0"]
    alone = trace([Work(Kind.KERNEL, 0, 9)])
    assert ci.analyze(alone, "kernels", by="stream").rows["stream"].to_pylist() == ["s0"]
