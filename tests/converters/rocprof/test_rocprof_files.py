"""Grouping of rocprof's files, and the ranks that they are of."""

import json
from pathlib import Path

import pytest
from issue_counts import counts
from rocprof import (
    AGENTS,
    CALLS,
    COPIES,
    COUNTERS,
    KERNELS,
    T0,
    assert_whole,
    counters,
    edges,
    nodes,
    row,
    write,
)

import chopper_interop as ci
from chopper_interop.converters.rocm.file_names import group_by_process
from chopper_interop.converters.rocprof.v3.csv_reader import read as read_v3_csv
from chopper_interop.errors import AmbiguousRunError, UsageError


def grouped(*names: str) -> set[frozenset[str]]:
    return {
        frozenset(map(str, files)) for files in group_by_process([Path(name) for name in names])
    }


def test_files_of_one_folder_and_prefix_belong_together() -> None:
    assert grouped(
        "a/1234_kernel_trace.csv",
        "a/1234_hip_api_trace.csv",
        "a/1234_counter_collection.csv",
        "a/1235_kernel_trace.csv",
        "b/1234_kernel_trace.csv",
        "a/out_kernel_trace.csv",
        "a/out_memory_copy_trace.csv.gz",
    ) == {
        frozenset(
            {
                "a/1234_kernel_trace.csv",
                "a/1234_hip_api_trace.csv",
                "a/1234_counter_collection.csv",
            }
        ),
        frozenset({"a/1235_kernel_trace.csv"}),
        frozenset({"b/1234_kernel_trace.csv"}),
        frozenset({"a/out_kernel_trace.csv", "a/out_memory_copy_trace.csv.gz"}),
    }


def test_without_a_prefix_a_folder_is_one_group() -> None:
    names = [
        "hip_runtime_trace.csv", "hip_compile_trace.csv", "hip_compiler_api_trace.csv",
        "hsa_core_api_trace.csv", "hsa_amd_ext_api_trace.csv", "rccl_trace.csv",
        "rocdecode_api_trace.csv", "rocjpeg_api_trace.csv", "marker_api_trace.csv",
        "kernel_trace.csv", "scratch_memory_trace.csv", "memory_allocation_trace.csv",
        "regions_trace.csv", "hip_event_trace.csv", "graph_launch_trace.csv", "agent_info.csv",
        "counter_collection.csv",
    ]  # fmt: skip
    assert grouped(*(f"a/{name}" for name in names)) == {frozenset(f"a/{name}" for name in names)}


def test_files_with_unknown_names_are_sources_of_their_own() -> None:
    assert len(grouped("a/kernels.csv", "a/kernel_trace.csv", "a/more.csv")) == 3
    assert grouped("a/kernel_trace_r0.csv", "a/hip_api_trace_r0.csv", "a/kernel_trace_r1.csv") == {
        frozenset({"a/kernel_trace_r0.csv", "a/hip_api_trace_r0.csv"}),
        frozenset({"a/kernel_trace_r1.csv"}),
    }


def test_agents_serve_all_processes_of_the_folder() -> None:
    assert grouped(
        "a/1_agent_info.csv",
        "a/1_kernel_trace.csv",
        "a/2_kernel_trace.csv",
        "a/3_agent_info.csv",
        "a/3_kernel_trace.csv",
        "a/4_agent_info.csv",
        "b/5_kernel_trace.csv",
    ) == {
        frozenset({"a/1_agent_info.csv", "a/1_kernel_trace.csv"}),
        frozenset({"a/1_agent_info.csv", "a/2_kernel_trace.csv"}),
        frozenset({"a/3_agent_info.csv", "a/3_kernel_trace.csv"}),
        frozenset({"a/4_agent_info.csv"}),
        frozenset({"b/5_kernel_trace.csv"}),
    }


def test_one_agent_file_describes_all_processes(tmp_path: Path) -> None:
    cpu = row(AGENTS, Node_Id=0, Agent_Type="CPU")
    gpus = [row(AGENTS, Node_Id=n, Logical_Node_Id=n, Product_Name="MI300X") for n in (1, 2)]
    write(tmp_path / "1_agent_info.csv", AGENTS, cpu, *gpus)
    for pid in (1, 2):
        kernel = row(KERNELS, Agent_Id=f"Agent {pid}")
        write(tmp_path / f"{pid}_kernel_trace.csv", KERNELS, kernel)
    trace = ci.read(tmp_path)
    assert trace.ranks == [0, 1]
    assert [(r.pid, r.device) for r in trace.meta.ranks] == [(1, 1), (2, 2)]
    assert {(d.device, d.name, d.ordinal) for d in trace.meta.devices} == {
        (1, "MI300X", 0),
        (2, "MI300X", 1),
    }


