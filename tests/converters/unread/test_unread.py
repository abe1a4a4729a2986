"""Files that are not read are recognised in one line that says what to give instead."""

import gzip
import json
import pickle
import sqlite3
from pathlib import Path

import pytest

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.io.inputs import head


def database(path: Path, *tables: str) -> Path:
    base = sqlite3.connect(path)
    for table in tables:
        base.execute(f"CREATE TABLE {table} (start INTEGER, end INTEGER)")
    base.commit()
    base.close()
    return path


def plane(name: bytes, number: int = 1) -> bytes:
    """An XPlane as protobuf writes it, in an XSpace."""
    inner = (
        b"\x08"
        + bytes([number])
        + b"\x12"
        + bytes([len(name)])
        + name
        + b"\x1a\x04\x08\x01\x12\x00"
    )
    return b"\n" + bytes([len(inner)]) + inner


PROTON = [
    {
        "children": [{"children": [], "frame": {"name": "gemm"}, "metrics": {"time (ns)": 9}}],
        "frame": {"name": "ROOT", "type": "function"},
        "metrics": {"count": 0, "time (ns)": 0},
    },
    {"CUDA": {"0": {"arch": "90"}}},
]
SNAPSHOT = {"segments": [{"address": 1, "blocks": []}], "device_traces": [[]]}
HTML = (
    '<html>\n<head><meta charset="utf-8" /><title>GPU Memory Timeline HTML</title></head>\n<body>'
)
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:760b7f89de48\nsize 870601265\n"

EVENTS = (  # first record: length, checksum, Event with wall time and version
    b"\x18"
    + bytes(7)
    + b"\x93\x98\x0c\x54"
    + b"\t\x00\x00\x80\x2e\xa7\x54\xd9\x41\x1a\rbrain.Event:2"
)
SPEEDSCOPE = {
    "$schema": "https://www.speedscope.app/file-format-schema.json",
    "profiles": [{"type": "sampled", "name": "Thread 1", "samples": [[0]], "weights": [0.01]}],
    "shared": {"frames": [{"name": "main"}]},
}
FLAMES = (
    '<?xml version="1.0" standalone="no"?><svg version="1.1" xmlns="http://www.w3.org/2000/svg">'
    "<!--Flame graph stack visualization.--></svg>"
)

