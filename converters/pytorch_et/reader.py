"""Reading a host execution trace: nodes in the order of their calls, and the flow of data."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.arrays.compiled import jit
from chopper_interop.build import TraceBuilder
from chopper_interop.converters.pytorch_et import (
    arguments_text,
    data_flow,
    documents,
    job_facts,
    nodes_decode,
)
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import ASSUMED, ORDER, Meta, Rank, Source
from chopper_interop.trace import Trace

WITHOUT_ID = Fault.loss_of_events(
    "et-node-without-id",
    "Nodes without a proper id or name, whose position in the program is unknown, were left out.",
)
DUPLICATE = Fault.loss_of_events(
    "et-node-duplicate", "Nodes with an id that an earlier node has were left out."
)
PROCESS_OR_THREAD = Fault.info_of_events(
    "et-process-or-thread", "Nodes that stand for the process and its threads became lanes."
)
EMPTY = Fault.loss(
    "et-empty",
    "The execution trace holds no operators: the observer was not started around a step.",
)
NO_PARENT = Fault.loss(
    "et-parent-missing",
    "Nodes whose caller is not in the file, as it was still running when the "
    "observer stopped or began before it started, have no parent.",
)

_PROCESS_OR_THREAD = re.compile(r"\[pytorch\|profiler\|execution_(graph|trace)\|(process|thread)\]")
"""Names of the nodes that stand for the process and its threads."""
_USER_SCOPE = 7
"""`scope` of the user's ranges (``RecordScope::USER_SCOPE``)."""
_ROOT_ID = 1
"""Id of the node that stands for the process."""
_HAS_ID = 1
"""Bit of the id in `has`."""
_FACTS = ("schema", "time", "start_ts", "finish_ts")


@dataclass(frozen=True)
class _Program:
    """Nodes of a file in the order of their calls.

    Parameters
    ----------
    rows
        The nodes, rows of `NODE`.
    document
        Index of the document that each is of.
    parent
        Row of the node that called each; -1 for none.
    """

    rows: Array
    document: Array
    parent: Array


def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read one host execution trace.

    Parameters
    ----------
    paths
        The file, alone in a list.
    rank
        Rank of the file, in place of the one that it states.

    Returns
    -------
    Trace
        Of one rank, on the clock `ORDER`, with the flow of data as edges.

    Raises
    ------
    ReadError
        The file cannot be read at all. All other losses are counted in ``meta.issues``.
    """
    (path,) = paths
    issues = IssueLog(str(path))
    file = documents.load(path, issues)
    program = _order_nodes(file, issues)
    issues.add(EMPTY, not len(program.rows))
    text, at, length = arguments_text.arguments(
        file.buffer, program.rows["at"].copy(), program.rows["end"].copy()
    )
    job = job_facts.job_facts(path, file.texts, program.rows["name"], text, at, length)
    number, known_by = job.rank if rank is None else (rank, "user")
    if known_by == ASSUMED:
        issues.add(job_facts.RANK_ASSUMED)
    builder = TraceBuilder(_meta(path, file, number, known_by))
    for group in job.groups:
        builder.group(**group)
    _add_nodes(builder, file, program, number, (builder.text(text) + at, length))
    makers, readers = _data_edges(file, program)
    builder.edges(makers, readers, EdgeKind.DATA)
    trace = builder.finish()
    events = len(file.rows) + file.malformed
    source = replace(trace.meta.sources[0], events=events, nodes=trace.nodes.num_rows)
    return trace.with_meta(issues=tuple(issues), sources=(source,))


def _order_nodes(file: documents.HostTrace, issues: IssueLog) -> _Program:
    """Sort the nodes by their calls, without those that stand for process and threads.

    Ids count calls, while the file has the nodes in the order in which the calls returned.
    """
    rows = file.rows
    usable = ((rows["has"] & _HAS_ID) != 0) & (rows["id"] != 0) & (rows["name"] >= 0)
    issues.add(WITHOUT_ID, np.count_nonzero(~usable), _example(rows, ~usable))
    selected = np.flatnonzero(usable)
    order = selected[np.lexsort((rows["id"][selected].view(np.uint64), file.document[selected]))]
    number, document = rows["id"][order], file.document[order]
    duplicate = np.zeros(len(order), np.bool_)
    duplicate[1:] = (number[1:] == number[:-1]) & (document[1:] == document[:-1])
    issues.add(DUPLICATE, np.count_nonzero(duplicate), _example(rows[order], duplicate))
    order = order[~duplicate]
    rows, document = rows[order], file.document[order]
    parent = _parents(rows, document)
    is_frame_name = [_PROCESS_OR_THREAD.fullmatch(t) is not None for t in [*file.texts, ""]]
    frame = np.array(is_frame_name)[rows["name"]]
    issues.add(PROCESS_OR_THREAD, np.count_nonzero(frame))
    lost = (parent < 0) & ~frame
    issues.add(NO_PARENT, np.count_nonzero(lost), _example(rows, lost))
    # new row of each old one, with one more at the end so that parent -1 stays -1
    new_row = np.append(np.where(frame, -1, np.cumsum(~frame) - 1), -1)
    return _Program(rows[~frame], document[~frame], new_row[parent][~frame])


def _example(rows: Array, mask: Array) -> str:
    marked = np.flatnonzero(mask)
    return f"byte {rows['at'][marked[0]]}" if marked.size else ""


def _parents(rows: Array, document: Array) -> Array:
    """Row of each node's caller: one of the same document and thread that was called before it."""
    parent = np.full(len(rows), -1, np.int64)
    number, caller = rows["id"].view(np.uint64), rows["parent"].view(np.uint64)
    for one in np.unique(document):
        in_document = np.flatnonzero(document == one)  # ascending by id: a binary search finds them
        at = gather.find(number[in_document], caller[in_document])
        valid = (at >= 0) & (in_document[at] < in_document)
        parent[in_document] = np.where(valid, in_document[at], -1)
    same_thread = rows["tid"][parent] == rows["tid"]
    same_thread |= rows["parent"] == _ROOT_ID
    return np.where((parent >= 0) & same_thread, parent, -1)


