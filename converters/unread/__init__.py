"""Formats that people have and that are not read: each is recognised, with what to give instead.

Nothing of these files is read but what distinguishes them; see `Converter.not_read_because`.
"""

from __future__ import annotations

import re
from pathlib import Path

from chopper_interop.converters.sampling.ambiguous_headers import CODECARBON
from chopper_interop.io.sqlite_files import mentions_table
from chopper_interop.io.sqlite_schema import has_tables
from chopper_interop.registry import Converter

_TORCH = "profile with torch.profiler and give what export_chrome_trace writes"
_NSYS_TABLES = ("cupti_activity_kind_", "target_info_", "nvtx_events", "cuda_gpu_memory_usage")
_NSYS = b"NVIDIA Tegra Profiler Report"
"""Beginning of the six reports that were looked at, of 2022."""
_NSYS_STATISTICS = re.compile(
    rb"(?:Start ?\(ns(?:ec)?\),Duration ?\(ns(?:ec)?\)|Time ?\(%\),Total Time ?\(ns(?:ec)?\)),"
    rb"|==[=\d]+== (?:NVPROF is profiling|Profiling |Generated result)"
)
"""First columns of what ``nsys stats --format csv`` writes: its traces, and its sums; first line of nvprof."""
_NSYS_ENDINGS = (".nsys-rep", ".qdrep", ".qdstrm")
_OTHER_TABLES = ("rocpd_",)
_PROTON = re.compile(rb'\s*\[\s*\{\s*"(?:children|frame|metrics)"\s*:')
_PROTON_KEYS = (b'"frame"', b'"metrics"')
_VARINT = rb"[\x80-\xff]*[\x00-\x7f]"
_XPLANE = re.compile(
    rb"\n" + _VARINT + rb"(?:\x08" + _VARINT + rb")?\x12[\x01-\x7f]"
    rb"(?:/host:|/device:|/task:|/job:|Task Environment|#Chrome TPU)"
)
"""XSpace: a plane, maybe its id, and its name."""
_TIMELINE = re.compile(rb"\s*\[\s*\[\s*-?\d+(?:\.\d+)?\s*,\s*(?:-?\d|\"|\[)")
"""``export_memory_timeline``: lists of times and of sizes, or a list for each event."""
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_SNAPSHOT_KEYS = (b"segments", b"device_traces")
_MEMORY_PAGES = (b"GPU Memory Timeline HTML", b"pytorch/assets/viz/MemoryViz", b"MemoryViz.js")
_OPERATORS = re.compile(rb"\s*-{8}[- ]*\r?\n\s*Name +Self CPU %? ")
"""Heading of ``key_averages().table()``."""
_MSPROF = re.compile(rb"Device_id,(?:[\w ]+,){0,4}(?:Op Name|OP Type|Op Type|Task ID|Stream ID),")
"""Headings of msprof's tables (op_summary, op_statistic, task_time)."""
_OTF2_ENDINGS = (".otf2", ".evt")
_MONITORS = re.compile(
    rb"# HELP (?:DCGM_FI_|amd_gpu_|gpu_|nvidia_)|# TYPE DCGM_FI_|DCGM_FI_\w+\{"
    rb"|Timestamp, ?DeviceId,[^\n(]{1,80} \("
    rb'|\s*\{\s*"hostname"\s*:[^{\[]{1,400}"(?:gpus|query_time)"\s*:'
)
"""Prometheus' exporters of GPUs' values, Intel's xpu-smi, gpustat."""
_LFS = re.compile(rb"version https://git-lfs\.github\.com/spec/")
_LINK = re.compile(rb"(?P<out>(?:\.{1,2}/)+|/)?[^\x00-\x1f\x7f\"<>{}|]+")
"""Target of a symbolic link, as it stands in a file where links cannot be made: nothing but a path."""
_MAX_LINK = 1024
"""Longest target, bytes; chosen: well above real ones, and within the first bytes of a file."""
_NCU = re.compile(
    rb'NVR\x00|(?:==(?:PROF|WARNING)==[^\n]*\n)*"ID","Process ID","Process Name","Host Name","Kernel Name"'
)
"""Beginning of a report, and of what ``ncu --csv`` prints."""
_TENSORBOARD = re.compile(rb"[^\x00]\x00{7}.{4}\t.{8}\x1a.brain\.Event:", re.DOTALL)
"""First record of a file of events: its length, a checksum, the wall time, the version."""
_SPEEDSCOPE = b"www.speedscope.app/file-format-schema.json"
_FLAME_GRAPH = (b"<svg", b"Flame graph")
_BINARY_SAMPLES = (b"PERFILE2", b"memray\x00")
"""Beginnings of files of Linux perf, and of memray."""
_FOLDED = re.compile(rb"(?: \d+\r?\n)?[^\n;]*\.py:\d+\)(?:;[^\n]*)? \d+\r?\n")
"""py-spy's raw output: frames of a stack with file and line, and a count; maybe a stack without any first."""


