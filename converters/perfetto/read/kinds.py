"""Kinds of slices and tracks by the names that producers give them: tables."""

from __future__ import annotations

import re

from chopper_interop.edges.communication import communicates
from chopper_interop.schemas.kinds import Kind, LaneKind

ROCPROF = "rocprofv3"
ROCPROF_V2 = "rocprofv2"
ROCPROF_SYSTEMS = "rocprofiler-systems"

_CALL_NAMES: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"(__)?(hip|cuda)[A-Z]"), Kind.RUNTIME),
    (re.compile(r"hsa_|cu[A-Z][a-z]"), Kind.DRIVER),
    (re.compile(r"(nccl|rccl|MPI_|roc(Decode|decode|jpeg))"), Kind.API),
    (re.compile(r"aten::|autograd::"), Kind.CPU_OP),
)
"""Beginnings of the names of calls → kind, for slices without a known category."""
_COPY = re.compile(r"(__amd_rocclr_)?(copy|memcpy)|MEMORY_COPY|memory copy", re.IGNORECASE)
_FILL = re.compile(r"(__amd_rocclr_)?(fill|memset)", re.IGNORECASE)
_BARRIER = re.compile(r"barrier|marker", re.IGNORECASE)


def call_kind(name: str, category: str) -> Kind:
    """Return the kind of a slice on a thread by its name."""
    unnamed = Kind.OTHER if category else Kind.CPU_OP
    return next((kind for begin, kind in _CALL_NAMES if begin.match(name)), unnamed)


def gpu_work_kind(name: str) -> Kind:
    """Return the kind of a slice on a GPU's track by its name."""
    if communicates(name):
        return Kind.COMM
    by_name = ((_COPY, Kind.MEMCPY), (_FILL, Kind.MEMSET), (_BARRIER, Kind.GPU_SYNC))
    return next((kind for begin, kind in by_name if begin.match(name)), Kind.KERNEL)


_AGENT = r"(?P<label>AGENT|Agent|GPU|CPU|Device|DEVICE)\s*-?\[?(?P<device>\d+)\]?"
_AGENT_NUMBER = r"(?:(?:AGENT|Agent|GPU|CPU|UNK) )?\[(?P<device>\d+)\]"
"""An agent in a name of rocprofv3: ROCm 6.2 writes no more than its number."""
_COPY_TO = rf"COPY to {_AGENT_NUMBER}(?P<host>.*\bCPU\b)?"
TRACK_NAMES: tuple[tuple[re.Pattern[str], LaneKind], ...] = (
    (re.compile(r"THREAD \d+ \((?P<number>\d+)\)"), LaneKind.THREAD),
    (re.compile(rf"COMPUTE {_AGENT_NUMBER} STREAM \[(?P<number>\d+)\]"), LaneKind.STREAM),
    (re.compile(rf"COMPUTE {_AGENT_NUMBER} QUEUE \[(?P<number>\d+)\]"), LaneKind.QUEUE),
    (re.compile(rf"(?=.* STREAM \[(?P<number>\d+)\]){_COPY_TO}"), LaneKind.STREAM),
    (re.compile(rf"(?=.* THREAD \[(?P<number>\d+)\]){_COPY_TO}"), LaneKind.COPY),
    (re.compile(_COPY_TO), LaneKind.COPY),
    (
        re.compile(rf"MEMORY ALLOCATION on {_AGENT_NUMBER}( THREAD \[(?P<number>\d+)\])?"),
        LaneKind.MEMORY,
    ),
    (re.compile(r"STREAM \[\W*(?P<number>\d+)\W*\]"), LaneKind.STREAM),
    (re.compile(r"Dev (?P<device>\d+) Queue (?P<number>\d+)"), LaneKind.QUEUE),
    (re.compile(r"(HipStream|Stream) (?P<number>\d+)$"), LaneKind.STREAM),
    (re.compile(r"MEM COPIES\((?P<number>\d+)\)"), LaneKind.COPY),
    (re.compile(r"(HIP|HSA) API (?P<number>\d+)$"), LaneKind.THREAD),
    (re.compile(r"HIP Activity Stream (?P<number>\d+)"), LaneKind.STREAM),
    (re.compile(r"HIP Activity Device (?P<device>\d+)(, Queue (?P<number>\d+))?"), LaneKind.QUEUE),
    (re.compile(r"GPU Kernel Dispatch \[(?P<device>\d+)\] Queue (?P<number>\d+)"), LaneKind.QUEUE),
    (
        re.compile(r"GPU Memory Copy to Agent \[(?P<device>\d+)\] Thread (?P<number>\d+)"),
        LaneKind.COPY,
    ),
    (re.compile(r"GPU Memory Allocation to Agent \[(?P<device>\d+)\]"), LaneKind.MEMORY),
    (re.compile(r"GPU Scratch Memory Events Thread (?P<number>\d+)"), LaneKind.MEMORY),
    (re.compile(rf"{_AGENT}\W+(stream)\W*(?P<number>\d+)", re.IGNORECASE), LaneKind.STREAM),
    (re.compile(rf"{_AGENT}\W+(queue)\W*(?P<number>\d+)", re.IGNORECASE), LaneKind.QUEUE),
    (re.compile(r"(HIP )?STREAM \[?(?P<number>\d+)\]?", re.IGNORECASE), LaneKind.STREAM),
    (re.compile(r"queue\W*(?P<number>\d+)", re.IGNORECASE), LaneKind.QUEUE),
)
"""Names of tracks that are no threads → kind of lane: those of rocprofv3 (with ``STREAM [" 3 "]``
as ROCm 7 writes it), of rocprofv2's plugin, of Omnitrace and rocprofiler-systems, and others."""

COUNTER_DEVICE = re.compile(
    r"(?:AGENT|Agent|GPU|Device|Dev)(?: (\d+)\b|[^\[]{0,256}\[(\d{1,20})\])"
)
"""The GPU in the name of a counter track."""
COUNTER_OF_HOST = re.compile(r"\bCPU\b")
"""Counter tracks of processors, which rocprofv3 numbers among the GPUs."""
TRUNCATED_COUNTER = re.compile(r"(?:AGENT|Agent|GPU|CPU|UNK) \[\d+\] PMC ")
"""Tracks of hardware counters, of which rocprofv3 writes the integer part."""
TO_HOST = re.compile(r"DEVICE_TO_HOST|DeviceToHost|DtoH")
TO_DEVICE = re.compile(r"HOST_TO_DEVICE|HostToDevice|HtoD")
"""Names of copies that have their direction in them."""
WAITS = re.compile(r"[Ss]ynchronize|Wait|_wait")
"""Names of host calls that wait for a GPU."""
HOST_CALLS = (Kind.RUNTIME, Kind.DRIVER, Kind.API, Kind.CPU_OP)
"""Kinds that launch GPU work, the likelier ones first."""
TOOL_CATEGORIES = (
    (re.compile(r"HIP_API|HSA_API|HIP_OPS|HSA_OPS|MEM_COPIES|KERNELS|ROCTX_.*"), ROCPROF_V2),
    (re.compile(r"kernel_dispatch|memory_copy|hip_api|hsa_api|marker_api"), ROCPROF),
    (re.compile(r"rocm_.*|rocprofsys|omnitrace|device_hip|host_hip"), ROCPROF_SYSTEMS),
)
"""Categories by which the tool that wrote a trace is recognised."""