def _add_nodes(
    builder: TraceBuilder,
    file: documents.HostTrace,
    program: _Program,
    rank: int,
    args: tuple[Array, Array],
) -> None:
    rows = program.rows
    count = len(rows)
    first, code = gather.distinct(rows["tid"])
    lanes = [
        builder.lane(rank, LaneKind.THREAD, tid, f"thread {tid} in order, no times")
        for tid in rows["tid"][first].tolist()
    ]
    used, names = np.unique(rows["name"], return_inverse=True)
    builder.nodes(
        kind=np.where(rows["scope"] == _USER_SCOPE, int(Kind.ANNOTATION), int(Kind.CPU_OP)),
        name=arrow.dictionary(names, [file.texts[i] for i in used.tolist()]),
        rank=rank,
        lane=np.array(lanes, np.int32)[code],
        ts=np.arange(count, dtype=np.int64),
        dur=_last_within(program.parent) - np.arange(count) + 1,
        args=args,
    )


@jit
def _last_within(parent: Array) -> Array:
    """Row of the last node within each, the node itself if there is none.

    Callers come before what they call, so one pass from the end hands each node's last one up to
    its caller after all nodes within it have done so; each step needs those before, hence the loop.
    """
    last = np.arange(len(parent))
    for i in range(len(parent) - 1, -1, -1):
        p = parent[i]
        if p >= 0 and last[p] < last[i]:
            last[p] = last[i]
    return last


def _data_edges(file: documents.HostTrace, program: _Program) -> Array:
    """Pairs of nodes as rows of the program: the ones that made data, and those that read it."""
    rows = program.rows
    tensors = nodes_decode.tensors(file.buffer, rows)
    is_allocation = np.array([t in data_flow.ALLOCATIONS for t in [*file.texts, ""]])
    allocates = is_allocation[rows["name"]]
    leaf = data_flow.leaves(program.parent, allocates)
    position = data_flow.positions(program.parent, leaf, allocates)
    pairs = []
    document_of_tensor = program.document[tensors["node"]]
    for document in np.unique(document_of_tensor):
        of_document = tensors[document_of_tensor == document]
        access = data_flow.accesses(of_document, rows["op_schema"], file.texts, allocates)
        pairs.append(data_flow.data_flow(of_document, position, leaf, allocates, access))
    return np.concatenate(pairs, axis=1) if pairs else np.zeros((2, 0), np.int64)


def _meta(path: Path, file: documents.HostTrace, rank: int, known_by: str) -> Meta:
    header = file.headers[0]
    stated = header.get("pid")
    pid = stated if isinstance(stated, int) and 0 <= stated < 1 << 31 else -1
    tool = f"schema {header.get('schema')}"
    facts = {f"host_et_{k}": str(header[k]) for k in _FACTS if header.get(k) is not None}
    return Meta(
        job=inputs.plain_name(path),
        clock=ORDER,
        ranks=(Rank(rank, pid=pid, known_by=known_by),),
        sources=(Source(str(path), "pytorch-et", tool, size=path.stat().st_size),),
        facts=facts,
    )
