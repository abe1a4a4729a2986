"""Categories of Kineto's events and arrows, over all versions and vendors, as tables."""

from __future__ import annotations

from chopper_interop.schemas.kinds import Kind

CATEGORIES: dict[str, Kind] = {
    "cpu_op": Kind.CPU_OP,
    "operator": Kind.CPU_OP,  # until mid-2022, as the other one-word names
    "user_annotation": Kind.ANNOTATION,
    "mtia_insight": Kind.ANNOTATION,
    "cuda_profiler_range": Kind.ANNOTATION,
    "python_function": Kind.PYTHON,
    "cuda_runtime": Kind.RUNTIME,  # HIP's calls too
    "runtime": Kind.RUNTIME,
    "glow_runtime": Kind.RUNTIME,
    "mtia_runtime": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.DRIVER,
    "xpu_driver": Kind.DRIVER,
    "privateuse1_driver": Kind.DRIVER,
    "kernel": Kind.KERNEL,
    "mtia_ccp_events": Kind.KERNEL,
    "hpu_op": Kind.KERNEL,
    "collective_comm": Kind.COMM,
    "gpu_memcpy": Kind.MEMCPY,
    "memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET,
    "gpu_user_annotation": Kind.GPU_ANNOTATION,
    "cuda_sync": Kind.GPU_SYNC,
    "cuda_event": Kind.GPU_SYNC,
    "xpu_sync": Kind.GPU_SYNC,
    "overhead": Kind.OVERHEAD,
    "trace": Kind.SPAN,
    "cpu_instant_event": Kind.INSTANT,
}
"""Category in lower case → kind of node, for reading."""

FLOWS = frozenset({"ac2g", "async_cpu_to_gpu", "async_gpu", "async", "fwdbwd"})
"""Categories of PyTorch's arrows: launches, which correlation ids give as well, and ``fwdbwd``,
forward to backward, which become edges."""

LAUNCH_FLOWS = frozenset({"api_op", "DataFlow"})
"""Categories of arrows from calls to GPU work of other tools: rocmProfileData's, rocprof's."""

CATEGORY_OF: dict[Kind, str] = {
    Kind.CPU_OP: "cpu_op",
    Kind.ANNOTATION: "user_annotation",
    Kind.PYTHON: "python_function",
    Kind.RUNTIME: "cuda_runtime",
    Kind.DRIVER: "cuda_driver",
    Kind.API: "user_annotation",
    Kind.KERNEL: "kernel",
    Kind.COMM: "kernel",
    Kind.MEMCPY: "gpu_memcpy",
    Kind.MEMSET: "gpu_memset",
    Kind.GPU_ANNOTATION: "gpu_user_annotation",
    Kind.GPU_SYNC: "cuda_sync",
    Kind.ALLOCATION: "user_annotation",
    Kind.INSTANT: "cpu_instant_event",
    Kind.OVERHEAD: "overhead",
    Kind.SPAN: "Trace",
    Kind.HOST_GAP: "user_annotation",
    Kind.OTHER: "user_annotation",
}
"""Kind of node → category, for writing."""

ON_DEVICE = frozenset(
    {
        Kind.KERNEL,
        Kind.COMM,
        Kind.MEMCPY,
        Kind.MEMSET,
        Kind.GPU_ANNOTATION,
        Kind.GPU_SYNC,
    }
)
"""Kinds whose `pid` is a device and whose `tid` is a stream. The category determines them and never
a value: AMD's default stream is 0, and host operators of Triton carry ``stream: 0``."""
