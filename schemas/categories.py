"""Categories of events, as profilers write them, and kinds of nodes: tables for both directions.

Categories are compared in lower case.
"""

from __future__ import annotations

from chopper_interop.schemas.kinds import Kind

PYTORCH: dict[str, Kind] = {
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
    "enqueue": Kind.API,  # of torch_npu's queue of tasks, as dequeue
    "dequeue": Kind.API,
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
"""Categories of PyTorch's profiler, over all versions and vendors → kind of node."""

WITHIN_CATEGORY: dict[tuple[str, str], Kind] = {
    ("mtia_ccp_events", "dma_request"): Kind.MEMCPY,
    ("mtia_ccp_events", "event_record"): Kind.GPU_SYNC,
    ("mtia_ccp_events", "event_wait"): Kind.GPU_SYNC,
}
"""Category and name of an event → the kind that it really is: MTIA's processor of commands (CCP) has one for all of a stream."""
MIXED_CATEGORIES = frozenset(category for category, _ in WITHIN_CATEGORY)
"""Categories whose events are of several kinds."""

PYTORCH_CATEGORY: dict[Kind, str] = {
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
"""Kind of node → the category of PyTorch's profiler that comes closest, as it is written now."""

_AS_PYTORCH = (Kind.ANNOTATION, Kind.PYTHON, Kind.MEMCPY, Kind.MEMSET, Kind.GPU_ANNOTATION)
PERFETTO_CATEGORY: dict[Kind, str] = {
    **{kind: kind.name.lower() for kind in Kind},
    **{kind: PYTORCH_CATEGORY[kind] for kind in _AS_PYTORCH},
    Kind.COMM: "communication",
}
"""Kind of node → category of its slices in the Perfetto traces that this package writes."""

ROCM: dict[str, Kind] = {
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
}
"""Categories of ROCm's profilers in Perfetto traces → kind of node.

Those that are not listed, such as ``hip_ops`` and ``device_hip``, do not determine the kind: arguments,
names and tracks of their slices do."""

PERFETTO: dict[str, Kind] = {
    **ROCM,
    **{kind.name.lower(): kind for kind in Kind},
    **{category: kind for kind, category in PERFETTO_CATEGORY.items()},
    **PYTORCH,
    "hip_runtime": Kind.RUNTIME,
}
"""Categories in Perfetto traces of any producer → kind of node."""
