"""Every real input converts, nothing is lost in silence, and Perfetto sees all of it.

What must come out is counted by a JSON library, not by our reader.
"""

import bz2
import gzip
import json
import lzma
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from trace_processor import TraceProcessor

import chopper_interop as ci
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind

KINETO = [
    "base_boundary_4rank_amd/rank2.json.gz",
    "clock_skew_4rank_amd/rank1.json.gz",
    "cuda_sync_a100/event_sync_multi_stream.json.gz",
    "cuda_sync_a100/event_sync_trace.json.gz",
    "cuda_sync_a100/simple_add.json.gz",
    "ddp_resnet_4rank_amd/merged_all_events.json.gz",
    "ddp_resnet_4rank_amd/rank3.json.gz",
    "dlrm_8rank_v100/kineto/worker0_step_12.1694128201545.pt.trace.json",
    "dlrm_8rank_v100/kineto/worker3_step_12.1694128201557.pt.trace.json",
    "h100/Falconsai_nsfw_image_detection__1016002.json.gz",
    "h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "h100/gaunernst_bert-small-uncased__1016001.json.gz",
    "hip_graph_mi300x/sglang_Qwen3-8B_decode.json.gz",
    "hip_graph_mi300x/vllm_graph_execution.json.gz",
    "mi210/gpu_only_trace.json.gz",
    "mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "mi300x/Falconsai_nsfw_image_detection__1016002.json.gz",
    "mi300x/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "mi300x/gaunernst_bert-small-uncased__1016001.json.gz",
    "mi300x/resnet_act_checkpoint.json.gz",
    "mi350x/smci350-zts-gtu-c6-25_200691.1758927066581847260.pt.trace.json",
    "misc/mtia_inference_rank_0.json.gz",
    "misc/nccl_data.json.gz",
    "misc/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "misc/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "misc/rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz",
    "misc/rank0.json.gz",
    "rtx2080ti_pairs/linear_kineto.json.gz",
    (
        "torchrec_4rank_v100/ip-172-31-16-248.us-east-2.compute.internal_44237."
        "1698957662168769395.pt.trace.json"
    ),
    "v100_2021/worker0.1623143089861.pt.trace.json.gz",
]

CALLS = ("cuda_runtime", "cuda_driver", "runtime", "mtia_runtime")
GPU = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "mtia_ccp_events")


def events_of(path: Path) -> list[dict[str, Any]]:
    """Events by the json library, numbers with a point as decimals."""
    raw = path.read_bytes()
    for magic, unpack in ((b"\x1f\x8b", gzip), (b"BZh", bz2), (b"\xfd7z", lzma)):
        raw = unpack.decompress(raw) if raw.startswith(magic) else raw
    document = json.loads(raw, parse_float=Decimal)
    return document if isinstance(document, list) else document["traceEvents"]


def nanoseconds(value: Any) -> int:
    return int(Decimal(value) * 1000)


def test_the_list_is_complete(shared: Path) -> None:
    found = {
        str(p.relative_to(shared / "pytorch"))
        for p in (shared / "pytorch").rglob("*.json*")
        if "host_et" not in p.parts and not {"odd"} & set(p.parts) and "_et." not in p.name
    }
    families = {name.split("/")[0] for name in KINETO}
    assert {name.split("/")[0] for name in found if "truth" not in name} == families
    assert set(KINETO) <= found


