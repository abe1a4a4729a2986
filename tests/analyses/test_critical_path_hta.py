"""The critical path against the peer's figures: docs/accuracy/critical-path.md explains each difference."""

from __future__ import annotations

import json

from read_once import read_once
from shared_data import real

import chopper_interop as ci

TRACE = "pytorch/cuda_sync_a100/simple_add.json.gz"
FIGURES = "peer_figures/hta_simple_add.json"


def test_the_path_of_simple_add_is_that_of_hta_but_for_known_differences() -> None:
    """That of HTA has kernels that had ended long before the host asked; one launch counts differently."""
    trace = read_once(real(TRACE))
    [hta] = json.loads(real(FIGURES).read_text())["hta_0.6.1"]["cp"]
    result = ci.analyze(trace, "critical_path", by="piece")
    pieces = result.to_pandas()
    nodes = result.annotate(trace).to_pandas(columns=["kind", "name", "ts", "dur", "slack_ns"])
    copies = pieces[pieces["class"] == "copy"]
    launches = pieces[pieces["class"] == "launch"]
    assert (len(copies), copies["dur_ns"].sum()) == (16, 39_080_000)
    assert (len(launches), launches["dur_ns"].sum()) == (16, 1_555_000)
    assert (pieces["class"] == "sync").sum() == 16
    assert not (pieces["class"] == "compute").any()
    last = nodes["kind"].isin(["kernel", "memset"])
    last &= nodes["ts"] >= nodes[last]["ts"].max() - 600_000
    assert nodes[last]["slack_ns"].tolist() == [249_000] * 6
    assert set(nodes.index[nodes["kind"] == "memcpy"]) == set(copies["node"])
    alone = nodes[last]["dur"].sum()
    breakdown = hta["breakdown_us"]
    assert breakdown["gpu_compute_bound"] * 1000 == copies["dur_ns"].sum() + alone
    assert breakdown["gpu_kernel_launch_overhead"] * 1000 == launches["dur_ns"].sum() + 17_000
    span = (hta["last_ts"] - hta["first_ts"]) * 1000
    assert result.summary["path_ns"] == span + 995_000 + 1_253_000


def test_operations_on_the_path_of_hta_are_on_the_path() -> None:
    """All of the window is on it, so operators and calls that are on that of HTA are on this one."""
    trace = read_once(real(TRACE))
    result = ci.analyze(trace, "critical_path", by="piece")
    nodes = result.annotate(trace).to_pandas(columns=["kind", "critical_ns"])
    on_path = nodes[nodes["critical_ns"].notna()]["kind"].value_counts().to_dict()
    assert on_path == {"cpu_op": 352 + 7, "runtime": 218 + 7, "memcpy": 16, "annotation": 8}