def is_nsys_database(head: bytes) -> bool:
    """True if a database that begins so is an export of Nsight Systems, or of nvprof."""
    return mentions_table(head, *_NSYS_TABLES) and not mentions_table(head, *_OTHER_TABLES)


def confirms_nsys_database(path: Path, head: bytes) -> bool:
    """True if a database has the tables of CUPTI and none of rocpd's or rpd's."""
    return has_tables(path, head, _NSYS_TABLES, _OTHER_TABLES)


def confirms_nsys_report(path: Path, head: bytes) -> bool:
    """True if a file begins as a report, or is binary and has the name of one; its format is not documented."""
    return head.startswith(_NSYS) or (path.name.endswith(_NSYS_ENDINGS) and b"\x00" in head)


def is_proton(head: bytes) -> bool:
    """True if a file that begins so is a tree of Triton's profiler."""
    return _PROTON.match(head) is not None and all(key in head for key in _PROTON_KEYS)


def is_memory(head: bytes) -> bool:
    """True if a file that begins so is a memory timeline or snapshot of PyTorch."""
    if _PICKLE.match(head):
        return any(key in head for key in _SNAPSHOT_KEYS)
    return _TIMELINE.match(head) is not None or any(page in head for page in _MEMORY_PAGES)


def confirms_link(path: Path, head: bytes) -> bool:
    """True if all of a file is a path that leads elsewhere, or to a file of the same ending."""
    match = _LINK.fullmatch(head) if len(head) <= _MAX_LINK else None
    if match is None or path.stat().st_size != len(head):
        return False
    ending = path.suffix.encode()
    return match["out"] is not None or (ending != b"" and head.endswith(ending))


def is_host_samples(head: bytes) -> bool:
    """True if a file that begins so is a profile of host code by sampling, as py-spy or perf write them."""
    return (
        _SPEEDSCOPE in head
        or head.startswith(_BINARY_SAMPLES)
        or all(part in head for part in _FLAME_GRAPH)
        or _FOLDED.match(head) is not None
    )


def is_codecarbon(head: bytes) -> bool:
    """True if a file that begins so is codecarbon's table of runs."""
    return CODECARBON.match(head[:4096].decode("utf-8", "replace").lstrip("\ufeff")) is not None


def confirms_otf2(path: Path, head: bytes) -> bool:
    """True if a file is binary and has a name of OTF2's; its files begin in several ways."""
    return path.name.endswith(_OTF2_ENDINGS) and b"\x00" in head