@pytest.mark.parametrize("name", KINETO)
def test_kineto_to_perfetto(shared: Path, tmp_path: Path, name: str) -> None:
    path = shared / "pytorch" / name
    events = events_of(path)
    trace = ci.read(path)
    ci.write(trace, tmp_path / "job.pftrace")

    (source,) = trace.meta.sources
    counted = sum(issue.count for issue in trace.meta.issues if issue.events)
    assert source.events == len(events)
    assert source.events == source.nodes + counted

    spans = [e for e in events if e["ph"] == "X"]
    instants = [e for e in events if e["ph"] == "i" and e["name"] != "[memory]"]
    assert trace.nodes.num_rows == len(spans) + len(instants)
    assert int(trace.array("dur").sum()) == sum(nanoseconds(e["dur"]) for e in spans)

    perfetto = TraceProcessor(tmp_path / "job.pftrace")
    assert perfetto.losses() == {}
    sql = "select count(*), sum(dur), min(dur) from slice where category != 'derived'"
    ((slices, total, shortest),) = perfetto.query(sql)
    assert (slices, total) == (len(spans) + len(instants), int(trace.array("dur").sum()))
    assert shortest >= 0
    ((arrows,),) = perfetto.query("select count(*) from flow")
    assert arrows == trace.edges.num_rows

    by_name = Counter(e["name"].replace("\n", "") for e in spans if e["cat"].lower() == "kernel")
    kernels = perfetto.query(
        "select name, count(*) from slice where category in ('kernel', 'communication') "
        "group by name"
    )
    if "mtia" not in name:
        assert dict(kernels) == by_name


@pytest.mark.parametrize("name", KINETO)
def test_launches_are_those_of_the_correlation_ids(shared: Path, name: str) -> None:
    events = events_of(shared / "pytorch" / name)
    spans = [e for e in events if e["ph"] == "X"]
    calls = {
        e["args"]["correlation"]
        for e in spans
        if e["cat"].lower() in CALLS and e.get("args", {}).get("correlation", 0) > 0
    }
    work = [e for e in spans if e["cat"].lower() in GPU]
    launched = sum(e.get("args", {}).get("correlation") in calls for e in work)
    trace = ci.read(shared / "pytorch" / name)
    kinds = Counter(trace.array("kind", "edges").tolist())
    assert kinds[EdgeKind.LAUNCH] == launched
    lost = {i.code: i.count for i in trace.meta.issues}.get("launch-not-recorded", 0)
    assert launched + lost == len(work)
    assert sum(trace.array("kind").tolist().count(int(k)) for k in GPU_WORK) == len(work)
    assert kinds[EdgeKind.FWDBWD] <= sum(e["ph"] == "s" and e["cat"] == "fwdbwd" for e in events)


def test_forward_and_backward_are_tied_on_real_training(shared: Path) -> None:
    trace = ci.read(shared / "pytorch" / "mi300x" / "resnet_act_checkpoint.json.gz")
    names = trace.names()
    code = trace.array("name")
    pairs = [
        (names[code[src]], names[code[dst]])
        for src, dst, kind in zip(
            *(trace.array(c, "edges").tolist() for c in ("src", "dst", "kind")), strict=True
        )
        if kind == EdgeKind.FWDBWD
    ]
    assert len(pairs) == 213
    backward = [b for _, b in pairs if "Backward" in b or "evaluate_function" in b]
    assert len(backward) == len(pairs)


def test_rccl_collectives_are_typed_and_agree_between_ranks(shared: Path) -> None:
    trace = ci.read(shared / "pytorch" / "ddp_resnet_4rank_amd" / "merged_all_events.json.gz")
    frame = trace.to_pandas()
    comm = frame[frame["kind"] == "comm"]
    assert comm["name"].str.startswith("ncclDevKernel_Generic").all()
    assert comm["collective"].notna().all()
    for _, rank in comm.groupby("rank"):
        assert rank["seq"].nunique() == 21
    facts = ["seq", "collective", "bytes", "dtype", "group"]
    assert len(comm[facts].drop_duplicates()) == 21


def test_the_fused_file_and_its_ranks_are_the_same_job(shared: Path, run) -> None:
    folder = shared / "pytorch" / "ddp_resnet_4rank_amd"
    fused = ci.read(folder / "merged_all_events.json.gz")
    split = ci.read(*sorted(folder.glob("rank*.json.gz")))
    for rank in range(4):
        a, b = fused.rank(rank), split.rank(rank)
        for column in ("ts", "dur", "kind", "correlation"):
            left, right = a.array(column), b.array(column)
            if column == "ts":
                left, right = left + a.meta.origin_ns, right + b.meta.origin_ns
            assert (left == right).all(), column
    status, _, told = run("convert", folder, "-o", "/dev/null/x.pftrace")
    assert status == 6, told  # both are there, and that is no second run
    assert "cannot be written" in told
