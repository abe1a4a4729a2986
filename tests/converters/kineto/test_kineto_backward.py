"""Forward → backward without arrows: the same pairs as the arrows give where there are some."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from kineto_files import flow, span, write
from read_once import read_once
from shared_data import real

import chopper_interop as ci
from chopper_interop.converters.kineto import edges
from chopper_interop.schemas.kinds import EdgeKind

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

DRAWN = {
    "mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz": 4,
    "mi300x/resnet_act_checkpoint.json.gz": 213,
    "misc/nccl_data.json.gz": 543,
    "ddp_resnet_4rank_amd/rank0.json.gz": 705,
}
NOT_DRAWN = {
    "v100_2021/worker0.1623143089861.pt.trace.json.gz": 1068,
    "rtx2080ti_pairs/linear_kineto.json.gz": 2640,
}
"""Files → backward operators that carry a sequence number."""


def pairs(trace: Trace) -> set[tuple[int, int]]:
    chosen = trace.array("kind", "edges") == EdgeKind.FWDBWD
    src, dst = (trace.array(c, "edges")[chosen].tolist() for c in ("src", "dst"))
    return set(zip(src, dst, strict=True))


@pytest.mark.parametrize("name", DRAWN)
def test_numbers_give_the_same_pairs_as_arrows(name: str) -> None:
    trace = read_once(real(f"pytorch/{name}"))
    by_arrows = pairs(trace)
    assert len(by_arrows) == DRAWN[name]
    src, dst = edges.pairs_by_number(trace)
    assert set(zip(src.tolist(), dst.tolist(), strict=True)) == by_arrows


@pytest.mark.parametrize("name", NOT_DRAWN)
def test_files_without_arrows_have_the_pairs(name: str) -> None:
    trace = read_once(real(f"pytorch/{name}"))
    assert len(pairs(trace)) == NOT_DRAWN[name]
    issue = next(i for i in trace.meta.issues if i.code == "fwdbwd-by-number")
    assert issue.count == NOT_DRAWN[name]


def op(name: str, tid: int, ts: int, dur: int, number: int, thread: int) -> dict[str, Any]:
    args = {"Sequence number": number, "Fwd thread id": thread}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


@pytest.mark.parametrize("thread", [1, 139712345678592, (1 << 63) - 1])
def test_the_last_operator_of_a_number_on_its_own_thread_counts(
    tmp_path: Path, thread: int
) -> None:
    events = [
        op("aten::linear", 5, 10, 50, 3, 0),
        op("aten::t", 5, 12, 5, 3, 0),
        op("aten::addmm", 5, 20, 30, 4, 0),
        op("aten::mul", 6, 30, 30, 3, 0),  # another thread counts for itself
        op("autograd::engine::evaluate_function: AddmmBackward0", 7, 100, 20, 4, thread),
        op("AddmmBackward0", 7, 101, 18, 4, thread),
        op("autograd::engine::evaluate_function: TBackward0", 7, 130, 20, 3, thread),
        op("TBackward0", 7, 131, 18, 3, thread),
        op("LostBackward0", 7, 160, 5, 9, thread),
    ]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(
        gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())
    )
    trace = ci.read(path)
    names, name = trace.names(), trace.array("name")
    named_pairs = {(names[name[a]], names[name[b]]) for a, b in pairs(trace)}
    assert named_pairs == {("aten::addmm", "AddmmBackward0"), ("aten::t", "TBackward0")}


@pytest.mark.parametrize("threads", [0, 4, 40])
def test_one_time_of_1970_among_those_of_today_loses_no_arrow(tmp_path: Path, threads: int) -> None:
    """Lane and time did not fit into one number."""
    today = 1_700_000_000_000_000
    others = [span("cpu_op", f"aten::{i}", today + 1, 2, tid=200 + i) for i in range(threads)]
    events = [
        span("cpu_op", "aten::mm", today + 1, 5),
        span("cpu_op", "MmBackward0", today + 20, 5, tid=101),
        span("cpu_op", "aten::zero", 0, 1),
        flow("s", "fwdbwd", 1, today + 1),
        flow("f", "fwdbwd", 1, today + 20, tid=101),
    ]
    trace = ci.read(write(tmp_path / "rank0.json", others + events))
    names = trace.names()
    of_nodes = [names[code] for code in trace.array("name")]
    assert [(of_nodes[a], of_nodes[b]) for a, b in pairs(trace)] == [("aten::mm", "MmBackward0")]
