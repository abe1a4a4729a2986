"""Idle time of GPUs by cause: every nanosecond has one."""

import json
from pathlib import Path

import numpy as np
import peer_files
import pyarrow as pa
import pytest
import step_truth
from hypothesis import given
from hypothesis import strategies as st
from kineto_files import kernel, span, write
from read_once import read_once
from slow import slow_but_each, slow_from

import chopper_interop as ci
from chopper_interop.analyses.idle import CAUSES, idle
from chopper_interop.analyses.methods.activity import windows
from chopper_interop.arrays import intervals
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import GPU_WORK, Collective, EdgeKind, Kind, LaneKind
from chopper_interop.testing import check_analysis
from chopper_interop.timing.model import timing_of


class Job:
    """Job whose nodes are stated one by one."""

    def __init__(self, shift: int = 0, first_rank: int = 0) -> None:
        self.builder, self.shift, self.first_rank = TraceBuilder(), shift, first_rank

    def host(
        self, name: str, ts: int, dur: int, *, rank: int = 0, kind: Kind = Kind.RUNTIME
    ) -> int:
        lane = self.builder.lane(rank + self.first_rank, LaneKind.THREAD, 1, "t", -1)
        return self._node(kind, name, ts, dur, rank, lane)

    def gpu(
        self, ts: int, dur: int, call: int | None = None, *, after: int | None = None,
        rank: int = 0, stream: int = 0, device: int = 0, kind: Kind = Kind.KERNEL,
        instance: int = -1,
    ) -> int:  # fmt: skip
        lane = self.builder.lane(
            rank + self.first_rank, LaneKind.STREAM, stream, f"s{device}.{stream}", device
        )
        node = self._node(kind, f"k{stream}", ts, dur, rank, lane, instance)
        if call is not None:
            self.builder.edges(np.array([call]), np.array([node]), EdgeKind.LAUNCH)
        if after is not None:
            self.builder.edges(np.array([after]), np.array([node]), EdgeKind.EVENT)
        return node

    def launched(self, ts: int, dur: int, ahead: int, **more: int) -> int:
        call = self.host("hipLaunchKernel", ts - ahead, 1, rank=more.get("rank", 0))
        return self.gpu(ts, dur, call, **more)

    def trace(self) -> ci.Trace:
        return self.builder.finish()

    def _node(  # noqa: PLR0917 # columns
        self, kind: Kind, name: str, ts: int, dur: int, rank: int, lane: int, instance: int = -1
    ) -> int:
        return self.builder.nodes(
            kind=int(kind), name=name, rank=rank + self.first_rank, lane=lane,
            ts=np.array([ts + self.shift], np.int64), dur=dur,
            instance=np.array([instance], np.int32),
        )  # fmt: skip


def causes(trace: ci.Trace, **options: str | int) -> dict[str, int]:
    """Causes with idle time, over all ranks."""
    summary = idle(trace, **options).summary
    reported = {name: summary[f"{name}_ns"] for name in CAUSES}
    assert sum(reported.values()) == summary["idle_ns"]
    return {name: ns for name, ns in reported.items() if ns}


def test_the_host_was_late() -> None:
    job = Job()
    job.launched(0, 10, 0)
    job.host("dataloader", 5, 30, kind=Kind.CPU_OP)
    job.launched(50, 10, 8)  # asked for at 42
    result = idle(job.trace())
    assert causes(job.trace()) == {"host_late": 32, "launch": 8}
    assert result.summary["blame"] == [
        {"operation": "dataloader", "host_late_ns": 32, "share": 1.0, "gaps": 1}
    ]
    (row,) = idle(job.trace(), by="blame").rows.filter(pa_valid("blame")).to_pylist()
    assert (row["blame"], row["host_late_ns"], row["idle_ns"]) == ("dataloader", 32, 40)
    node = job.trace().nodes.num_rows - 1
    reported = {name: column[node].as_py() for name, column in result.annotations.items()}
    assert reported == {"idle_ns": 40, "idle_cause": "host_late"}