def test_agents_that_cannot_be_read_do_not_stop_the_rest(tmp_path: Path) -> None:
    gpu = row(AGENTS, Node_Id=4, Logical_Node_Id=4, Product_Name="MI300X")
    agents = write(tmp_path / "1_agent_info.csv", AGENTS, gpu, gpu[:20], 'x"y', "", gpu)
    trace = read_v3_csv([agents, write(tmp_path / "1_kernel_trace.csv", KERNELS, row(KERNELS))])
    assert_whole(trace, 1)
    assert counts(trace)["agent-unreadable"] == 2
    assert {d.device for d in trace.meta.devices} == {4}
    alone = read_v3_csv([agents])
    assert_whole(alone, 0)
    assert {d.name for d in alone.meta.devices} == {"MI300X"}


RANKS = {
    "rank3_kernel_trace.csv": (3, "", -1),
    "out_rank12_kernel_trace.csv": (12, "", -1),
    "Rank-0.kernel_trace.csv": (0, "", -1),
    "kernel_trace_rank5.csv": (5, "", -1),
    "rank2/node7/4711_kernel_trace.csv": (2, "node7", 4711),
    "node7/rank1/4711_kernel_trace.csv": (1, "", 4711),
    "node7.4711.6/4711_kernel_trace.csv": (6, "node7", 4711),
    "frank3_kernel_trace.csv": (0, "", -1),
    "smci350-zts/908_kernel_trace.csv": (0, "smci350-zts", 908),
    "pmc_1/node7/4711_kernel_trace.csv": (0, "node7", 4711),
    "node7/pass_2/4711_kernel_trace.csv": (0, "", 4711),
    "my_results/4711_kernel_trace.csv": (0, "", 4711),
    "out_kernel_trace.csv": (0, "", -1),
}


@pytest.mark.parametrize("name", RANKS)
def test_rank_host_and_process_by_name(tmp_path: Path, name: str) -> None:
    trace = read_v3_csv([write(tmp_path / name, KERNELS, row(KERNELS))])
    (rank,) = trace.meta.ranks
    assert (rank.rank, rank.host, rank.pid) == RANKS[name]
    named = "rank" in name.lower().replace("frank", "") or ".4711.6" in name
    assert rank.known_by == ("name" if named else "assumed")
    assert ("rank-assumed" in counts(trace)) == (not named)


def test_the_rank_of_the_user_is_used(tmp_path: Path) -> None:
    path = write(tmp_path / "rank3_kernel_trace.csv", KERNELS, row(KERNELS))
    trace = ci.read(path, rank="5")
    assert [(r.rank, r.known_by) for r in trace.meta.ranks] == [(5, "user")]
    two = [row(CALLS, Process_Id=1), row(CALLS, Process_Id=2)]
    with pytest.raises(UsageError, match="2 processes"):
        ci.read(write(tmp_path / "out_hip_api_trace.csv", CALLS, *two), rank=5)


RUNS = {
    "pmc_2/node/7_counter_collection.csv": "pmc_2",
    "pass_11/out_counter_collection.csv": "pass_11",
    "decode_stall_counter_collection.csv": "decode_stall",
    "7_counter_collection.csv": "counters",
    "700_counter_collection.csv": "counters",
    "fetch_700_counter_collection.csv": "fetch",
    "fetch_2_counter_collection.csv": "fetch_2",
    "rank1_counter_collection.csv": "counters",
    "fetch_rank1_counter_collection.csv": "fetch",
    "counter_collection.csv": "counters",
}


@pytest.mark.parametrize("name", RUNS)
def test_the_name_of_a_counter_run(tmp_path: Path, name: str) -> None:
    assert read_v3_csv([write(tmp_path / name, COUNTERS, row(COUNTERS))]).meta.run == RUNS[name]


