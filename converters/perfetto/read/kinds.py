"""Kinds of slices and tracks by the categories and names that producers give them: tables."""

from __future__ import annotations

import re

from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.names import COMM_KERNEL

ROCPROF = "rocprofv3"
ROCPROF_V2 = "rocprofv2"
ROCPROF_SYSTEMS = "rocprofiler-systems"

BY_ARGUMENTS = 0
"""Kind of slices whose category does not determine it: their arguments, names and tracks do."""

CATEGORIES: dict[str, int] = {
    # rocprofv3, and rocpd's conversion
    "kernel_dispatch": Kind.KERNEL,
    "memory_copy": Kind.MEMCPY,
    "hip_api": Kind.RUNTIME,
    "hsa_api": Kind.DRIVER,
    "marker_api": Kind.ANNOTATION,
    "rccl_api": Kind.API,
    "rocdecode_api": Kind.API,
    "rocjpeg_api": Kind.API,
    "rocshmem_api": Kind.API,
    "ompt": Kind.API,
    "memory_allocation": Kind.ALLOCATION,
    "scratch_memory": Kind.ALLOCATION,
    # rocprofv2's plugin; hip_api and hsa_api are as in rocprofv3
    "kernels": Kind.KERNEL,
    "mem_copies": Kind.MEMCPY,
    "hip_ops": BY_ARGUMENTS,
    "hsa_ops": BY_ARGUMENTS,
    "external_api": Kind.API,
    "roctx_mark": Kind.ANNOTATION,
    "roctx_range_push_pop": Kind.ANNOTATION,
    "roctx_range_start_stop": Kind.ANNOTATION,
    # rocprofiler-systems, Omnitrace
    "rocm_kernel_dispatch": Kind.KERNEL,
    "rocm_memory_copy": Kind.MEMCPY,
    "rocm_memory_allocate": Kind.ALLOCATION,
    "rocm_memory_allocation": Kind.ALLOCATION,
    "rocm_scratch_memory": Kind.ALLOCATION,
    "rocm_page_migration": Kind.OTHER,
    "rocm_hip_api": Kind.RUNTIME,
    "rocm_hip": Kind.RUNTIME,
    "rocm_hsa_api": Kind.DRIVER,
    "rocm_hsa": Kind.DRIVER,
    "rocm_marker_api": Kind.ANNOTATION,
    "rocm_roctx": Kind.ANNOTATION,
    "roctx": Kind.ANNOTATION,
    "rccl": Kind.API,
    "rocm_rccl": Kind.API,
    "rocm_rccl_api": Kind.API,
    "rocm_rocdecode_api": Kind.API,
    "rocm_rocjpeg_api": Kind.API,
    "hip": Kind.RUNTIME,
    "host_hip": Kind.RUNTIME,
    "host_hsa": Kind.DRIVER,
    "hsa": Kind.DRIVER,
    "device_hip": BY_ARGUMENTS,
    "device_hsa": BY_ARGUMENTS,
    "rocm_hip_stream": BY_ARGUMENTS,
    "host": Kind.CPU_OP,
    "user": Kind.ANNOTATION,
    "python": Kind.PYTHON,
    "mpi": Kind.API,
    "ucx": Kind.API,
    "shmem": Kind.API,
    "vaapi": Kind.API,
    "kokkos": Kind.ANNOTATION,
    "pthread": Kind.CPU_OP,
    "sampling": Kind.OTHER,
    "timer_sampling": Kind.OTHER,
    "overflow_sampling": Kind.OTHER,
    # PyTorch's names; those of our own writer are among them
    "cpu_op": Kind.CPU_OP,
    "operator": Kind.CPU_OP,
    "user_annotation": Kind.ANNOTATION,
    "annotation": Kind.ANNOTATION,
    "python_function": Kind.PYTHON,
    "cuda_runtime": Kind.RUNTIME,
    "hip_runtime": Kind.RUNTIME,
    "runtime": Kind.RUNTIME,
    "cuda_driver": Kind.DRIVER,
    "driver": Kind.DRIVER,
    "api": Kind.API,
    "kernel": Kind.KERNEL,
    "communication": Kind.COMM,
    "collective_comm": Kind.COMM,
    "gpu_memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "memcpy": Kind.MEMCPY,
    "memset": Kind.MEMSET,
    "gpu_user_annotation": Kind.GPU_ANNOTATION,
    "gpu_sync": Kind.GPU_SYNC,
    "cuda_sync": Kind.GPU_SYNC,
    "allocation": Kind.ALLOCATION,
    "instant": Kind.INSTANT,
    "cpu_instant_event": Kind.INSTANT,
    "overhead": Kind.OVERHEAD,
    "span": Kind.SPAN,
    "trace": Kind.SPAN,
    "host_gap": Kind.HOST_GAP,
    "other": Kind.OTHER,
}
"""Category in lower case → kind of node."""

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
    if COMM_KERNEL.match(name):
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
    (
        re.compile(r"GPU Kernel Dispatch \[(?P<device>\d+)\] Queue (?P<number>\d+)"),
        LaneKind.QUEUE,
    ),
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

COUNTER_DEVICE = re.compile(r"(?:AGENT|Agent|GPU|Device|Dev)(?: (\d+)\b|[^\[]*\[(\d+)\])")
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
