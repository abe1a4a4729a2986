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
from issue_counts import counts
from read_once import read_once
from real_files import kineto_cases, kineto_files, other_cases, other_files
from shared_data import each, real
from trace_processor import TraceProcessor

import chopper_interop as ci
from chopper_interop.errors import ReadError, UnknownFormatError
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind

CALLS = ("cuda_runtime", "cuda_driver", "runtime", "mtia_runtime")
GPU = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "mtia_ccp_events")
WAITS = ("event_record", "event_wait")  # of MTIA's streams, in the category of their work


def events_of(path: Path) -> list[dict[str, Any]]:
    """Events by the json library, numbers with a point as decimals."""
    raw = path.read_bytes()
    for magic, unpack in ((b"\x1f\x8b", gzip), (b"BZh", bz2), (b"\xfd7z", lzma)):
        raw = unpack.decompress(raw) if raw.startswith(magic) else raw
    document = json.loads(raw, parse_float=Decimal)
    return document if isinstance(document, list) else document["traceEvents"]


def nanoseconds(value: Any) -> int:
    return int(Decimal(value) * 1000)


def test_the_files_are_found(shared: Path) -> None:
    assert shared.is_dir()
    assert len(kineto_files()) >= 46
    assert len(other_files()) >= 300


Job = tuple[str, list[dict[str, Any]], ci.Trace]


@pytest.fixture(scope="module", params=each(kineto_cases()))
def job(request: pytest.FixtureRequest) -> Job:
    """Name, events and trace of a profile."""
    path = real(f"pytorch/{request.param}")
    return request.param, events_of(path), read_once(path)


def test_kineto_to_perfetto(job: Job, tmp_path: Path) -> None:
    name, events, trace = job
    ci.write(trace, tmp_path / "job.pftrace", all_samples=True)

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


def test_launches_are_those_of_the_correlation_ids(job: Job) -> None:
    _, events, trace = job
    spans = [e for e in events if e["ph"] == "X"]
    calls = {
        e["args"]["correlation"]
        for e in spans
        if e["cat"].lower() in CALLS and e.get("args", {}).get("correlation", 0) > 0
    }
    work = [e for e in spans if e["cat"].lower() in GPU and e["name"] not in WAITS]
    launched = sum(e.get("args", {}).get("correlation") in calls for e in work)
    kinds = Counter(trace.array("kind", "edges").tolist())
    assert kinds[EdgeKind.LAUNCH] == launched
    lost = counts(trace).get("launch-not-recorded", 0)
    assert launched + lost == len(work)
    assert sum(trace.array("kind").tolist().count(int(k)) for k in GPU_WORK) == len(work)
    arrows = sum(e["ph"] == "s" and e["cat"] == "fwdbwd" for e in events)
    assert kinds[EdgeKind.FWDBWD] <= arrows or not arrows  # else numbers of sequence tell


def test_forward_and_backward_are_tied_on_real_training(shared: Path) -> None:
    trace = read_once(shared / "pytorch" / "mi300x" / "resnet_act_checkpoint.json.gz")
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
    trace = read_once(shared / "pytorch" / "ddp_resnet_4rank_amd" / "merged_all_events.json.gz")
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
    fused = read_once(folder / "merged_all_events.json.gz")
    split = ci.read(*sorted(folder.glob("rank*.json.gz")))
    for rank in range(4):
        a, b = fused.rank(rank), split.rank(rank)
        for column in ("ts", "dur", "kind", "correlation"):
            left, right = a.array(column), b.array(column)
            if column == "ts":
                left, right = left + a.meta.origin_ns, right + b.meta.origin_ns
            assert (left == right).all(), column
    status, _, stderr = run("convert", folder, "-o", "/dev/null/x.pftrace")
    assert status == 6, stderr  # both are there, and that is no second run
    assert "cannot be written" in stderr


HOLD_NO_TRACE = (
    "laid out for reading",
    "the input has no events and no samples",  # it describes the GPUs alone
    "holds an error",
    "without a timeline",
    "it is empty",
)


def read_or_refusal(path: Path) -> ci.Trace | str:
    """The trace of a file, with a time given if it has none; or why there is none to read."""
    try:
        return ci.read(path)
    except UnknownFormatError as refused:
        return str(refused)
    except ReadError as refused:
        if "at_ns" in str(refused):
            return ci.read(path, at_ns=1_700_000_000 * 10**9)
        return str(refused)


@pytest.mark.parametrize("name", each(other_cases()))
def test_rocprof_and_telemetry_to_perfetto(shared: Path, tmp_path: Path, name: str) -> None:
    path = shared / name
    trace = read_or_refusal(path)
    if isinstance(trace, str):
        timeless = path.stem in ("counter_collection", "kernel_names")  # of ROCm before 6.3
        whys = ["--kernel-trace too"] if timeless else HOLD_NO_TRACE
        assert any(why in trace for why in whys), trace
        return
    (source,) = trace.meta.sources
    counted = sum(issue.count for issue in trace.meta.issues if issue.events)
    assert 0 < source.events == source.nodes + counted
    ci.write(trace, tmp_path / "job.pftrace", all_samples=True)
    perfetto = TraceProcessor(tmp_path / "job.pftrace")
    assert perfetto.losses() == {}
    ((slices, total),) = perfetto.query(
        "select count(*), ifnull(sum(dur), 0) from slice join track on track_id = track.id "
        "where coalesce(track.name, '') != 'exposed communication'"  # which follows from the others
    )
    assert (slices, total) == (trace.nodes.num_rows, int(trace.array("dur").sum()))
    ((points,),) = perfetto.query("select count(*) from counter")
    assert points >= trace.samples.num_rows