CARBON = Converter(
    name="codecarbon",
    description="codecarbon's table of runs (emissions.csv)",
    sniff=is_codecarbon,
    json=False,
    not_read_because="its rows are sums over runs, of a whole machine; record with chopper-record",
)
NSYS_REPORT = Converter(
    name="nsys-rep",
    description="report of NVIDIA Nsight Systems",
    json=False,
    confirms=confirms_nsys_report,
    not_read_because=f"its format is not public; {_TORCH}",
)
NSYS_SQLITE = Converter(
    name="nsys-sqlite",
    description="SQLite export of NVIDIA Nsight Systems or nvprof",
    sniff=is_nsys_database,
    json=False,
    confirms=confirms_nsys_database,
    not_read_because=f"its tables are not read; {_TORCH}",
)
NSYS_STATISTICS = Converter(
    name="nsys-stats",
    description="table of NVIDIA Nsight Systems (nsys stats) or nvprof",
    sniff=_NSYS_STATISTICS.match,
    json=False,
    not_read_because=f"it holds sums, or GPU work without what launched it; {_TORCH}",
)
NCU_REPORT = Converter(
    name="ncu-rep",
    description="report or table of NVIDIA Nsight Compute",
    sniff=_NCU.match,
    json=False,
    not_read_because=f"it replays kernels one by one and has no timeline; {_TORCH}",
)
PROTON = Converter(
    name="proton",
    description="tree of Triton's profiler Proton (.hatchet)",
    sniff=is_proton,
    json=True,
    not_read_because="its times are sums without a timeline; profile with "
    f'proton.start(data="trace"), or {_TORCH}',
)
XPLANE = Converter(
    name="xplane",
    description="profile of JAX, TensorFlow or PyTorch/XLA (.xplane.pb)",
    sniff=_XPLANE.match,
    json=False,
    not_read_because="give the .trace.json.gz next to it, or what "
    "jax.profiler.trace(…, create_perfetto_trace=True) writes",
)
PYTORCH_MEMORY = Converter(
    name="pytorch-memory",
    description="memory timeline or snapshot of PyTorch",
    sniff=is_memory,
    not_read_because="it holds no operations in time; profile with profile_memory=True and give what "
    "export_chrome_trace writes",
)
TENSORBOARD = Converter(
    name="tensorboard-events",
    description="events of TensorBoard",
    sniff=_TENSORBOARD.match,
    json=False,
    not_read_because="it holds scalars and images; give the .pt.trace.json of torch.profiler or the "
    ".trace.json.gz of JAX, which lie in the same folder or in plugins/profile",
)
HOST_SAMPLES = Converter(
    name="py-spy",
    description="samples of host code (py-spy, speedscope, flame graph, perf, memray)",
    sniff=is_host_samples,
    not_read_because=f"it has neither GPU work nor calls; {_TORCH}",
)
OPERATOR_TABLE = Converter(
    name="pytorch-table",
    description="table of PyTorch's operators (key_averages().table())",
    sniff=_OPERATORS.match,
    json=False,
    not_read_because="it holds sums; give what export_chrome_trace writes of the same profile",
)
MSPROF_TABLES = Converter(
    name="msprof-tables",
    description="table of Ascend's msprof (op_summary, op_statistic)",
    sniff=_MSPROF.match,
    json=False,
    not_read_because="it holds tasks without what launched them; give the trace_view.json of torch_npu.profiler",
)
OTF2 = Converter(
    name="otf2",
    description="archive of OTF2 (Score-P, rocprofv3)",
    json=False,
    confirms=confirms_otf2,
    not_read_because="give the database of rocprofv3 --output-format rocpd, or its csv, json or pftrace",
)
GPU_MONITORS = Converter(
    name="gpu-monitors",
    description="values of GPUs by Prometheus' exporters, Intel's xpu-smi or gpustat",
    sniff=_MONITORS.match,
    not_read_because="give the log of nvidia-smi, dcgmi, amd-smi or rocm-smi, or record with chopper-record",
)
LFS_POINTER = Converter(
    name="git-lfs-pointer",
    description="pointer of Git LFS",
    sniff=_LFS.match,
    json=False,
    not_read_because="the file itself was not fetched; run git lfs pull",
)
LINK = Converter(
    name="link-as-text",
    description="symbolic link that was copied or checked out as a text",
    json=False,
    confirms=confirms_link,
    not_read_because="give the file that it names, or make the links: git config core.symlinks true, and check out again",
)
