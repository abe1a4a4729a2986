"""Categories of Kineto's arrows, and kinds whose place is a device."""

from __future__ import annotations

from chopper_interop.schemas.kinds import Kind

FLOWS = frozenset({"ac2g", "async_cpu_to_gpu", "async_gpu", "async", "fwdbwd", "async_task_queue"})
"""Categories of PyTorch's arrows: launches, which correlation ids give as well, and ``fwdbwd``,
forward to backward, which become edges; torch_npu's from a task to the thread that launches it."""

LAUNCH_FLOWS = frozenset({"api_op", "DataFlow", "HostToDevice"})
"""Categories of arrows from calls to GPU work of other tools: rocmProfileData's, rocprof's, CANN's."""
OPERATOR_FLOWS = frozenset({"async_npu"})
"""Categories of arrows from operators to GPU work: torch_npu's."""

ON_DEVICE = frozenset({
    Kind.KERNEL, Kind.COMM, Kind.MEMCPY, Kind.MEMSET, Kind.GPU_ANNOTATION, Kind.GPU_SYNC,
})  # fmt: skip
"""Kinds whose `pid` is a device and whose `tid` is a stream. The category determines them and never
a value: AMD's default stream is 0, and host operators of Triton carry ``stream: 0``."""
