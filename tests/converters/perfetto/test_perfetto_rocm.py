"""Perfetto traces of every ROCm tool and version, made as the code of each writes them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from issue_counts import counts
from seeds.perfetto import END, INSTANT, MAIN, PID, PROCESS, T0, Sdk, annotate, trace

import chopper_interop as ci
from chopper_interop.schemas.kinds import EdgeKind, LaneKind

KERNEL = "gemm(float*)"


@dataclass(frozen=True)
class Version:
    """A version of rocprofv3, or of rocpd's conversion: its names of tracks and arguments."""

    compute: str
    to_gpu: str
    to_cpu: str
    gpu: Any
    cpu: Any
    device: int
    lane: tuple[LaneKind, int]
    stream: str = ""
    kernel: dict[str, Any] = field(default_factory=dict)
    counters: tuple[float, ...] | None = None
    counters_read: int = 0


_OLD = {"private_segment_size": 0, "group_segment_size": 512}
_NEW = {"agent_type": "GPU", "Scratch_Size": 0, "LDS_Block_Size": 512, "VGPR_Count": 32}
VERSIONS = {
    "6.2": Version(
        "COMPUTE [4] QUEUE [0] GPU", "COPY to [4] THREAD [0] GPU", "COPY to [0] THREAD [0] CPU",
        4, 0, 4, (LaneKind.QUEUE, 0), kernel=_OLD,
    ),
    "6.3": Version(
        "COMPUTE AGENT [4] QUEUE [0] (GPU)", "COPY to AGENT [4] THREAD [0] (GPU)",
        "COPY to AGENT [0] THREAD [0] (CPU)", 4, 0, 4, (LaneKind.QUEUE, 0), kernel=_OLD,
    ),
    "6.4, whose counters are sums": Version(
        "COMPUTE Agent [4] QUEUE [0] GPU", "COPY to AGENT [4] THREAD [0] (GPU)",
        "COPY to AGENT [0] THREAD [0] (CPU)", "Agent-4", "Agent-0", 4, (LaneKind.QUEUE, 0),
        kernel=_OLD, counters=(96.0, 96.0),
    ),
    "7.0 by stream": Version(
        'STREAM [" 3 "] ', 'STREAM [" 3 "] ', 'STREAM [" 3 "] ', "Agent-4", "Agent-0", 4,
        (LaneKind.STREAM, 3), "stream_ID", _NEW, (32.0, 64.5), 2,
    ),
    "7.0 by queue, agents by type": Version(
        "COMPUTE GPU [0] QUEUE [1] GPU", "COPY to AGENT [4] THREAD [0] (GPU)",
        "COPY to AGENT [0] THREAD [0] (CPU)", "GPU-0", "CPU-0", 0, (LaneKind.QUEUE, 1),
        "stream_ID", _NEW, (32.0, 32.0), 2,
    ),
    "rocpd's conversion, whose counters are sums": Version(
        "STREAM [3]", "STREAM [3]", "STREAM [3]", "Agent-4", "Agent-0", 4, (LaneKind.STREAM, 3),
        "stream_id", {"Scratch_Size": 0, "LDS_Block_Size": 512}, (96.0, 96.0),
    ),
}  # fmt: skip


def _timed(begin: int, end: int) -> dict[str, int]:
    return {"begin_ns": begin, "end_ns": end, "delta_ns": end - begin}