def test_the_range_of_a_step_is_blamed_as_one_over_all_steps() -> None:
    """A hundred steps filled the list, each with a hundredth of the time; other names keep their numbers."""
    job = Job()
    for step in range(3):
        job.host(f"ProfilerStep#{step}", 100 * step, 90, kind=Kind.ANNOTATION)
        job.launched(100 * step + 5, 10, 0)
        job.launched(100 * step + 70, 10, 0)  # from 15 on the host does nothing that is named
    job.host("layer7", 295, 60, kind=Kind.CPU_OP)
    job.launched(360, 10, 0)
    ts = job.trace().array("ts")
    trace = job.trace().with_columns(iteration=pa.array(np.minimum(ts // 100, 2), pa.int32()))
    blamed = {b["operation"]: b["gaps"] for b in idle(trace).summary["blame"]}
    assert blamed["ProfilerStep#"] == 3
    assert "ProfilerStep#1" not in blamed
    assert "layer7" in blamed
    rows = idle(trace, by="blame").rows.filter(pa_valid("blame"))
    assert set(rows["blame"].to_pylist()) == {*blamed} - {None}


def pa_valid(name: str):
    import pyarrow.compute as pc

    return pc.field(name).is_valid()


def test_blame_goes_to_the_innermost_that_covers_half() -> None:
    job = Job()
    job.launched(0, 10, 0)
    job.host("step", 1, 100, kind=Kind.ANNOTATION)
    job.host("forward", 12, 60, kind=Kind.ANNOTATION)
    job.host("aten::a", 13, 20, kind=Kind.CPU_OP)
    job.host("aten::b", 34, 25, kind=Kind.CPU_OP)
    job.launched(70, 10, 5)  # late from 10 to 65: no operator covers half of it
    assert [b["operation"] for b in idle(job.trace()).summary["blame"]] == ["forward"]


def test_the_host_was_late_as_it_waited_for_the_gpu() -> None:
    job = Job()
    job.launched(0, 10, 0)
    job.host("hipDeviceSynchronize", 3, 15)
    job.host("aten::next", 20, 9, kind=Kind.CPU_OP)
    job.launched(40, 10, 10)
    summary = idle(job.trace()).summary
    assert causes(job.trace()) == {"host_late": 12, "sync": 8, "launch": 10}
    assert summary["after_sync_ns"] == 12
    assert summary["blame"][0]["operation"] == "aten::next"


def test_from_kernel_to_kernel() -> None:
    job = Job()
    job.launched(100, 10, 50)
    job.launched(120, 10, 60)
    assert causes(job.trace()) == {"kernel_to_kernel": 10}
    assert causes(job.trace(), threshold_ns=10) == {"unknown": 10}


def test_the_launch_was_on_its_way() -> None:
    job = Job()
    job.launched(0, 10, 20)  # launches take 20
    call = job.host("hipLaunchKernel", 5, 1)
    job.gpu(25, 10, call)
    job.gpu(40, 10, call)  # the second of a graph was asked for long since
    assert causes(job.trace()) == {"launch": 15, "kernel_to_kernel": 5}


def test_work_that_begins_long_after_its_launch_waits_for_something_unknown() -> None:
    job = Job()
    job.launched(0, 10, 20)  # work begins 19 behind its call
    call = job.host("hipLaunchKernel", 40, 5)
    job.gpu(500_000, 10, call)
    assert causes(job.trace()) == {"host_late": 30, "launch": 24, "unknown": 499_936}


def test_work_without_a_call() -> None:
    job = Job()
    job.gpu(0, 10)
    job.gpu(30, 10)
    assert causes(job.trace()) == {"unknown": 20}


def test_waiting_for_another_stream_and_another_rank() -> None:
    job = Job()
    call = job.host("hipLaunchKernel", 0, 1)
    job.gpu(0, 10, call)
    comm = job.gpu(10, 50, stream=1, kind=Kind.COMM, instance=3)
    job.gpu(65, 5, call, after=comm)
    job.gpu(40, 20, rank=1, kind=Kind.COMM, instance=3)
    # stream 0 of rank 0 is idle from 10 on: the peer comes at 40, and they are done at 60
    assert causes(job.trace(), by="stream", ranks="0") == {
        "peer": 30, "event": 20, "kernel_to_kernel": 5, "window": 20,
    }  # fmt: skip
    assert causes(job.trace(), ranks="0") == {"kernel_to_kernel": 5}
    assert idle(job.trace()).summary["comm_wait_ns"] == 30


@pytest.mark.parametrize(
    ("kinds", "spans", "number"),
    [
        ((Collective.SEND, Collective.RECV), ((0, 20), (50, 70)), 0),  # the send did not wait
        ((Collective.SEND, Collective.RECV), ((0, 60), (50, 70)), 0),
        ((Collective.BROADCAST, Collective.BROADCAST), ((0, 20), (20, 40)), 0),  # of unknown root
        ((Collective.ALL_REDUCE, Collective.ALL_REDUCE), ((0, 30), (20, 30)), 2**31 - 2),
    ],
)
def test_waits_are_those_of_collectives(kinds: tuple, spans: tuple, number: int) -> None:
    builder = TraceBuilder()
    for rank, (kind, (start, end)) in enumerate(zip(kinds, spans, strict=True)):
        builder.nodes(
            kind=int(Kind.COMM), name="k", rank=rank, collective=kind, dur=end - start,
            lane=builder.lane(rank, LaneKind.STREAM, 0, "s", 0), ts=np.array([start], np.int64),
            instance=np.array([number], np.int32),
        )  # fmt: skip
    trace = builder.finish()
    reported = ci.analyze(trace, "collectives").summary["wait_ns"]
    assert idle(trace).summary["comm_wait_ns"] == (reported or 0)
    assert (ci.analyze(trace, "taxes").summary["wait_ns"] or 0) == (reported or 0)


def test_a_rank_without_gpu_work_has_no_rows_even_in_a_step() -> None:
    builder = TraceBuilder()
    for rank in (0, 1):
        builder.nodes(
            kind=int(Kind.ANNOTATION), name="ProfilerStep#3", rank=rank, dur=25, iteration=3,
            lane=builder.lane(rank, LaneKind.THREAD, 1, "t", -1), ts=np.array([0], np.int64),
        )  # fmt: skip
    builder.nodes(
        kind=int(Kind.KERNEL), name="k", rank=0, dur=5, ts=np.array([10], np.int64),
        lane=builder.lane(0, LaneKind.STREAM, 0, "s", 0), iteration=3,
    )  # fmt: skip
    for analysis in ("idle", "temporal"):
        result = ci.analyze(builder.finish(), analysis, steps="each")
        assert result.rows["rank"].to_pylist() == [0]
        assert result.summary["idle_ns"] == 20
        assert "1 ranks without GPU work" in result.notes["left out"]


def test_gpus_of_one_rank() -> None:
    job = Job()
    job.launched(0, 10, 0)
    job.launched(30, 10, 4, device=1)
    job.launched(60, 10, 5)
    assert causes(job.trace()) == {"host_late": 31, "launch": 9}
    rows = idle(job.trace(), by="rank,device").rows.to_pylist()
    keys = ("device", "idle_ns", "host_late_ns", "launch_ns", "window_ns")
    assert [tuple(r[k] for k in keys) for r in rows] == [(0, 50, 45, 5, 0), (1, 60, 0, 0, 60)]


NODES = st.lists(
    # start, duration, asked so long before (-1: not known), stream, the work that it waits for, rank
    st.tuples(
        st.integers(0, 50), st.integers(0, 8), st.integers(-1, 15), st.integers(0, 1),
        st.integers(-1, 4), st.integers(0, 1), st.booleans(),
    ),
    max_size=8,
)  # fmt: skip
SYNCS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.integers(0, 1)), max_size=4)


def any_job(work: list, syncs: list, shift: int = 0, first_rank: int = 0) -> ci.Trace:
    job, made = Job(shift, first_rank), []
    for start, dur, rank in syncs:
        job.host("hipStreamSynchronize", start, dur, rank=rank)
    for start, dur, ahead, stream, after, rank, comm in work:
        call = job.host("hipLaunchKernel", start - ahead, 1, rank=rank) if ahead >= 0 else None
        of = made[after] if 0 <= after < len(made) else None
        kind = Kind.COMM if comm else Kind.KERNEL
        node = job.gpu(
            start,
            dur,
            call,
            after=of,
            rank=rank,
            stream=stream,
            kind=kind,
            instance=0 if comm else -1,
        )
        made.append(node)
    return job.trace()


@given(NODES, SYNCS, st.sampled_from(["rank", "rank,stream"]))
def test_against_every_single_nanosecond(work: list, syncs: list, by: str) -> None:
    trace = any_job(work, syncs)
    reported = {tuple(r[k] for k in by.split(",")): r for r in idle(trace, by=by).rows.to_pylist()}
    expected = _by_nanosecond(trace, by)
    for key in reported.keys() | expected.keys():
        actual = {c: reported[key][f"{c}_ns"] for c in CAUSES if reported[key][f"{c}_ns"]}
        assert actual == expected[key], key


def _by_nanosecond(trace: ci.Trace, by: str) -> dict[tuple, dict[str, int]]:
    ts, lane = trace.array("ts").tolist(), trace.array("lane").tolist()
    end = (trace.array("ts") + trace.array("dur")).tolist()
    kind, rank = trace.array("kind").tolist(), trace.array("rank").tolist()
    work = [i for i in range(len(ts)) if kind[i] in GPU_WORK]
    lane_names = trace.lanes["name"].to_pylist()
    result: dict[tuple, dict[str, int]] = {}
    edges = trace.edges.to_pylist()
    waits = {
        i: [e["src"] for e in edges if e["dst"] == i and e["kind"] == EdgeKind.EVENT] for i in work
    }
    syncs = [
        i for i in range(len(ts)) if trace.names()[trace.array("name")[i]] == "hipStreamSynchronize"
    ]
    for w in windows.rank_windows(trace):
        own = [i for i in work if rank[i] == w.rank]
        for stream in {lane[i] for i in own} if "stream" in by else {None}:
            here = [i for i in own if stream in (None, lane[i])]
            key = (w.rank,) if stream is None else (w.rank, lane_names[stream])
            reported: dict[str, int] = {}
            for t in range(w.start_ns, w.end_ns):
                if any(ts[i] <= t < end[i] for i in here):
                    continue
                cause = _cause(trace, t, here, ts, end, lane, waits, syncs)
                reported[cause] = reported.get(cause, 0) + 1
            result[key] = reported
    return result


def _cause(trace, t, here, ts, end, lane, waits, syncs) -> str:  # noqa: PLR0917 # lists of one node each
    next_ = [i for i in here if ts[i] > t]
    earlier = [end[i] for i in here if ts[i] <= t]
    if not next_ or not earlier:
        return "window"
    k, since = next_[0], max(earlier)
    call = int(trace.launch[k])
    ask = min(ts[call], ts[k]) if call >= 0 else None
    if ask is not None and t < ask:
        waiting = any(lane[s] == lane[call] and ts[s] <= t < end[s] for s in syncs)
        return "sync" if waiting else "host_late"
    if waits[k]:
        source = max(waits[k], key=lambda i: end[i])
        if t < end[source]:
            instance = trace.nodes["instance"].to_pylist()
            members = [i for i in range(len(ts)) if instance[i] == instance[source] >= 0]
            rank = trace.array("rank")[members]
            matched = len(set(rank.tolist())) > 1
            last = max((ts[i] for i in members), default=0)
            return "peer" if matched and ts[source] <= t < last else "event"
    if call < 0:
        return "unknown"
    timing = timing_of(trace)
    by_launch = timing.graph.kind[timing.binding[2 * k]] == EdgeKind.LAUNCH
    return "launch" if ask > since or by_launch else "kernel_to_kernel"


@given(NODES, SYNCS, st.integers(0, 10**15))
def test_neither_the_origin_nor_the_numbers_of_ranks_matter(
    work: list, syncs: list, shift: int
) -> None:
    one, other = idle(any_job(work, syncs)), idle(any_job(work, syncs, shift, 7))
    assert one.annotations == other.annotations
    drop = [c for c in ("rank", "job") if c in one.rows.column_names]
    assert one.rows.drop_columns(drop).equals(other.rows.drop_columns(drop))


@pytest.mark.parametrize("steps", slow_from([1, 3], 1))
def test_idle_of_steps_of_the_sample_job(tmp_path: Path, steps: int) -> None:
    make_demo(tmp_path / "job", ranks=2, layers=2, steps=steps, telemetry=False, counter_steps=0)
    truth = step_truth.following(json.loads((tmp_path / "job" / "truth.json").read_text())["steps"])
    trace = ci.read(tmp_path / "job" / "kineto")
    rows = idle(trace, steps="each").rows.to_pylist()
    reported = sorted(zip(truth["rank"], truth["step"], truth["idle_ns"], strict=True))
    assert [(r["rank"], r["iteration"], r["idle_ns"]) for r in rows] == reported
    assert all(sum(r[f"{c}_ns"] for c in CAUSES) == r["idle_ns"] for r in rows)
    assert not any(r["unknown_ns"] for r in rows)


REAL = [
    "ddp_resnet_4rank_amd/rank0.json.gz", "mi300x/resnet_act_checkpoint.json.gz",
    "mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz", "mi210/gpu_only_trace.json.gz",
    "h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", "misc/nccl_data.json.gz",
    "misc/mtia_inference_rank_0.json.gz", "torchrec_4rank_v100", "dlrm_8rank_v100/kineto",
    "cuda_sync_a100/simple_add.json.gz", "hip_graph_mi300x/sglang_Qwen3-8B_decode.json.gz",
]  # fmt: skip


@pytest.mark.parametrize("name", slow_but_each(REAL, 7))
def test_causes_close_on_real_files(shared: Path, name: str) -> None:
    trace = read_once(shared / "pytorch" / name)
    actual = idle(trace)
    expected = ci.analyze(trace, "temporal").rows
    assert actual.rows["idle_ns"].to_pylist() == expected["idle_ns"].to_pylist()
    for by in ("rank,stream", "rank,device", "job", "kernel", "rank,blame"):
        result = idle(trace, by=by)
        frame = result.to_pandas()
        assert (frame[[f"{c}_ns" for c in CAUSES]].sum(axis=1) == frame["idle_ns"]).all()
        assert (frame[[f"{c}_ns" for c in CAUSES]] >= 0).all(axis=None)
        if by == "rank,stream":
            assert frame["idle_ns"].sum() == _idle_of_streams(trace)
        elif by != "rank,device":
            assert frame["idle_ns"].sum() == actual.summary["idle_ns"]


@pytest.mark.parametrize("name", ["ddp_resnet_4rank_amd/rank0.json.gz", "misc/nccl_data.json.gz"])
def test_steps_of_real_files_close_too(shared: Path, name: str) -> None:
    trace = read_once(shared / "pytorch" / name)
    actual = idle(trace, steps="each").rows
    expected = ci.analyze(trace, "temporal", steps="each").rows
    for column in ("rank", "iteration", "idle_ns"):
        assert actual[column].to_pylist() == expected[column].to_pylist()
    assert actual.num_rows > 1
    total = np.sum([actual[f"{c}_ns"].to_numpy() for c in CAUSES], axis=0)
    assert (total == actual["idle_ns"].to_numpy()).all()


def _idle_of_streams(trace: ci.Trace) -> int:
    total = 0
    kind, lane, ts = (trace.array(c) for c in ("kind", "lane", "ts"))
    end = ts + trace.array("dur")
    for w in windows.rank_windows(trace):
        selected = (trace.array("rank") == w.rank) & np.isin(kind, [int(k) for k in GPU_WORK])
        for stream in np.unique(lane[selected]):
            of = selected & (lane == stream)
            total += w.span_ns - intervals.total_length(intervals.union(ts[of], end[of]))
    return total


SAME_AS_HTA = (
    "hta_amd_mi250", "hta_event_sync", "hta_event_sync_multi", "hta_nccl_data", "hta_neg_queue",
    "hta_ns_resolution", "hta_simple_add", "param_dlrm_8rank", "param_linear", "tl_h100_bert",
    "tl_h100_falcons", "tl_mi210_gpuonly", "tl_mi300_bert", "tl_mi300_falcons",
    "tl_mi300_sglang_decode", "tl_vllm_decode",
)  # fmt: skip
UNLINKED = {"param_dlrm_8rank": (1, 3)}
"""Ranks that begin with work without a launch, which HTA ties to the first event of the file."""


@pytest.mark.parametrize("name", slow_but_each(SAME_AS_HTA, 3))
def test_agrees_with_hta(shared: Path, name: str) -> None:
    document = json.loads((shared / "peer_figures" / f"{name}.json").read_text())
    result = idle(read_once(shared / peer_files.FILES[name]), compat="hta")
    by_stream = {(r["rank"], r["stream"]): r for r in result.rows.to_pylist()}
    compared = 0
    for row in document["hta_0.6.1"]["idle"]:
        if row["rank"] in UNLINKED.get(name, ()) and row["stream"] == 7:
            continue
        reported = by_stream[row["rank"], row["stream"]][f"{row['idle_category']}_ns"]
        assert reported == row["idle_time"] * 1000, row
        compared += 1
    assert compared


def test_agrees_with_hta_where_steps_are_operators(shared: Path) -> None:
    # figures of HTA f4d0062c: a trace of 2021 has ProfilerSteps of category Operator
    result = idle(read_once(shared / "pytorch/v100_2021"), compat="hta")
    (row,) = result.rows.to_pylist()
    assert (row["host_wait_ns"], row["kernel_wait_ns"]) == (318_934_000, 8_529_000)


def test_hta_rounds_inwards_and_knows_no_waits(tmp_path: Path) -> None:
    events = [
        kernel("a", 100.6, 10.6, 1),  # 101 to 111
        span("cuda_sync", "Stream Sync", 112, 2, args={"stream": 0, "correlation": 7}),
        kernel("b", 115.2, 5, 2),  # 116 to 120
    ]
    (row,) = idle(ci.read(write(tmp_path / "t.json", events)), compat="hta").rows.to_pylist()
    assert (row["kernel_wait_ns"], row["idle_ns"]) == (5000, 5000)


def test_hta_counts_the_records_and_waits_of_mtia(tmp_path: Path) -> None:
    events = [
        span("mtia_ccp_events", name, start, 10, args={"stream": 3, "device": 0})
        for name, start in (("pe_exe", 100), ("event_record", 120), ("pe_exe", 150))
    ]
    (row,) = idle(ci.read(write(tmp_path / "t.json", events)), compat="hta").rows.to_pylist()
    assert row["idle_ns"] == 30_000  # 110 to 120, 130 to 150


def test_steps_and_options(demo: Path) -> None:
    trace = read_once(demo / "kineto")
    each = idle(trace, by="rank,phase", steps="each")
    assert each.rows.column_names[:3] == ["rank", "phase", "iteration"]
    assert idle(trace, ranks="1").rows.num_rows == 1
    assert idle(trace, by="rank,device").rows.column_names[:2] == ["rank", "device"]
    assert len(idle(trace, top=1).summary["blame"]) == 1
    for wrong in ({"by": "colour"}, {"compat": "tracelens"}, {"ranks": "9"}):
        with pytest.raises(UsageError):
            idle(trace, **wrong)


def test_a_trace_without_gpu_work_has_no_rows() -> None:
    job = Job()
    job.host("aten::mm", 0, 10, kind=Kind.CPU_OP)
    for compat in ("", "hta"):
        result = idle(job.trace(), compat=compat)
        assert result.rows.num_rows == 0
        assert result.summary["idle_ns"] == 0
    assert "no rows" in idle(job.trace()).notes


def test_the_contract_of_analyses(demo: Path) -> None:
    check_analysis(idle, read_once(demo / "kineto"))
