"""Kinds of events that have no category, by the names of their processes and threads.

PyTorch's events always have one. TensorFlow's, JAX's and torch_npu's have none on devices, but
their processes are named after what ran there, rocmProfileData's after GPUs. Lines that only repeat what streams show (modules,
steps, names scopes, overlap analyses) are no work of the device's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.converters.kineto_events import TraceFile

PLACES: tuple[tuple[str, str, Kind], ...] = (
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
"""Beginnings of a process' and a thread's name → what runs there; the first that fits tells."""

NAMED: tuple[tuple[Kind, str, Kind], ...] = (
    (Kind.KERNEL, r"mem(ory )?cpy", Kind.MEMCPY),
    (Kind.KERNEL, r"mem(ory )?set", Kind.MEMSET),
    (Kind.KERNEL, r"Copy(Host|Device)To(Host|Device)", Kind.MEMCPY),
    (Kind.KERNEL, r"FillBuffer$", Kind.MEMSET),
    (Kind.KERNEL, r"hcom_|hccl", Kind.COMM),
    (Kind.CPU_OP, r"\$", Kind.PYTHON),  # "$file.py:12 function"
    (Kind.CPU_OP, r"(cuda|cu|hip)(?-i:[A-Z])", Kind.RUNTIME),
)
"""Kind by place, and the beginning of an event's own name → a better one."""


def tell(file: TraceFile) -> None:
    """Fill in kinds of spans whose category tells none, in place."""
    unknown = np.flatnonzero((file.kind == 0) & (file.rows["cat"] < 0) & file.phase("X"))
    if not unknown.size:
        return
    processes, threads = _names(file)
    rows = file.rows[unknown]
    first, code = gather.distinct(rows["pid"], rows["tid"], rows["name"])
    kinds = []
    for row in first.tolist():
        pid, tid = int(rows["pid"][row]), int(rows["tid"][row])
        process = processes.get(pid, file.labels.get(pid, ""))
        thread = threads.get((pid, tid), file.labels.get(tid, ""))
        kinds.append(int(_kind(process, thread, file.name(int(unknown[row])))))
    file.kind[unknown] = np.array(kinds, np.uint8)[code]


def _kind(process: str, thread: str, name: str) -> int:
    found = next(
        (
            kind
            for of_process, of_thread, kind in PLACES
            if re.match(of_process, process) and re.match(of_thread, thread, re.IGNORECASE)
        ),
        0,
    )
    named = (
        better
        for kind, beginning, better in NAMED
        if kind == found and re.match(beginning, name, re.IGNORECASE)
    )
    return next(named, found)


def _names(file: TraceFile) -> tuple[dict[int, str], dict[tuple[int, int], str]]:
    """Names that the file gives processes, and threads."""
    processes, threads = {}, {}
    for row in np.flatnonzero(file.phase("M")).tolist():
        about = file.name(row)
        if about not in ("process_name", "thread_name"):
            continue
        pid, tid = int(file.rows["pid"][row]), int(file.rows["tid"][row])
        name = str(file.args(row).get("name", "")).strip()
        if about == "process_name":
            processes[pid] = name
        else:
            threads[pid, tid] = name
    return processes, threads