def rocprofv3(version: Version) -> bytes:
    """Two kernels that two calls launch, a copy each way."""
    sdk = Sdk()
    sdk.start()
    sdk.process()
    tracks: dict[str, int] = {}
    for name in (version.compute, version.to_gpu, version.to_cpu):
        if name not in tracks:
            tracks[name] = 20 + len(tracks)
            sdk.track(tracks[name], name)
    stream = {version.stream: 3} if version.stream else {}
    for i in range(2):
        call = T0 + 20_000 * i
        sdk.slice(
            MAIN, "hipLaunchKernel", "hip_api", call, call + 1_000, i + 1,
            **_timed(call, call + 1_000), tid=PID, kind=3, operation=217, corr_id=i + 1,
        )  # fmt: skip
        begin, end = call + 5_000, call + 18_000
        counters = {"SQ_WAVES": version.counters[i]} if version.counters else {}
        sdk.slice(
            tracks[version.compute], KERNEL, "kernel_dispatch", begin, end, i + 1,
            **_timed(begin, end), kind=11, agent=version.gpu, corr_id=i + 1, queue=0, tid=PID,
            kernel_id=7, **version.kernel, workgroup_size=256, grid_size=65536, **stream, **counters,
        )  # fmt: skip
    for k, (name, way, src, dst) in enumerate((
        (version.to_gpu, "HOST_TO_DEVICE", version.cpu, version.gpu),
        (version.to_cpu, "DEVICE_TO_HOST", version.gpu, version.cpu),
    )):  # fmt: skip
        begin = T0 + 90_000 + 1_000 * k
        sdk.slice(
            tracks[name], f"MEMORY_COPY_{way}", "memory_copy", begin, begin + 700, 20 + k,
            **_timed(begin, begin + 700), kind=10, operation=2, src_agent=src, dst_agent=dst,
            copy_bytes=4096, corr_id=20 + k, tid=PID, **stream,
        )  # fmt: skip
    return trace(*sdk.packets)


@pytest.mark.parametrize("name", VERSIONS)
def test_rocprofv3_of_every_version(tmp_path: Path, name: str) -> None:
    version = VERSIONS[name]
    (tmp_path / "a.pftrace").write_bytes(rocprofv3(version))
    read = ci.read(tmp_path / "a.pftrace")
    frame = read.to_pandas()
    assert frame["kind"].tolist() == ["runtime", "kernel"] * 2 + ["memcpy"] * 2
    lanes = read.lanes.to_pandas().iloc[read.array("lane")].reset_index(drop=True)
    on_gpu = frame["kind"] != "runtime"
    assert set(lanes[on_gpu]["device"]) == {version.device}
    kernels = lanes[frame["kind"] == "kernel"]
    assert {(LaneKind(k), n) for k, n in zip(kernels["kind"], kernels["number"], strict=True)} == {
        version.lane
    }
    assert read.array("kind", "edges").tolist() == [int(EdgeKind.LAUNCH)] * 2
    assert frame["correlation"].tolist() == [1, 1, 2, 2, 20, 21]
    assert frame["bytes"].dropna().tolist() == [4096, 4096]
    assert read.meta.sources[0].tool == "rocprofv3"
    codes = counts(read)
    assert read.counters.num_rows == version.counters_read
    if version.counters_read:
        assert read.counters["value"].to_pylist() == list(version.counters or ())
        assert set(read.counters["name"].to_pylist()) == {"SQ_WAVES"}
    assert (
        codes.get("counter-values-are-sums", 0)
        == (2 if version.counters else 0) - version.counters_read
    )


def test_rocprofv2(tmp_path: Path) -> None:
    sdk = Sdk()
    sdk.start()
    sdk.process("Node: host")
    for uuid, name in (
        (20, "Dev 1 Queue 2"), (21, "HipStream 5"), (22, "MEM COPIES(4250): "),
        (23, f"HIP API {PID}"), (24, f"HSA API {PID}"), (25, "ROCTX Push/Pop Ranges"),
        (26, "ROCTX Markers"),
    ):  # fmt: skip
        sdk.track(uuid, name)
    sdk.track(27, "Dev 1 Counter SQ_WAVES").counter.SetInParent()
    sdk.slice(23, "hipLaunchKernel", "HIP_API", T0, T0 + 10, 7)
    sdk.slice(24, "hsa_signal_create", "HSA_API", T0 + 2, T0 + 3, 8)
    sdk.slice(20, KERNEL, "KERNELS", T0 + 20, T0 + 40, 7, **{"Agent ID": 1, "Queue ID": 2})
    sdk.slice(21, KERNEL, "HIP_OPS", T0 + 50, T0 + 60, 9, **{"Agent ID": 1, "Process ID": PID})
    sdk.slice(21, "FillBuffer", "HIP_OPS", T0 + 70, T0 + 80, 10, **{"Process ID": PID})
    sdk.slice(22, "CopyHostToDevice", "MEM_COPIES", T0 + 90, T0 + 95, 11, **{"Process ID": PID})
    sdk.slice(25, "step", "ROCTX_RANGE_PUSH_POP", T0 + 96, T0 + 98, **{"RocTx ID": 0})
    packet, event = sdk.event(INSTANT, T0 + 99, 26)
    event.name = "mark"
    event.category_iids.append(sdk.iid(packet, "event_categories", "ROCTX_MARK"))
    sdk.count(27, T0 + 20, 12.5)
    sdk.count(27, T0 + 40, 0.0)
    (tmp_path / "a.pftrace").write_bytes(trace(*sdk.packets))
    read = ci.read(tmp_path / "a.pftrace")
    frame = read.to_pandas()
    assert frame["kind"].tolist() == [
        "runtime", "driver", "kernel", "kernel", "memset", "memcpy", "annotation", "annotation",
    ]  # fmt: skip
    assert frame["correlation"].tolist()[:6] == [7, 8, 7, 9, 10, 11]
    lanes = read.lanes.to_pandas().iloc[read.array("lane")]
    assert lanes["device"].tolist()[2:4] == [1, 1]
    assert lanes["number"].tolist()[:5] == [PID, PID, 2, 5, 5]
    assert read.array("kind", "edges").tolist() == [int(EdgeKind.LAUNCH)]
    assert read.series["device"].to_pylist() == [1]
    assert read.samples["value"].to_pylist() == [12.5, 0.0]
    assert read.meta.sources[0].tool == "rocprofv2"