def test_a_run_without_counters_has_no_name(tmp_path: Path) -> None:
    assert not read_v3_csv(
        [write(tmp_path / "decode_kernel_trace.csv", KERNELS, row(KERNELS))]
    ).meta.run
    in_pass = write(tmp_path / "pmc_1" / "decode_kernel_trace.csv", KERNELS, row(KERNELS))
    assert read_v3_csv([in_pass]).meta.run == "pmc_1"


def interleaved(folder: Path) -> list[Path]:
    """Files that processes 10 and 20 share; 20 has a second thread and the second GPU."""
    calls = [
        row(CALLS, Process_Id=10, Thread_Id=10, Correlation_Id=1),
        row(CALLS, Process_Id=20, Thread_Id=20, Correlation_Id=1, Function="hipMemcpyAsync"),
        row(CALLS, Process_Id=20, Thread_Id=21, Correlation_Id=2, Function="hipExtLaunchKernel"),
    ]
    kernels = [
        row(KERNELS, Thread_Id=21, Correlation_Id=2, Agent_Id="Agent 5", Kernel_Name="b"),
        row(KERNELS, Thread_Id=10, Correlation_Id=1, Agent_Id="Agent 4", Kernel_Name="a"),
    ]
    copies = [
        row(COPIES, Correlation_Id=1, Destination_Agent_Id="Agent 5"),
        row(COPIES, Correlation_Id=1, Destination_Agent_Id="Agent 9"),
    ]
    return [
        write(folder / "out_hip_api_trace.csv", CALLS, *calls),
        write(folder / "out_kernel_trace.csv", KERNELS, *kernels),
        write(folder / "out_memory_copy_trace.csv", COPIES, *copies),
    ]


def test_processes_that_share_files_are_ranks_of_their_own(tmp_path: Path) -> None:
    trace = read_v3_csv(interleaved(tmp_path))
    assert_whole(trace, 7)
    assert [(r.rank, r.pid, r.device) for r in trace.meta.ranks] == [
        (0, 10, 4),
        (1, 20, 5),
        (2, -1, -1),
    ]
    assert {(n["rank"], n["name"]) for n in nodes(trace)} == {
        (0, "hipLaunchKernel"),
        (0, "a"),
        (1, "hipMemcpyAsync"),
        (1, "hipExtLaunchKernel"),
        (1, "b"),
        (1, "MEMORY_COPY_HOST_TO_DEVICE"),
        (2, "MEMORY_COPY_HOST_TO_DEVICE"),
    }
    assert sorted(edges(trace)) == [
        ("hipExtLaunchKernel", "b"),
        ("hipLaunchKernel", "a"),
        ("hipMemcpyAsync", "MEMORY_COPY_HOST_TO_DEVICE"),
    ]
    assert counts(trace)["process-unknown"] == 1


def test_shared_files_next_to_others_keep_separate_ranks(tmp_path: Path) -> None:
    interleaved(tmp_path)
    write(tmp_path / "30_kernel_trace.csv", KERNELS, row(KERNELS, Agent_Id="Agent 1"))
    trace = ci.read(tmp_path)
    assert trace.ranks == [0, 1, 2, 3]
    pids = {r.rank: r.pid for r in trace.meta.ranks}
    owners = {n["name"]: pids[n["rank"]] for n in nodes(trace) if n["name"] in ("a", "b")}
    assert owners == {"a": 10, "b": 20}


def test_guids_distinguish_processes(tmp_path: Path) -> None:
    calls = [row(["Guid", *CALLS], Guid=g, Process_Id=p) for g, p in (("0-a", 10), ("0-b", 20))]
    kernels = [
        row(["Guid", *KERNELS], Guid=g, Kernel_Name=g, Agent_Id=f"Agent {a}")
        for g, a in (("0-b", 1), ("0-a", 2), ("0-c", 3))
    ]
    trace = read_v3_csv(
        [
            write(tmp_path / "out_regions_trace.csv", ["Guid", *CALLS], *calls),
            write(tmp_path / "out_kernel_trace.csv", ["Guid", *KERNELS], *kernels),
        ]
    )
    assert_whole(trace, 5)
    assert [(r.pid, r.device) for r in trace.meta.ranks] == [(20, 1), (10, 2), (-1, 3)]
    of_kernel = {n["name"]: n["rank"] for n in nodes(trace) if n["kind"] == "KERNEL"}
    assert of_kernel == {"0-b": 0, "0-a": 1, "0-c": 2}


