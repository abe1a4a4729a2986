"""Meaning of names that are the same in every format: ranges of steps, calls that wait."""

from __future__ import annotations

import re
from enum import IntEnum

STEP_RANGE = "ProfilerStep#"
"""Beginning of the names of the ranges that PyTorch's profiler puts around training steps."""
LOADER_RANGE = "enumerate(DataLoader)#"
"""Beginning of the names of ranges of PyTorch's data loader (torch/utils/data/dataloader.py), in which it waits for its
threads if it has any."""
PINS_MEMORY = "aten::pin_memory"
"""Operation of a loader's thread on each batch that its processes made (torch/utils/data/_utils/pin_memory.py)."""
STEPS = (
    re.compile(r"ProfilerStep#(\d+)"),
    re.compile(r"Iteration(\d+)"),
    re.compile(
        r"(?i:(?:training|train|global|optim|optimizer)?[-_ ]?(?:step|iter|iteration)[-_ #:=]*)(\d+)"
    ),
)
"""Names that number training steps: PyTorch's profiler's, Chopper's, and any others."""


class Role(IntEnum):
    """Effect of a call of the host on the order of GPU work."""

    NONE = 0
    DEVICE_SYNC = 1
    """Waits for all work of the device."""
    STREAM_SYNC = 2
    """Waits for all work of one stream."""
    EVENT_SYNC = 3
    """Waits for the work of a stream before the point at which an event was recorded there."""
    COPY = 4
    """Copies or fills memory, and returns when that is done."""
    FREE = 5
    """Releases memory, for which the runtime may wait for the device."""
    SIGNAL_WAIT = 6
    """Waits for a signal that GPU work sends."""
    RECORD = 7
    """Records an event on a stream."""
    STREAM_WAIT = 8
    """Makes a stream wait for an event."""
    POLL = 9
    """Asks if work is done, without waiting."""
    UPKEEP = 10
    """Neither orders GPU work nor waits for any: makes and destroys events, asks for attributes and devices."""


ONLY_WAITS = (Role.DEVICE_SYNC, Role.STREAM_SYNC, Role.EVENT_SYNC, Role.SIGNAL_WAIT)
"""Roles of calls that do nothing but wait: they end with their wait, however late they return."""

_VERSION = r"(_v\d+|_pt[sd][sz]|_spt)*$"
ROLES: tuple[tuple[re.Pattern[str], Role], ...] = tuple(
    (re.compile(pattern + _VERSION), role)
    for pattern, role in (
        (r"(cuda|hip)DeviceSynchronize|cudaThreadSynchronize|(cu|hip)CtxSynchronize",
         Role.DEVICE_SYNC),
        (r"(cuda|hip|cu)StreamSynchronize|synchronize(Stream)?", Role.STREAM_SYNC),  # MTIA's without prefix
        (r"(cuda|hip|cu)EventSynchronize", Role.EVENT_SYNC),
        (r"(cuda|hip|cu)(Memcpy|Memset)(?!\w*(Async|Batch))\w*?", Role.COPY),
        (r"(cuda|hip)Free(Host|Array)?|hipHostFree|cuMemFree(Host)?", Role.FREE),
        (r"hsa_(amd_)?signal_wait_\w+", Role.SIGNAL_WAIT),
        (r"(cuda|hip|cu)EventRecord(WithFlags)?|recordEvent", Role.RECORD),
        (r"(cuda|hip|cu)StreamWaitEvent|enqueueCommand waitOnEvent", Role.STREAM_WAIT),
        (r"(cuda|hip|cu)(Event|Stream)Query", Role.POLL),
        (r"(cuda|hip|cu)(Event(Create|Destroy)(WithFlags)?|PointerGetAttributes?|[GS]etDevice|Device(Can|Get)\w+)",
         Role.UPKEEP),
    )
)  # fmt: skip
"""Names of the calls of the CUDA and HIP runtimes, of CUDA's driver and of HSA that order GPU work;
use `match`. A name may end in a version, or in the kind of default stream (``_ptsz``, ``_spt``)."""

LIBRARY_CALL = re.compile(r"nccl:")
"""Start of the names of PyTorch's ranges around calls of NCCL and RCCL."""
CUDA_CALL = re.compile(r"cu(da)?[A-Z]")
"""Start of the names of calls of CUDA's runtime and driver."""
GRAPH_LAUNCH = re.compile(r"(cuda|hip|cu)GraphLaunch" + _VERSION)
"""Names of the calls that launch a CUDA or HIP graph."""

BLOCKING_COPY = re.compile(r"Memcpy DtoH \(Device -> Pageable\)")
"""Names of copies that any call returns behind, also an asynchronous one (CUDA's "API synchronization
behavior"): to memory that is not pinned. Of 90 such copies of two jobs each had ended."""
STAGED_COPY = re.compile(r"Memcpy HtoD \(Pageable -> Device\)")
"""Names of copies from memory that is not pinned: a call waits for its stream, then copies into memory that is."""
HOST_COPY = re.compile(
    r"(?i)DtoH|HtoD|Device_?To_?Host|Host_?To_?Device|Device -> Host|Host -> Device"
)
"""Part of the names of copies between a host and a GPU, of all profilers."""
COPY_TO_HOST = re.compile(r"(?i).*(DtoH|Device_?To_?Host|Device -> (Host|Pageable|Pinned))")
"""Names of copies from a GPU to the host, of all profilers."""

RECORDED_WAITS: dict[str, Role] = {
    "Context Sync": Role.DEVICE_SYNC, "Device Sync": Role.DEVICE_SYNC,
    "Stream Sync": Role.STREAM_SYNC, "Stream Synchronize": Role.STREAM_SYNC,
    "Event Sync": Role.EVENT_SYNC, "Stream Wait Event": Role.STREAM_WAIT,
    "event_wait": Role.STREAM_WAIT, "event_record": Role.RECORD,
}  # fmt: skip
"""Names of waits that a profiler recorded itself (`Kind.GPU_SYNC`): CUPTI's, and as MTIA's streams did them and what
they wait for."""
STATED_WAITS: dict[str, Role] = {
    "synchronizeStream": Role.STREAM_SYNC, "synchronize": Role.STREAM_SYNC,
}  # fmt: skip
"""Names of calls that state the number of the stream for which they wait: MTIA's."""

WAIT_STREAM, WAITED_STREAM, WAITED_RECORD, RECORD_NUMBER = (
    "stream",
    "wait_on_stream",
    "wait_on_cuda_event_record_corr_id",
    "seq_num",
)
"""Arguments of such a wait: the stream that waits, the stream on which the event was recorded, the
correlation id of the call that recorded it (negative, or 2**32 - 1, where that is unknown), and the number of the record
on its stream, which the record has too."""
CALL_STREAM, CALL_DEVICE = "stream_id", "device"
"""Arguments of a call that states for which stream it waits."""