def test_rocprofiler_systems_by_stream(tmp_path: Path) -> None:
    sdk = Sdk()
    sdk.start()
    sdk.process()
    sdk.track(20, "HIP Activity Stream 2")
    sdk.track(21, "GPU SQ_INSTS_V2 [1]").counter.SetInParent()
    sdk.track(22, "GPU [1] VCN Activity[03] (S)").counter.unit_name = "%"
    sdk.slice(MAIN, "hipLaunchKernel", "rocm_hip_api", T0, T0 + 5, 3, corr_id=3, stream_id=2)
    sdk.slice(
        20, KERNEL, "rocm_hip_stream", T0 + 10, T0 + 20, 3, begin_ns=T0 + 10, end_ns=T0 + 20,
        corr_id=3, stream_id=2, queue=1, dispatch_id=1, kernel_id=4, workgroup_size="(256,1,1)",
    )  # fmt: skip
    sdk.slice(
        20, "MEMORY_COPY_DEVICE_TO_HOST", "rocm_hip_stream", T0 + 30, T0 + 40, 4, corr_id=4,
        stream_id=2, dst_agent=0, src_agent=3,
    )  # fmt: skip
    sdk.slice(MAIN, "ncclAllReduce", "rccl", T0 + 50, T0 + 60)
    for uuid in (21, 22):
        sdk.count(uuid, T0 + 10, 3.0)
    (tmp_path / "a.pftrace").write_bytes(trace(*sdk.packets))
    read = ci.read(tmp_path / "a.pftrace")
    assert read.to_pandas()["kind"].tolist() == ["runtime", "kernel", "memcpy", "api"]
    lanes = read.lanes.to_pandas().iloc[read.array("lane")]
    assert lanes["number"].tolist()[1:3] == [2, 2]
    assert lanes["device"].tolist()[1:3] == [0, 3]
    assert read.series["device"].to_pylist() == [1, 1]
    assert read.array("kind", "edges").tolist() == [int(EdgeKind.LAUNCH)]


def test_other_fields_of_events_are_counted(tmp_path: Path) -> None:
    sdk = Sdk()
    sdk.start()
    sdk.process()
    sdk.slice(MAIN, "task", "toplevel", T0, T0 + 9)
    event = sdk.packets[-2].track_event
    event.category_iids.append(99)
    event.task_execution.posted_from_iid = 3
    event.chrome_user_event.action = "click"
    value = event.debug_annotations.add(name="typed")
    value.proto_type_name, value.proto_value = ".some.Type", b"\x08\x01"
    annotate(event, "plain", 5)
    sdk.packets[-1].track_event.thread_time_absolute_us = 4
    assert sdk.packets[-1].track_event.type == END
    (tmp_path / "a.pftrace").write_bytes(trace(*sdk.packets))
    read = ci.read(tmp_path / "a.pftrace")
    assert read.args(0) == {"typed": None, "plain": 5}
    codes = counts(read)
    assert codes["typed-arguments-left-out"] == 3
    assert codes["further-categories"] == 1
    assert codes["annotation-unreadable"] == 1
    assert PROCESS in {d.track_descriptor.uuid for d in sdk.packets}