def test_guids_with_one_process_id_are_processes_of_containers(tmp_path: Path) -> None:
    pids = {"0-a": 1, "0-b": 1, "0-c": 77}
    calls = [row(["Guid", *CALLS], Guid=g, Process_Id=p) for g, p in pids.items()]
    kernels = [
        row(["Guid", *KERNELS], Guid=g, Kernel_Name=g, Agent_Id="Agent 1", Dispatch_Id=1)
        for g in pids
    ]
    trace = read_v3_csv(
        [
            write(tmp_path / "out_regions_trace.csv", ["Guid", *CALLS], *calls),
            write(tmp_path / "out_kernel_trace.csv", ["Guid", *KERNELS], *kernels),
        ]
    )
    assert_whole(trace, 6)
    assert "processes-mixed" not in counts(trace)
    of_kind = {(n["kind"], n["rank"]) for n in nodes(trace)}
    assert of_kind == {(kind, rank) for kind in ("KERNEL", "RUNTIME") for rank in range(3)}
    assert sorted(r.pid for r in trace.meta.ranks) == [-1, -1, 77]


@pytest.mark.parametrize(("later", "pids"), [(50, [-1, -1]), (10**9, [1])])
def test_guids_of_one_process_id_at_one_time_are_several_processes(
    tmp_path: Path, later: int, pids: list[int]
) -> None:
    """No dispatch id occurs twice: a profiler was attached in both, or twice to one process."""
    calls, kernels = [], []
    for n, guid in enumerate(("0-a", "0-b")):
        times = {"Start_Timestamp": T0 + n * later, "End_Timestamp": T0 + n * later + 200}
        calls.append(row(["Guid", *CALLS], Guid=guid, Process_Id=1, Correlation_Id=n + 1, **times))
        kernels.append(
            row(
                ["Guid", *KERNELS],
                Guid=guid,
                Agent_Id="Agent 1",
                Dispatch_Id=n + 1,
                Correlation_Id=n + 1,
                **times,
            )
        )
    trace = read_v3_csv(
        [
            write(tmp_path / "out_regions_trace.csv", ["Guid", *CALLS], *calls),
            write(tmp_path / "out_kernel_trace.csv", ["Guid", *KERNELS], *kernels),
        ]
    )
    assert_whole(trace, 4)
    assert [r.pid for r in trace.meta.ranks] == pids


def test_guids_do_not_distinguish_processes_that_repeat_dispatches_of_one_guid(
    tmp_path: Path,
) -> None:
    header = ["Guid", *KERNELS]
    rows = [
        row(
            header,
            Guid=g,
            Kernel_Name=f"k{n}",
            Agent_Id="Agent 1",
            Dispatch_Id=1,
            Start_Timestamp=n,
        )
        for n, g in enumerate(("0-a", "0-a", "0-b"), 1)
    ]
    calls = [row(["Guid", *CALLS], Guid=g, Process_Id=1) for g in ("0-a", "0-b")]
    trace = read_v3_csv(
        [
            write(tmp_path / "out_regions_trace.csv", ["Guid", *CALLS], *calls),
            write(tmp_path / "out_kernel_trace.csv", header, *rows),
        ]
    )
    assert counts(trace)["processes-mixed"] == 2


def test_kernels_of_several_processes_in_one_file(tmp_path: Path) -> None:
    rows = [
        row(KERNELS, Agent_Id=f"Agent {4 + p}", Thread_Id=100 + p, Dispatch_Id=i)
        for i in range(1, 4)
        for p in range(2)
    ]
    trace = read_v3_csv([write(tmp_path / "out_kernel_trace.csv", KERNELS, *rows)])
    assert_whole(trace, 6)
    assert [(r.rank, r.device) for r in trace.meta.ranks] == [(0, 4), (1, 5)]
    assert counts(trace)["processes-by-device"] == 2

    mixed = [r.replace("Agent 5", "Agent 4") for r in rows]
    trace = read_v3_csv([write(tmp_path / "out_kernel_trace.csv", KERNELS, *mixed)])
    assert_whole(trace, 6)
    assert trace.ranks == [0]
    assert counts(trace)["processes-mixed"] == 3


