"""Work of a rank whose recording begins late, and its messages with a rank that recorded before."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kineto_files import BASE, call, kernel, write

import chopper_interop as ci
from chopper_interop.timing import model

STEP = 10_000
"""Microseconds."""


def message(kind: str, rank: int, at: float, number: int) -> list[dict[str, Any]]:
    """A send to, or a receive from, the other of two ranks, with its launch."""
    args = {
        "device": rank, "stream": 7, "Collective name": kind, "Process Group Name": "0", "Group size": 2,
        "Process Group Ranks": "[0, 1]", "In msg nelems": 1024, "Out msg nelems": 1024,
        "dtype": "Float", "Dst Rank" if kind == "send" else "Src Rank": 1 - rank,
    }  # fmt: skip
    work = kernel("ncclDevKernel_SendRecv", at, 100, number, **args)
    return [call("cudaLaunchKernel", at - 20, 5, number), work]


@pytest.mark.parametrize(("number", "follows"), [(1, True), (None, False)], ids=["queued", "late"])
def test_only_what_was_queued_before_the_recording_follows_messages(
    tmp_path: Path, number: int | None, *, follows: bool
) -> None:
    """A kernel without a launch that is late in the recording had got an edge of 117 ms."""
    ranks: list[list[dict[str, Any]]] = [[], []]
    for i in range(12):
        ranks[0] += message("send", 0, 1000 + STEP * i, 10 + i)
        if i >= 6:  # from here on rank 1 records
            ranks[1] += message("recv", 1, 1000 + STEP * i, 10 + i)
    alone = kernel("alone", 118_000, 50, number or 0, device=1, stream=33)
    if number is None:
        del alone["args"]["correlation"]
    ranks[1].append(alone)
    for rank, events in enumerate(ranks):
        info = {"rank": rank, "world_size": 2, "backend": "nccl"}
        write(tmp_path / f"rank{rank}.json", events, baseTimeNanoseconds=BASE, distributedInfo=info)
    trace = ci.read(tmp_path)
    (row,) = np.flatnonzero(trace.texts("name")[0] == trace.texts("name")[1].index("alone"))
    timing = model.timing_of(trace)
    sources = timing.graph.node[timing.graph.src[timing.graph.after == 2 * row]]
    assert (0 in trace.array("rank")[sources]) == follows
