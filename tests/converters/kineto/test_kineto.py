"""The Kineto reader: what each version and vendor writes, and its traps."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from issue_counts import counts
from kineto_files import BASE, call, flow, kernel, span, write

import chopper_interop as ci
from chopper_interop.edges import communication
from chopper_interop.errors import ReadError
from chopper_interop.schemas.categories import PYTORCH, WITHIN_CATEGORY
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.testing import check_trace

RANK = {"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}}


def read(tmp_path: Path, events: list[dict], name: str = "trace.json", **header) -> ci.Trace:
    return ci.read(write(tmp_path / name, events, **header))


def edges(trace: ci.Trace, kind: EdgeKind) -> list[tuple[str, str]]:
    names, code = trace.names(), trace.array("name")
    return [
        (names[code[s]], names[code[d]])
        for s, d, k in zip(*(trace.array(c, "edges") for c in ("src", "dst", "kind")), strict=True)
        if k == kind
    ]


def lane_of(trace: ci.Trace, name: str) -> dict[str, Any]:
    row = int(np.flatnonzero(trace.array("name") == trace.names().index(name))[0])
    return trace.lanes.to_pylist()[trace.array("lane")[row]]


@pytest.mark.parametrize(
    ("header", "start_ns"),
    [
        ({"baseTimeNanoseconds": BASE}, BASE + 3743411230047485),
        ({}, 3743411230047485),
    ],
)
def test_times_are_exact(tmp_path: Path, header: dict, start_ns: int) -> None:
    trace = read(tmp_path, [span("cpu_op", "a", 3743411230047.485, 67.32)], **header)
    assert trace.meta.origin_ns + int(trace.array("ts")[0]) == start_ns
    assert trace.array("dur").tolist() == [67320]


def test_base_after_the_events(tmp_path: Path) -> None:
    events = json.dumps([span("cpu_op", "a", 1.5, 1)])
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents": {events}, "baseTimeNanoseconds": {BASE}}}')
    assert ci.read(path).meta.origin_ns == BASE + 1500


def test_list_form(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([span("cpu_op", "a", 1, 1)]))
    assert ci.read(path).nodes.num_rows == 1


@pytest.mark.parametrize(
    ("name", "header", "rank", "known_by"),
    [
        ("x.json", RANK, 3, "header"),
        ("rank-34.Jul_15.pt.trace.json", {}, 34, "name"),
        ("worker7_step_12.json", {}, 7, "name"),
        ("rank2.json", RANK, 3, "header"),
        ("x.json", {}, 0, "assumed"),
        ("x.json", {"distributedInfo": {"rank": "5"}}, 5, "header"),
    ],
)
def test_rank(tmp_path: Path, name: str, header: dict, rank: int, known_by: str) -> None:
    trace = read(tmp_path, [span("cpu_op", "a", 1, 1)], name, **header)
    assert trace.ranks == [rank]
    assert [(r.rank, r.known_by, r.pid) for r in trace.meta.ranks] == [(rank, known_by, 100)]


@pytest.mark.parametrize(("category", "kind"), PYTORCH.items())
def test_every_category(tmp_path: Path, category: str, kind: Kind) -> None:
    ph = "i" if kind is Kind.INSTANT else "X"
    trace = read(tmp_path, [span(category, "a", 1, 2) | {"ph": ph}])
    assert trace.array("kind").tolist() == [int(kind)]


@pytest.mark.parametrize(("event", "kind"), WITHIN_CATEGORY.items())
def test_names_tell_kinds_of_one_category_apart(
    tmp_path: Path, event: tuple[str, str], kind: Kind
) -> None:
    category, name = event
    trace = read(tmp_path, [span(category, name, 1, 2), span(category, "a", 4, 2)])
    assert trace.array("kind").tolist() == [int(kind), int(PYTORCH[category])]


def test_dma_requests_of_mtia_move_their_size(tmp_path: Path) -> None:
    trace = read(tmp_path, [span("mtia_ccp_events", "dma_request", 1, 2, args={"size": 1024})])
    assert trace.nodes["bytes"].to_pylist() == [1024]


def test_unknown_categories_are_kept(tmp_path: Path) -> None:
    trace = read(tmp_path, [span("warp_drive", "a", 1, 1)])
    assert trace.array("kind").tolist() == [int(Kind.OTHER)]
    assert counts(trace)["category-unknown"] == 1


def test_the_category_and_never_the_stream_marks_gpu_work(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        [
            span("cpu_op", "triton_op", 1, 5, args={"stream": 0}),
            kernel("k", 2, 1, 7),
            kernel("handle", 4, 1, 8, stream=94573028413440),
        ],
    )
    assert lane_of(trace, "triton_op")["kind"] == LaneKind.THREAD
    assert lane_of(trace, "k") == {
        "rank": 0, "device": 2, "kind": LaneKind.STREAM, "number": 0, "name": "stream 0",
    }  # fmt: skip
    assert lane_of(trace, "handle")["number"] == 94573028413440


def test_string_process_and_thread_ids(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        [
            span("Operator", "a", 1, 1, tid="100"),
            span("Kernel", "k", 2, 1, pid=0, tid="stream 7", args={"stream": 7, "device": 0}),
            span("Trace", "PyTorch Profiler (0)", 0, 9, pid="Spans", tid="PyTorch Profiler"),
            span("overhead", "Instrumentation", 0, 1, pid=-1, tid=0),
        ],
    )
    assert lane_of(trace, "a")["number"] == 100
    assert lane_of(trace, "k")["number"] == 7
    assert lane_of(trace, "PyTorch Profiler (0)")["name"] == "PyTorch Profiler"
    assert lane_of(trace, "Instrumentation")["kind"] == LaneKind.PROFILER


def test_thread_names(tmp_path: Path) -> None:
    name = {"ph": "M", "name": "thread_name", "pid": 100, "tid": 100, "ts": 0}
    events = [span("cpu_op", "a", 1, 1), name | {"args": {"name": "thread 100 (python3)"}}]
    trace = read(tmp_path, events)
    assert lane_of(trace, "a")["name"] == "python3"
    assert counts(trace)["metadata-event"] == 1


def test_launches_by_correlation(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        [
            call("hipLaunchKernel", 1, 2, 11),
            call("hipGraphLaunch", 4, 2, 12),
            call("hipStreamIsCapturing", 7, 1, 13),
            kernel("one", 5, 1, 11),
            kernel("g1", 8, 1, 12),
            kernel("g2", 9, 1, 12),
            kernel("before the window", 2, 1, 5),
        ],
    )
    assert sorted(edges(trace, EdgeKind.LAUNCH)) == [
        ("hipGraphLaunch", "g1"),
        ("hipGraphLaunch", "g2"),
        ("hipLaunchKernel", "one"),
    ]
    assert counts(trace)["launch-not-recorded"] == 1


def test_duplicate_correlations_prefer_a_launch(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        [call("hipGetDevice", 1, 1, 11), call("hipModuleLaunchKernel", 3, 1, 11),
         kernel("k", 5, 1, 11)],
    )  # fmt: skip
    assert edges(trace, EdgeKind.LAUNCH) == [("hipModuleLaunchKernel", "k")]


def test_several_launches_of_one_id_are_a_loss(tmp_path: Path) -> None:
    """Work of all of them was linked to the first, and nothing said so; a launch that calls another is one."""
    launch, inner = "hipLaunchKernel", "hipModuleLaunchKernel"
    events = [call(launch, 1, 3, 11), call(inner, 2, 1, 11), kernel("k", 5, 1, 11)]
    assert "launch-ambiguous" not in counts(read(tmp_path, events))
    twice = read(tmp_path, [*events[1:], call(launch, 6, 1, 11), kernel("k", 8, 1, 11)])
    assert counts(twice)["launch-ambiguous"] == 2


def test_external_ids_link_nothing(tmp_path: Path) -> None:
    """Until torch 2.2 a kernel's External id is its correlation id, and another operator's too."""
    trace = read(
        tmp_path,
        [
            span("cpu_op", "wrong", 1, 2, args={"External id": 55}),
            span("cpu_op", "right", 5, 5, args={"External id": 9}),
            call("cudaLaunchKernel", 6, 1, 55),
            kernel("k", 8, 1, 55, **{"External id": 55}),
        ],
    )
    (launch,) = np.flatnonzero(trace.array("kind") == Kind.RUNTIME)
    parent = trace.array("parent")[launch]
    assert trace.names()[trace.array("name")[parent]] == "right"
    assert edges(trace, EdgeKind.LAUNCH) == [("cudaLaunchKernel", "k")]


def test_kernels_without_correlation_are_matched_by_order(tmp_path: Path) -> None:
    rccl = "ncclDevKernel_Generic(ncclDevComm*)"
    launch = "hipExtLaunchKernel"
    events = [call(launch, 1, 1, 21), call(launch, 3, 1, 22), kernel(rccl, 5, 1, 0),
              kernel(rccl, 7, 1, 0)]  # fmt: skip
    trace = read(tmp_path, events)
    assert edges(trace, EdgeKind.LAUNCH) == [(launch, rccl)] * 2
    assert counts(trace)["launch-by-order"] == 2
    unequal = read(tmp_path, events[1:])
    assert edges(unequal, EdgeKind.LAUNCH) == []
    assert counts(unequal)["launch-not-recorded"] == 2


def test_a_kernel_before_its_launch_is_kept_and_counted(tmp_path: Path) -> None:
    trace = read(tmp_path, [call("hipLaunchKernel", 10, 1, 1), kernel("k", 9, 1, 1)])
    assert edges(trace, EdgeKind.LAUNCH) == [("hipLaunchKernel", "k")]
    assert counts(trace)["kernel-before-launch"] == 1


def test_forward_to_backward(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        [
            span("cpu_op", "aten::conv2d", 1, 9),
            span("cpu_op", "aten::convolution", 1, 8),
            span("cpu_op", "ConvolutionBackward0", 20, 5, tid=200),
            span("cpu_op", "aten::convolution_backward", 20, 4, tid=200),
            flow("s", "fwdbwd", 1, 1),
            flow("f", "fwdbwd", 1, 20, tid=200),
            flow("f", "fwdbwd", 2, 99, tid=200),
            flow("s", "ac2g", 1, 1),
        ],
    )
    assert edges(trace, EdgeKind.FWDBWD) == [("aten::convolution", "ConvolutionBackward0")]
    assert counts(trace)["fwdbwd-unbound"] == 1
    assert counts(trace)["flow-event"] == 4


def test_arrows_from_forward_to_backward_without_any_operator_are_counted(tmp_path: Path) -> None:
    """Nothing among which to search made an array of another length."""
    arrows = [flow(phase, "fwdbwd", 1, ts) for phase, ts in (("s", 1), ("f", 20))]
    trace = read(tmp_path, [kernel("k", 5, 1, 1), *arrows])
    assert edges(trace, EdgeKind.FWDBWD) == []
    assert counts(trace)["fwdbwd-unbound"] == 1


def comms(tmp_path: Path, *around: dict, kernel_args: dict | None = None, **header) -> dict:
    """Annotations of one communication kernel launched within `around`."""
    rccl = kernel("ncclDevKernel_Generic_4(x)", 50, 5, 1, **(kernel_args or {}))
    trace = read(tmp_path, [*around, call("hipExtLaunchKernel", 5, 1, 1), rccl], **header)
    (row,) = np.flatnonzero(trace.array("kind") == Kind.COMM)
    columns = ("collective", "group", "seq", "peer", "root", "dtype", "bytes", "out_bytes")
    values = {c: trace.values(c)[row] for c in columns}
    facts = {c: None if pd.isna(v) else v for c, v in values.items()}
    if facts["group"] is not None:
        facts["group"] = trace.groups.to_pylist()[int(facts["group"])]
    return facts


STATED = {
    "Collective name": "_allgather_base", "In msg nelems": 100, "Out msg nelems": 800,
    "Group size": 8, "dtype": "BFloat16", "Process Group Name": "7",
    "Process Group Description": "mesh_dp", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
}  # fmt: skip


def params(**args: Any) -> dict[str, Any]:
    return span("cpu_op", "record_param_comms", 2, 9, args=args)


def test_facts_of_rccl_are_those_of_the_host_operator(tmp_path: Path) -> None:
    facts = comms(tmp_path, params(**STATED, Seq=41))
    assert facts == {
        "collective": "all_gather", "seq": 41, "peer": None, "root": None, "dtype": "BFloat16", "bytes": 200,
        "out_bytes": 1600,
        "group": {"name": "7", "description": "mesh_dp", "backend": "", "ranks": list(range(8))},
    }  # fmt: skip


def test_sequence_number_of_torch_2_4(tmp_path: Path) -> None:
    concrete = ["", "66", "", "0", "", "[]", "[]", "0", "1", "8"]
    assert comms(tmp_path, params(**STATED, **{"Concrete Inputs": concrete}))["seq"] == 66
    assert comms(tmp_path, params(**STATED, **{"Concrete Inputs": ["", ""]}))["seq"] is None


def test_facts_of_nccl_are_those_of_the_kernel(tmp_path: Path) -> None:
    facts = comms(tmp_path, kernel_args=STATED | {"Collective name": "_reduce_scatter_base"})
    assert (facts["collective"], facts["bytes"]) == ("reduce_scatter", 200)


def test_files_without_metadata_have_the_facts_in_the_annotation(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[1024, 3]], "Input type": ["float"]}
    facts = comms(tmp_path, params(), span("user_annotation", "nccl:all_to_all", 3, 7, args=shapes),
                  **RANK)  # fmt: skip
    assert facts["collective"] == "all_to_all"
    assert facts["bytes"] == 1024 * 3 * 4
    assert facts["group"]["ranks"] == list(range(8))


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_AllGather_RING_LL", "all_gather"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "send_recv"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", None),
        ("_allgather_base", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base", "all_to_all"),
        ("nccl:all_reduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("send", "send"),
        ("barrier", "barrier"),
        ("wait", None),
    ],
)
def test_names_of_collectives(name: str, collective: str | None) -> None:
    of_kernel = communication.collective_of_kernel
    function = of_kernel if "Kernel" in name else communication.collective_of_name
    assert function(name) == collective


def test_long_groups_are_completed(tmp_path: Path) -> None:
    cut = {"Process Group Ranks": "[0, 8, 16, ...]", "Group size": 40}
    start = {"Global rank start": 0, "Global rank stride": 8}
    facts = comms(tmp_path, params(**(STATED | cut | start)))
    assert facts["group"]["ranks"] == list(range(0, 320, 8))


def test_groups_of_the_header(tmp_path: Path) -> None:
    config = [
        {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "ranks": []},
        {"pg_name": "1", "pg_desc": "tp", "backend_config": "cuda:nccl", "ranks": "[0, 1]"},
    ]
    info = {"backend": "nccl", "rank": 0, "world_size": 4, "pg_config": config}
    trace = read(tmp_path, [span("cpu_op", "a", 1, 1)], distributedInfo=info)
    assert [(g["name"], g["ranks"]) for g in trace.groups.to_pylist()] == [
        ("0", [0, 1, 2, 3]),
        ("1", [0, 1]),
    ]


def test_send_and_receive_have_their_peer(tmp_path: Path) -> None:
    sent = STATED | {"Collective name": "send", "Dst Rank": 5}
    assert comms(tmp_path, params(**sent))["peer"] == 5
    received = STATED | {"Collective name": "recv", "Src Rank": 2}
    assert comms(tmp_path, params(**received))["peer"] == 2
    old = STATED | {"Collective name": "recv", "Rank": 1, "Process Group Ranks": "[4, 6]"}
    assert comms(tmp_path, params(**old))["peer"] == 6  # before torch 2.5: its number in the group


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("broadcast", ["", "", "1", "0", "True", "-1"]),
        ("reduce", ["", "", "", "1", "0", "True", "-1"]),
        ("gather", ["", "", "", "1", "True", "-1"]),
        ("scatter", ["", "", "", "1", "True", "-1"]),
    ],
)
def test_the_root_is_an_input_of_the_operator(tmp_path: Path, name: str, inputs: list[str]) -> None:
    stated = STATED | {"Collective name": name, "Process Group Ranks": "[4, 6]", "Group size": 2}
    around = span("cpu_op", f"c10d::{name}_", 1, 12, args={"Concrete Inputs": inputs})
    assert comms(tmp_path, around, params(**stated))["root"] == 6
    assert comms(tmp_path, around, params(), kernel_args=stated)["root"] == 6
    assert comms(tmp_path, around, params(**stated, Rank=0))["root"] == 6
    assert comms(tmp_path, params(**stated, Rank=0))["root"] == 4  # where no shapes were recorded
    assert comms(tmp_path, params(**stated))["root"] is None
    assert comms(tmp_path, params(**stated, Rank=2))["root"] is None
    all_ranks = stated | {"Process Group Ranks": "[]", "Group size": 8}
    assert comms(tmp_path, around, params(**all_ranks), **RANK)["root"] == 1
    some_ranks = all_ranks | {"Group size": 2}
    assert comms(tmp_path, around, params(**some_ranks), **RANK)["root"] is None


def test_others_have_no_root(tmp_path: Path) -> None:
    assert comms(tmp_path, params(**STATED, Rank=3))["root"] is None


HUGE = 10**30


@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        (where, wrong)
        for where in ("pid", "tid", "id", "ts", "dur", "correlation", "stream", "device")
        for wrong in (HUGE, -HUGE, -(2**63), "x", "007", "9" * 30, None, [None], {"a": {}})
    ],
)
def test_anything_may_stand_where_a_number_should(tmp_path: Path, where: str, wrong: Any) -> None:
    odd = kernel("k", 5, 2, 1)
    holder = odd if where in ("pid", "tid", "id", "ts", "dur") else odd["args"]
    holder[where] = wrong
    trace = read(tmp_path, [call("hipLaunchKernel", 1, 2, 1), odd, span("cpu_op", "a", 0, 9)])
    (source,) = trace.meta.sources
    assert source.events == 3 == source.nodes + sum(i.count for i in trace.meta.issues if i.events)
    assert source.nodes >= 2
    check_trace(trace)


@pytest.mark.parametrize("wrong", [HUGE, -1, "x", [1], {"a": 1}, 2**40, None, True])
def test_anything_may_stand_in_the_header(tmp_path: Path, wrong: Any) -> None:
    info = {"rank": wrong, "world_size": wrong, "pg_config": wrong}
    around = params(**STATED | {"Seq": wrong, "Process Group Ranks": wrong, "In msg nelems": wrong})
    header = {"distributedInfo": info, "deviceProperties": [{"id": wrong, "name": wrong}]}
    facts = comms(tmp_path, around, **header)
    assert facts["collective"] == "all_gather"
    assert facts["seq"] in (None, 2**40)
    assert facts["bytes"] in (None, 2**41)


@pytest.mark.parametrize("wrong", [HUGE, -1, "x", [1], {"a": 1}, 1.5])
def test_a_base_that_is_no_number_is_refused(tmp_path: Path, wrong: Any) -> None:
    path = write(tmp_path / "a.json", [span("cpu_op", "a", 1, 1)], baseTimeNanoseconds=wrong)
    with pytest.raises(ReadError, match="baseTimeNanoseconds is"):
        ci.read(path)


def test_memory_instants_become_series(tmp_path: Path) -> None:
    def instant(ts: float, **args: Any) -> dict[str, Any]:
        return span("cpu_instant_event", "[memory]", ts, 0, args=args) | {"ph": "i", "s": "t"}

    held = {"Device Type": 1, "Device Id": 0, "Total Reserved": 4096}
    trace = read(
        tmp_path,
        [
            span("cpu_op", "a", 1, 1),
            instant(2, Bytes=512, **held, **{"Total Allocated": 512}),
            instant(3, Bytes=-512, **held, **{"Total Allocated": 0}),
            instant(4, Bytes=100, **{"Device Type": 0, "Device Id": -1}),
            instant(5, Bytes=-60, **{"Device Type": 0, "Device Id": -1}),
        ],
    )
    assert trace.nodes.num_rows == 1
    lanes = {(s["device"], s["name"]): i for i, s in enumerate(trace.series.to_pylist())}
    frame = trace.to_pandas("samples")

    def values(device: int, name: str) -> list[float]:
        return frame[frame["series"] == lanes[device, name]]["value"].tolist()

    assert values(0, "memory allocated") == [512, 0]
    assert values(0, "memory reserved") == [4096, 4096]
    assert values(-1, "memory allocated since the start") == [100, 40]
    assert counts(trace)["event-as-sample"] == 4


def test_counter_events_become_series(tmp_path: Path) -> None:
    counter = {"ph": "C", "name": "GPU util", "pid": "GPU 0 Counters", "tid": 0, "ts": 2}
    trace = read(
        tmp_path,
        [span("cpu_op", "a", 1, 1), counter | {"args": {"": 55.5}}, counter | {"args": {}}],
    )
    assert trace.series.to_pylist()[0]["name"] == "GPU util"
    assert trace.to_pandas("samples")["value"].tolist() == [55.5]
    assert counts(trace)["counter-event-without-number"] == 1


def test_copies_have_their_bytes(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        [
            span("gpu_memcpy", "Memcpy HtoD", 1, 1, args={"bytes": 4096}),
            span("gpu_memcpy", "old AMD", 3, 1),
            span("gpu_memset", "Memset", 5, 1, args={"bytes": "128"}),
        ],
    )
    assert [None if pd.isna(v) else v for v in trace.values("bytes")] == [4096, None, 128]


@pytest.mark.parametrize(
    ("rank", "world", "count"),
    [(1, 2, 0), (0, None, 0), (5, 2, 1), (0, 0, 1), (-3, 2, 1), (0, -1, 1), (1 << 40, 2, 1), ("x", 2, 1)],
)  # fmt: skip
def test_a_rank_that_cannot_be_is_counted(tmp_path: Path, rank, world, count: int) -> None:
    header = {"distributedInfo": {"rank": rank, "world_size": world}}
    path = write(tmp_path / "a.json", [call("cudaLaunchKernel", 10, 5, 7)], **header)
    assert counts(ci.read(path)).get("rank-impossible", 0) == count


def test_a_fused_file_is_split_by_the_ranks_in_arguments(tmp_path: Path) -> None:
    def of(rank: int, event: dict) -> dict:
        args = event["args"] | {"rank": rank, "pid_raw": event["pid"]}
        if "correlation" in args:
            args |= {"correlation_raw": args["correlation"]}
            args["correlation"] += rank * 10**6
        return event | {"pid": event["pid"] + rank * 10**8, "args": args}

    one = [call("hipLaunchKernel", 1, 1, 5), kernel("k", 3, 1, 5), span("cpu_op", "a", 0, 3)]
    trace = read(tmp_path, [of(rank, event) for rank in (0, 1) for event in one])
    assert trace.ranks == [0, 1]
    assert [r.pid for r in trace.meta.ranks] == [100, 100]
    assert edges(trace, EdgeKind.LAUNCH) == [("hipLaunchKernel", "k")] * 2
    assert set(trace.array("correlation").tolist()) == {5, -1}
    assert counts(trace)["ranks-split"] == 2


def test_a_fused_file_is_split_by_the_names_of_processes(tmp_path: Path) -> None:
    named = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"Rank {r} ({what})"}}
        for pid, r, what in ((100, 0, "CPU"), (2, 0, "GPU"), (900, 1, "CPU"), (902, 1, "GPU"))
    ]
    first_rank = [span("cpu_op", "a", 1, 1), kernel("k", 2, 1, 0)]
    second_rank = [
        event | {"pid": event["pid"] + 800 + 100 * (event["pid"] == 2)} for event in first_rank
    ]
    second_rank[1]["pid"] = 902
    trace = read(tmp_path, [*named, *first_rank, *second_rank])
    assert trace.ranks == [0, 1]
    assert [t.nodes.num_rows for t in (trace.rank(0), trace.rank(1))] == [2, 2]


def test_nesting_and_overruns(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        [
            span("cpu_op", "outer", 0, 10),
            span("cpu_op", "inner", 1, 3),
            span("python_function", "overrun", 2, 20),
            span("cpu_op", "later", 30, 1),
        ],
    )
    names = [trace.names()[c] for c in trace.array("name")]
    parents = dict(zip(names, trace.array("parent").tolist(), strict=True))
    assert parents == {"outer": -1, "inner": 0, "overrun": -1, "later": -1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"schemaVersion": 1, "traceEvents": []}', "no events"),
        ('{"schemaVersion": 1, "traceEvents": null}', "no list `traceEvents`"),
        ('{"schemaVersion": 1}', "no list `traceEvents`"),
        ('{"schemaVersion": 1, "deviceProperties": [', "no list `traceEvents`"),
    ],
)
def test_files_without_events_are_refused_in_one_line(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ReadError, match=reason) as caught:
        ci.read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_events_that_cannot_be_nodes_are_counted(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        [
            span("cpu_op", "good", 1, 1),
            span("cpu_op", "no start", None, 1),
            span("cpu_op", "no duration", 2, None),
            span("cpu_op", "negative", 3, -4),
            {"ph": "b", "name": "async", "ts": 1},
        ],
    )
    assert trace.nodes.num_rows == 3
    assert {c: n for c, n in counts(trace).items() if c != "rank-assumed"} == {
        "event-without-time": 1,
        "duration-not-a-number": 1,
        "duration-negative": 1,
        "event-phase-unknown": 1,
    }
    assert trace.array("dur").tolist() == [1000, 0, 0]


def test_arguments_are_kept_as_they_were(tmp_path: Path) -> None:
    args = {"Input Dims": [[1, 2]], "note": 'a "b" é', "External id": 7}
    trace = read(tmp_path, [span("cpu_op", "a", 1, 1, args=args)])
    assert trace.args(0) == args


@pytest.mark.parametrize("ending", ["parquet", "json.gz"])
def test_the_number_of_ranks_of_the_job_is_kept(tmp_path: Path, run, ending: str) -> None:
    """It is stated, but no process group is, so that the summary said "1 rank"."""
    header = {"distributedInfo": {"rank": 3, "world_size": 64}}
    path = write(tmp_path / "a.json", [kernel("k", 0, 5, 1)], baseTimeNanoseconds=BASE, **header)
    first = ci.read(path)
    ci.write(first, tmp_path / f"b.{ending}")
    second = ci.read(tmp_path / f"b.{ending}")
    assert second.meta.facts["world_size"] == first.meta.facts["world_size"] == "64"
    for trace in (path, tmp_path / f"b.{ending}"):
        assert "1 of 64 ranks" in run("analyze", trace)[1]