def test_all_ranks_of_a_counter_run_make_one_job(tmp_path: Path) -> None:
    for pid, agent in ((11, 4), (12, 5)):
        rows = [row(COUNTERS, Process_Id=pid, Agent_Id=f"Agent {agent}", Counter_Value=float(pid))]
        write(tmp_path / f"{pid}_counter_collection.csv", COUNTERS, *rows)
    trace = ci.read(tmp_path)
    assert trace.ranks == [0, 1]
    assert sorted(trace.counters["value"].to_pylist()) == [11.0, 12.0]


def test_counters_of_a_pass_go_to_the_timing_run(tmp_path: Path) -> None:
    timing = [row(KERNELS, Dispatch_Id=i, Start_Timestamp=T0 + i * 20_000,
                  End_Timestamp=T0 + i * 20_000 + 5_000) for i in (1, 2)]  # fmt: skip
    write(tmp_path / "node" / "1_kernel_trace.csv", KERNELS, *timing)
    for number, name in ((1, "SQ_WAVES"), (2, "FETCH_SIZE")):
        rows = [
            row(COUNTERS, Dispatch_Id=i, Counter_Name=name, Counter_Value=float(10 * number + i),
                Process_Id=number, Start_Timestamp=T0 * 2 + i, End_Timestamp=T0 * 2 + i + 1)
            for i in (7, 8)
        ]  # fmt: skip
        write(
            tmp_path / f"pmc_{number}" / "node" / f"{number}_counter_collection.csv",
            COUNTERS,
            *rows,
        )
    trace = ci.read(tmp_path)
    assert trace.nodes.num_rows == 2
    assert counters(trace) == {
        (T0 + 20_000, "SQ_WAVES"): 17.0,
        (T0 + 20_000, "FETCH_SIZE"): 27.0,
        (T0 + 40_000, "SQ_WAVES"): 18.0,
        (T0 + 40_000, "FETCH_SIZE"): 28.0,
    }


@pytest.mark.parametrize(
    ("header", "first"),
    [("roctracer_version", 1), ("rocprofiler-sdk_version", 0)],
    ids=["PyTorch numbers agents", "PyTorch numbers GPUs"],
)
def test_counters_go_to_the_gpu_that_was_counted(tmp_path: Path, header: str, first: int) -> None:
    agents = [row(AGENTS, Node_Id=0, Agent_Type="CPU")]
    agents += [row(AGENTS, Node_Id=n, Logical_Node_Id=n) for n in range(1, 5)]
    for rank in range(4):
        kernel = {
            "ph": "X", "cat": "kernel", "name": "gemm(float*, float const*)", "ts": 1e15 + rank,
            "dur": 5, "pid": first + rank, "tid": 0,
            "args": {"device": first + rank, "stream": 0, "correlation": 7},
        }  # fmt: skip
        head = {"schemaVersion": 1, "distributedInfo": {"rank": rank}, header: 4}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({**head, "traceEvents": [kernel]}))
        count = row(
            COUNTERS, Process_Id=rank, Agent_Id=f"Agent {1 + rank}", Counter_Value=float(rank)
        )
        write(tmp_path / "pmc_1" / f"{50 + rank}_counter_collection.csv", COUNTERS, count)
    write(tmp_path / "pmc_1" / "50_agent_info.csv", AGENTS, *agents)
    trace = ci.read(tmp_path)
    owner = trace.array("rank")[trace.array("node", "counters")].tolist()
    assert dict(zip(owner, trace.counters["value"].to_pylist(), strict=True)) == {
        rank: float(rank) for rank in range(4)
    }


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    late = row(KERNELS, Start_Timestamp=2 * T0, End_Timestamp=2 * T0 + 1)
    write(tmp_path / "first_kernel_trace.csv", KERNELS, row(KERNELS))
    write(tmp_path / "second_kernel_trace.csv", KERNELS, late)
    with pytest.raises(AmbiguousRunError):
        ci.read(tmp_path)


def test_processes_that_did_nothing_on_a_gpu_do_no_harm(tmp_path: Path) -> None:
    write(tmp_path / "1_kernel_trace.csv", KERNELS, row(KERNELS))
    write(tmp_path / "2_kernel_trace.csv", KERNELS)
    write(tmp_path / "2_agent_info.csv", AGENTS, row(AGENTS, Node_Id=4, Logical_Node_Id=4))
    trace = ci.read(tmp_path)
    assert trace.ranks == [0]
    assert trace.nodes.num_rows == 1
