"""Each kernel belongs to the operator of its launch, whatever ids the profiler gave."""

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from read_once import read_once
from shared_data import real

import chopper_interop as ci
from chopper_interop.schemas.kinds import GPU_WORK, Kind

VALID = (
    "pytorch/ddp_resnet_4rank_amd/rank0.json.gz",
    "pytorch/mi300x/resnet_act_checkpoint.json.gz",
    "pytorch/mi300x/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "pytorch/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "pytorch/h100/gaunernst_bert-small-uncased__1016001.json.gz",
)
"""Files in which External id is that of the operator."""


def operators(trace: ci.Trace, work: np.ndarray) -> np.ndarray:
    """The innermost operator around the launch of each piece of work; -1 if there is none."""
    kind, parent = trace.array("kind"), trace.array("parent")
    result = trace.launch[work].astype(np.int64)
    for _ in range(64):
        on = (result >= 0) & (kind[result] != Kind.CPU_OP)
        if not on.any():
            return result
        result = np.where(on, parent[result], result)
    raise AssertionError("deeper than any stack")


@pytest.mark.parametrize("path", VALID)
def test_kernels_are_of_the_operator_that_the_profiler_names(path: str) -> None:
    trace = read_once(real(path))
    work = np.flatnonzero(np.isin(trace.array("kind"), [int(Kind.KERNEL), int(Kind.MEMCPY)]))
    actual = operators(trace, work)
    ids = [
        (trace.args(int(w)).get("External id"), int(o)) for w, o in zip(work, actual, strict=True)
    ]
    both = [(w, trace.args(o).get("External id")) for w, o in ids if w is not None and o >= 0]
    assert len(both) > 50
    assert sum(a == b for a, b in both) / len(both) >= 0.993


def covering(events: list[dict]) -> dict[int, tuple[str, float]]:
    """By correlation, name and start of the innermost operator around the launch: plainly."""
    ops = defaultdict(list)
    for e in events:
        if e.get("cat") in ("cpu_op", "Operator") and e["ph"] == "X":
            ops[e["tid"]].append((e["ts"], -e["dur"], e["name"]))
    for rows in ops.values():
        rows.sort()
    result = {}
    for e in events:
        if e.get("cat") != "cuda_runtime" or "Launch" not in e["name"]:
            continue
        rows = ops[e["tid"]]
        for ts, minus, name in reversed(rows[: bisect_right(rows, (e["ts"], 1, ""))]):
            if ts - minus >= e["ts"] + e["dur"]:
                result[e["args"]["correlation"]] = (name, ts)
                break
    return result


def test_external_ids_that_are_correlations_lead_nobody_astray(shared: Path) -> None:
    path = shared / "pytorch/rtx2080ti_pairs/linear_kineto.json.gz"
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    expected = covering(events)
    trace = read_once(path)
    work = np.flatnonzero(trace.array("kind") == Kind.KERNEL)
    assert trace.args(int(work[0]))["External id"] == trace.array("correlation")[work[0]]  # a trap
    names, code = trace.names(), trace.array("name")
    actual = operators(trace, work)
    correlation = trace.array("correlation")[work].tolist()
    by_correlation = {
        c: names[code[o]] for c, o in zip(correlation, actual.tolist(), strict=True) if o >= 0
    }
    expected_names = {c: expected[c][0] for c in correlation if c in expected}
    assert len(expected_names) > 8000
    assert by_correlation == expected_names


@pytest.mark.parametrize("name", ["Qwen_Qwen1.5-0.5B-Chat__1016005", "resnet_act_checkpoint"])
def test_no_event_of_a_device_is_without_a_node(shared: Path, name: str) -> None:
    path = shared / f"pytorch/mi300x/{name}.json.gz"
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    on_device = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    trace = read_once(path)
    assert np.isin(trace.array("kind"), [int(k) for k in GPU_WORK]).sum() == len(on_device) > 1000