FILES = {
    "run.nsys-rep": ("nsys-rep", b"\x7aQuad\x00\x01\x02" + bytes(200)),
    "sent.bin": ("nsys-rep", b"NVIDIA Tegra Profiler Report 1.\0\x0bLocal (CLI)" + bytes(64)),
    "cuda_gpu_trace.csv": ("nsys-stats", b"Start (ns),Duration (ns),CorrId,GrdX\n310086272,149853,129,\n"),
    "cuda_gpu_kern_sum.csv": ("nsys-stats", b"Time (%),Total Time (ns),Instances\n50.7,3142,12\n"),
    "nvprof.csv": ("nsys-stats", b'==28736== NVPROF is profiling process 28736\n"Start","Duration","Grid X"\ns,ms,\n'),
    "nvprof.txt": ("nsys-stats", b"======== Profiling result:\nTime(%)  Time  Calls  Avg  Min  Max  Name\n"),
    "kernel.ncu-rep": ("ncu-rep", b"NVR\x00\x10\x00\x00\x00" + bytes(64)),
    "proton.hatchet": ("proton", json.dumps(PROTON).encode()),
    "indented.hatchet": ("proton", json.dumps(PROTON, indent=2).encode()),
    "host.xplane.pb": ("xplane", plane(b"/host:CPU") + plane(b"/device:GPU:0", 2)),
    "metadata.xplane.pb": (  # its id is 0 and left out, and then all fields have types of packets
        "xplane", b"\n\x1e\x12\x0e/host:metadata" + 2 * b'"\x05\x08\x07\x12\x01a'
    ),
    "packed.xplane.pb.gz": ("xplane", gzip.compress(plane(b"/host:metadata"))),
    "memory.json": ("pytorch-memory", b"[[1695, 1702, 1710], [[0, 1, 2], [0, 512, 512]]]"),
    "memory.raw.json.gz": ("pytorch-memory", gzip.compress(b"[[1695, 0, 512, 3], [1699, 2, 0, 1]]")),
    "memory.html": ("pytorch-memory", HTML.encode()),
    "snapshot.pickle": ("pytorch-memory", pickle.dumps(SNAPSHOT)),
    "events.out.tfevents.1700000000.host.1.0": ("tensorboard-events", EVENTS),
    "profile.speedscope.json": ("py-spy", json.dumps(SPEEDSCOPE).encode()),
    "profile.svg": ("py-spy", FLAMES.encode()),
    "profile.txt": ("py-spy", b" 3\nmain (train.py:3);step (train.py:9) 12\n"),
    "ncu.csv": ("ncu-rep", b'==PROF== Connected to process 9\n"ID","Process ID","Process Name","Host Name","Kernel Name"\n'),
    "perf.data": ("py-spy", b"PERFILE2" + bytes(64)),
    "memray-train.py.9.bin": ("py-spy", b"memray\x00\x0b" + bytes(64)),
    "operators.txt": ("pytorch-table", b"-------------  ------------  \n     Name    Self CPU %      Self CPU   CPU total %  \n"),
    "op_summary_20240101.csv": ("msprof-tables", b"Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type\n0,1,1,3,MatMul_1,MatMulV2\n"),
    "traces.otf2": ("otf2", b"\x01\x02\x00OTF2" + bytes(64)),
    "xpu.csv": ("gpu-monitors", b"Timestamp, DeviceId, GPU Utilization (%), GPU Power (W)\n06:14:46.000,    0, 0.00, 14.61\n"),
    "metrics": ("gpu-monitors", b'# HELP DCGM_FI_DEV_SM_CLOCK SM clock.\nDCGM_FI_DEV_SM_CLOCK{gpu="0"} 1410\n'),
    "gpustat.json": ("gpu-monitors", b'{"hostname": "h", "query_time": "2024-01-01T10:00:00", "gpus": [{"index": 0}]}'),
    "trace.json": ("git-lfs-pointer", LFS),
    "trace.pftrace": ("git-lfs-pointer", LFS),
    "rank0.json.gz": ("link-as-text", b"../../store/9f/rank0.json.gz"),
    "rank1.json.gz": ("link-as-text", b"run 2/rank1.json.gz"),
    "out_results.db": ("link-as-text", b"/data/runs/7"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_recognised_in_one_line(tmp_path: Path, name: str) -> None:
    expected, data = FILES[name]
    path = tmp_path / name
    path.write_bytes(data)
    assert [c.name for c in registry.sniffed(head(path), path)] == [expected]
    with pytest.raises(ci.ChopperError) as raised:
        ci.read(path)
    line = str(raised.value)
    assert "\n" not in line
    assert any(word in line for word in ("profile with", "give ", "git lfs pull"))


@pytest.mark.parametrize(
    "tables",
    [
        ("StringIds", "TARGET_INFO_GPU", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"),
        ("ANALYSIS_DETAILS", "CUPTI_ACTIVITY_KIND_RUNTIME"),
        ("EXPORT_META_DATA", "TARGET_INFO_SESSION_START_TIME", "OSRT_API"),
    ],
)
def test_an_export_of_nsys_is_neither_rocpd_nor_rpd(
    tmp_path: Path, tables: tuple[str, ...]
) -> None:
    path = database(tmp_path / "run.sqlite", *tables)
    assert [c.name for c in registry.sniffed(head(path), path)] == ["nsys-sqlite"]
    with pytest.raises(ci.ChopperError, match=r"torch\.profiler"):
        ci.read(path)


def test_databases_of_others_stay_what_they_are(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", "users", "orders")
    assert registry.sniffed(head(path), path) == []
    path = database(tmp_path / "x.rpd", "rocpd_string", "rocpd_op", "rocpd_api", "nvtx_events")
    assert "nsys-sqlite" not in [c.name for c in registry.sniffed(head(path), path)]


@pytest.mark.parametrize(
    "data",
    [
        b"[[", b"[1, 2, 3]", b'[{"children": 1}]', b"NVRAM", b"\x80\x04\x95}", b"version 3\n",
        b"\n\x05hello", b"", b"\x00" * 64, b"<svg></svg>", b"-------- Name Self", b"Device_id,Name", b'{"hostname": "h"}', b"Timestamp, Device", b"see a.py:3 12\n", b"\x18" + bytes(40),
    ],
)  # fmt: skip
def test_others_are_not(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "unknown.bin"
    path.write_bytes(data)
    unread = {
        "tensorboard-events", "py-spy", "nsys-rep", "nsys-sqlite", "ncu-rep", "proton", "xplane",
        "pytorch-memory", "pytorch-table", "msprof-tables", "otf2", "gpu-monitors",
    }  # fmt: skip
    assert not unread & {c.name for c in registry.sniffed(head(path), path)}
