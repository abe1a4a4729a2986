"""Telemetry next to profiles: one job, one clock, one picture."""

import json
from pathlib import Path

from issue_counts import counts
from telemetry import lanes, points_of

import chopper_interop as ci

BASE_NS = 1_786_553_852_400_000_000
SECOND = 1_000_000_000


def kineto(folder: Path, ranks: int = 2) -> None:
    """Write a trace for each rank: a step of three seconds with a kernel in it."""
    for rank in range(ranks):
        events = [
            event("ProfilerStep#1", "user_annotation", 0, 3_000_000, pid=42 + rank, tid=1),
            event("hipLaunchKernel", "cuda_runtime", 100, 10, pid=42 + rank, tid=1),
            event("gemm", "kernel", 500, 2_500_000, pid=rank, tid=0, device=rank, stream=0),
        ]
        document = {
            "schemaVersion": 1,
            "baseTimeNanoseconds": BASE_NS,
            "distributedInfo": {"rank": rank, "world_size": ranks},
            "traceEvents": events,
        }
        (folder / f"rank{rank}.json").write_text(json.dumps(document))


def event(name: str, category: str, ts: float, dur: float, **where: int) -> dict:
    pid, tid = where.pop("pid"), where.pop("tid")
    args = {"correlation": 7, **where}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def watch(folder: Path, ticks: int = 6, gpus: int = 2) -> None:
    text = "'CTRL' + 'C' to stop watching output:\n"
    for tick in range(ticks):
        text += "timestamp,gpu,gfx_activity,socket_power,hotspot,mem\r\n"
        for gpu in range(gpus):
            now = BASE_NS + tick * 1_050_000_000
            text += f"{now // SECOND},{gpu},99,{700 + 10 * gpu + tick},60,50\r\n"
        text += "\n"
    (folder / "amd-smi.csv").write_text(text)


def test_a_folder_is_converted_with_its_telemetry(tmp_path: Path, run) -> None:
    kineto(tmp_path)
    watch(tmp_path)
    status, _, stderr = run("convert", tmp_path, "-o", tmp_path / "out" / "job.pftrace")
    assert status == 0, stderr
    assert (tmp_path / "out" / "job.pftrace").stat().st_size > 1000
    trace = ci.read(tmp_path / "rank0.json", tmp_path / "rank1.json", tmp_path / "amd-smi.csv")
    assert trace.nodes.num_rows == 6
    by_lane = lanes(trace)
    for gpu in range(2):
        assert by_lane[gpu, "socket power"] == [700 + 10 * gpu + tick for tick in range(6)]
        assert by_lane[gpu, "temperature memory"] == [50.0] * 6
    owner = {(s["device"], s["rank"]) for s in trace.series.to_pylist()}
    assert owner == {(0, 0), (1, 1)}
    for points in points_of(trace).values():
        for tick, (ts, _) in enumerate(points):
            assert abs(ts - (BASE_NS + tick * 1_050_000_000)) <= SECOND // 2 + 10_000_000


def test_a_single_output_next_to_profiles_does_not_hinder(tmp_path: Path) -> None:
    kineto(tmp_path)
    (tmp_path / "before.csv").write_text("gpu,socket_power\r\n0,100\r\n1,101\r\n")
    trace = ci.read(tmp_path)
    assert trace.nodes.num_rows == 6
    assert not trace.samples.num_rows
    assert counts(trace)["row-without-time"] == 2


def test_what_describes_the_machine_is_skipped(tmp_path: Path) -> None:
    kineto(tmp_path)
    (tmp_path / "static.json").write_text('{"gpu_data": [{"gpu": 0, "asic": {}, "bus": {}}]}')
    (tmp_path / "list.csv").write_text("gpu,gpu_bdf,gpu_uuid\r\n0,0000:0c:00.0,00ff\r\n")
    assert ci.read(tmp_path).nodes.num_rows == 6


def test_recorder_and_watch_of_the_demo(demo: Path) -> None:
    """The sample job's telemetry: both tools saw the same GPUs on the same clock."""
    folder = demo / "telemetry"
    files = {path.name: ci.read(path) for path in folder.iterdir() if path.suffix == ".csv"}
    assert len(files) == 2
    for trace in files.values():
        assert not [i for i in trace.meta.issues if i.severity.value != "info"]
    watched, recorded = (points_of(files[name]) for name in ("amd-smi-watch.csv", "recorder.csv"))
    for gpu in range(2):
        energy = dict.fromkeys(("amd-smi-watch.csv", "recorder.csv"))
        for name, points in (("amd-smi-watch.csv", watched), ("recorder.csv", recorded)):
            (first, start), (last, end) = points[gpu, "energy"][0], points[gpu, "energy"][-1]
            assert last > first
            energy[name] = end - start
        assert energy["amd-smi-watch.csv"] > energy["recorder.csv"] > 0  # it runs longer
        begin, end = (points_of(files["recorder.csv"])[gpu, "energy"][i][0] for i in (0, -1))
        assert watched[gpu, "energy"][0][0] < begin < end < watched[gpu, "energy"][-1][0]
