"""Kinds of Kineto's events: by category, and without one by the names of their processes and threads.

PyTorch's events always have one. Those of TensorFlow, JAX and torch_npu have none on devices, but
their processes are named after what ran there, and rocmProfileData's after GPUs. Lines that only
repeat what streams show (modules, steps, name scopes, overlap analyses) are not work of the device.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.schemas.categories import WITHIN_CATEGORY
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.converters.kineto.trace_file import TraceFile

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
KIND_BY_THREAD: tuple[tuple[str, str, Kind], ...] = (
    (r"/device:", r"Stream\b", Kind.KERNEL),
    (r"/device:TPU", r"XLA Ops|Async XLA Ops", Kind.KERNEL),
    (r"/device:", r"", Kind.GPU_ANNOTATION),
    (r"/host:", r"", Kind.CPU_OP),
    (r"Ascend Hardware", r"Stream\b", Kind.KERNEL),
    (r"Ascend Hardware", r"", Kind.GPU_ANNOTATION),
    (r"CANN", r"", Kind.RUNTIME),
    (r"Communication", r"", Kind.GPU_ANNOTATION),
    (r"Overlap Analysis", r"", Kind.SPAN),
    (r"GPU\d+$", r"", Kind.KERNEL),  # rocmProfileData
    (r"$", r"Hip \d+$", Kind.RUNTIME),
)
"""Beginning of the process name, of the thread name → kind of its events; the first that fits."""

KIND_BY_NAME: tuple[tuple[Kind, str, Kind], ...] = (
    (Kind.KERNEL, r"mem(ory )?cpy", Kind.MEMCPY),
    (Kind.KERNEL, r"mem(ory )?set", Kind.MEMSET),
    (Kind.KERNEL, r"Copy(Host|Device)To(Host|Device)", Kind.MEMCPY),
    (Kind.KERNEL, r"FillBuffer$", Kind.MEMSET),
    # what rocmProfileData itself does
    (Kind.RUNTIME, r"\w+Table::|rpdflush|hcc_activity_callback|run_to_completion", Kind.OVERHEAD),
    (Kind.CPU_OP, r"\$", Kind.PYTHON),  # "$file.py:12 function"
    (Kind.CPU_OP, r"(cuda|cu|hip)(?-i:[A-Z])", Kind.RUNTIME),
)
"""Kind by thread, beginning of the event's own name → the kind that it really is."""


def fill_kinds(file: TraceFile, unknown: Array) -> None:
    """Fill in the kinds of spans without a category, given by their rows, in place."""
    process_names, thread_names = _process_and_thread_names(file)
    place = (file.member[unknown], *(file.columns[n][unknown] for n in ("pid", "tid", "name")))
    first, code = gather.distinct(*place)
    kinds = []
    for row in unknown[first].tolist():
        member, pid, tid = file.thread_of(row)
        process = process_names.get((member, pid), file.label(member, pid) or "")
        thread = thread_names.get((member, pid, tid), file.label(member, tid) or "")
        kinds.append(int(_kind(process, thread, file.name(row))))
    file.kind[unknown] = np.array(kinds, np.uint8)[code]


def _kind(process: str, thread: str, name: str) -> int:
    by_thread = next(
        (
            kind
            for of_process, of_thread, kind in KIND_BY_THREAD
            if re.match(of_process, process) and re.match(of_thread, thread, re.IGNORECASE)
        ),
        0,
    )
    by_name = (
        better
        for kind, beginning, better in KIND_BY_NAME
        if kind == by_thread and re.match(beginning, name, re.IGNORECASE)
    )
    return next(by_name, by_thread)


def refine_kinds(file: TraceFile) -> None:
    """Set the kinds of events whose category has several, by their names, in place."""
    number = {text: i for i, text in enumerate(file.texts)}
    for (category, name), kind in WITHIN_CATEGORY.items():
        if category in number and name in number:
            of_category = file.columns["cat"] == number[category]
            file.kind[of_category & (file.columns["name"] == number[name])] = int(kind)


def _process_and_thread_names(
    file: TraceFile,
) -> tuple[dict[tuple[int, int], str], dict[tuple[int, int, int], str]]:
    """Names of processes by file and pid, and of threads by file, pid and tid, from the metadata events."""
    processes, threads = {}, {}
    for row in np.flatnonzero(file.phase("M")).tolist():
        named = file.name(row)
        if named not in ("process_name", "thread_name"):
            continue
        member, pid, tid = file.thread_of(row)
        name = str(file.args(row).get("name", "")).strip()
        if named == "process_name":
            processes[member, pid] = name
        else:
            threads[member, pid, tid] = name
    return processes, threads
