"""Traces whose nodes keep no arguments (``-O args=none``), with the columns that are made of them.

Arguments go in three steps, so that their text is never all in memory: a scan of trace events copies only those of spans
that something looks for or that are no numbers (`io.json_members`); of a source that was read, those go that only its
reader looks for; of a job with edges and annotations, all others::

    { "cbid": 211, "External id": 7, "Input Dims": [[2, 3]], "Call stack": "…" }     of the file
    {"External id":7,"Input Dims":[[2, 3]],"Call stack":"…"}                         scanned
    {"Input Dims":[[2, 3]]}                                                          of the source: one for many operators
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import arguments
from chopper_interop.arrays import arrow, interning
from chopper_interop.arrays.gather import is_any
from chopper_interop.io import json_members
from chopper_interop.io.json_members import NO_MEMBERS
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas import argument_keys
from chopper_interop.schemas.kinds import HOST_CALLS, Kind
from chopper_interop.trace import Text, Trace

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

LEFT_OUT = Fault.info(
    "arguments-left-out",
    "Arguments of nodes were left out, as asked for (`-O args=none`); what columns are made of was read before.",
)
_TEXTS = 1 << 12
"""Distinct objects that there is room for at first. Chosen: a core's cache holds the table, and it doubles as needed."""
_PROGRAM_RANGES = (Kind.ANNOTATION, Kind.GPU_ANNOTATION)


def scanning() -> AbstractContextManager[None]:
    """Have readers, within a block, drop numbers among arguments of spans that nothing looks for."""
    return json_members.keeping(argument_keys.ALL)


def of_source(trace: Trace) -> Trace:
    """Return the trace of a source with what edges, annotations and joining look for, equal arguments once."""
    size = trace.array("args_len").astype(np.int64)
    if not size.any():
        return trace
    at, length = np.zeros(len(size), np.int64), np.zeros(len(size), np.int32)
    out = np.empty(int(size.sum()), np.uint8)  # what is not used takes no memory
    used = np.zeros(1, np.int64)
    start, kind = trace.array("args_at"), trace.array("kind")
    calls = is_any(kind, HOST_CALLS)
    calls[trace.launch[trace.launch >= 0]] = True
    ranges = is_any(kind, _PROGRAM_RANGES) & ~calls
    for chosen, names, only_numbers in (
        (calls, argument_keys.OF_JOBS, True),  # handles may stand anywhere in their texts
        (ranges, (*argument_keys.OF_JOBS, *argument_keys.OF_RANGES), False),
        (~calls & ~ranges, argument_keys.OF_JOBS, False),
    ):
        keys, table = json_members.keys(names), interning.empty_text_table(_TEXTS)
        nodes = np.flatnonzero(chosen)
        for rows, buffer, begin in arguments.rows_by_buffer(trace.text, start[nodes], size[nodes]):
            place = start[nodes[rows]] - begin, size[nodes[rows]], nodes[rows]
            done = 0
            while True:
                done = json_members.copy_distinct(
                    buffer, *place, *keys, only_numbers, done, out, used, table, at, length
                )
                if done == len(rows):
                    break
                table = interning.enlarged_text_table(table)
    nodes_table = arrow.replace_column(trace.nodes, "args_at", at)
    nodes_table = arrow.replace_column(nodes_table, "args_len", length)
    return replace(trace, nodes=nodes_table, text=Text((out[: used[0]].copy(),)))


def of_job(trace: Trace) -> Trace:
    """Return the trace of a job without arguments, and with the number of nodes that had some among its issues."""
    issues = IssueLog("job")
    issues.extend(trace.meta.issues)
    issues.add(LEFT_OUT, np.count_nonzero(trace.array("args_len") > NO_MEMBERS))
    return trace.without_arguments().with_meta(issues=tuple(issues))
