"""Host execution traces of PyTorch's ``ExecutionTraceObserver``: the program, without times.

Each operator and annotation of a process, with its inputs and outputs down to the bytes of the
tensors, in the order in which they were called. Beside a profile of the same process the job is
joined by `chopper_interop.joining.host_et`; alone it is a trace whose ``ts`` counts the nodes in order.
Format: reference is PyTorch's ``execution_trace_observer.cpp``; see `pytorch_et_decode`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.build import TraceBuilder
from chopper_interop.columns import arrow, gather
from chopper_interop.columns.compiled import jit
from chopper_interop.converters import (
    pytorch_et_decode,
    pytorch_et_file,
    pytorch_et_flow,
    pytorch_et_ranks,
    pytorch_et_text,
)
from chopper_interop.files import inputs
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.registry import Converter
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import ASSUMED, ORDER, Meta, Rank, Source

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

WITHOUT_ID = Fault(
    "et-node-without-id",
    Severity.LOSS,
    "Nodes without a proper id or name, which have no place in the program, were left out.",
    events=True,
)
TWICE = Fault(
    "et-node-twice", Severity.LOSS, "Nodes whose id another had before were left out.", events=True
)
BRACKETS = Fault(
    "et-process-or-thread",
    Severity.INFO,
    "Nodes that stand for the process and its threads became lanes.",
    events=True,
)
EMPTY = Fault(
    "et-empty",
    Severity.LOSS,
    "An execution trace holds no operators: the observer was not started around a step.",
)
NO_PARENT = Fault(
    "et-parent-missing",
    Severity.LOSS,
    "Nodes whose caller is not in the file, as it was still running when the observer stopped or "
    "ran before it started, stand at the top.",
)

_HEAD = re.compile(
    rb'\s*\{(?:\s*"\w+"\s*:\s*(?:"[^"\n]*"|-?\d+)\s*,)*?\s*"schema"\s*:\s*"\d+\.\d+\.\d+[^"]*"\s*,'
    rb'(?:\s*"\w+"\s*:\s*(?:"[^"\n]*"|-?\d+)\s*,)*\s*"nodes"\s*:\s*\['
)
_BRACKET = re.compile(r"\[pytorch\|profiler\|execution_(graph|trace)\|(process|thread)\]")
_USER_SCOPE = 7
_HAS_ID = 1
_FACTS = ("schema", "time", "start_ts", "finish_ts")


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is a host execution trace."""
    return _HEAD.match(head) is not None


@dataclass(frozen=True)
class _Program:
    """Nodes of a file in the order of their calls.

    Parameters
    ----------
    rows
        The nodes (`pytorch_et_decode.NODE`).
    document
        Which document each is of.
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
        Rank to give it, over what it says itself.

    Returns
    -------
    Trace
        Of one rank, on the clock `ORDER`, with the flow of data as edges.

    Raises
    ------
    ReadError
        It cannot be read at all. What is lost otherwise is counted in ``meta.issues``.
    """
    (path,) = paths
    issues = IssueLog(str(path))
    file = pytorch_et_file.load(path, issues)
    program = _program(file, issues)
    issues.add(EMPTY, not len(program.rows))
    text, at, length = pytorch_et_text.arguments(
        file.buffer, program.rows["at"].copy(), program.rows["end"].copy()
    )
    told = pytorch_et_ranks.told(path, file.texts, program.rows["name"], text, at, length)
    number, known_by = told.rank if rank is None else (rank, "user")
    if known_by == ASSUMED:
        issues.add(pytorch_et_ranks.RANK_ASSUMED)
    builder = TraceBuilder(_meta(path, file, number, known_by))
    for group in told.groups:
        builder.group(**group)
    _add_nodes(builder, file, program, number, (builder.text(text) + at, length))
    makers, readers = _data(file, program)
    builder.edges(makers, readers, EdgeKind.DATA)
    trace = builder.finish()
    events = len(file.rows) + file.malformed
    (source,) = trace.meta.sources
    source = Source(
        source.path, source.format, source.tool, "", source.size, events, trace.nodes.num_rows
    )
    return trace.with_meta(issues=tuple(issues), sources=(source,))


def _program(file: pytorch_et_file.HostTrace, issues: IssueLog) -> _Program:
    """Nodes in the order of their calls, without those that stand for process and threads."""
    rows = file.rows
    usable = ((rows["has"] & _HAS_ID) != 0) & (rows["id"] != 0) & (rows["name"] >= 0)
    issues.add(WITHOUT_ID, np.count_nonzero(~usable), _example(rows, ~usable))
    chosen = np.flatnonzero(usable)
    order = chosen[np.lexsort((rows["id"][chosen].view(np.uint64), file.document[chosen]))]
    number, document = rows["id"][order], file.document[order]
    again = np.zeros(len(order), np.bool_)
    again[1:] = (number[1:] == number[:-1]) & (document[1:] == document[:-1])
    issues.add(TWICE, np.count_nonzero(again), _example(rows[order], again))
    order = order[~again]
    rows, document = rows[order], file.document[order]
    parent = _parents(rows, document)
    bracket = np.array([_BRACKET.fullmatch(t) is not None for t in [*file.texts, ""]])[rows["name"]]
    issues.add(BRACKETS, np.count_nonzero(bracket))
    lost = (parent < 0) & ~bracket
    issues.add(NO_PARENT, np.count_nonzero(lost), _example(rows, lost))
    place = np.append(np.where(bracket, -1, np.cumsum(~bracket) - 1), -1)
    return _Program(rows[~bracket], document[~bracket], place[parent][~bracket])


def _example(rows: Array, which: Array) -> str:
    found = np.flatnonzero(which)
    return f"byte {rows['at'][found[0]]}" if found.size else ""


def _parents(rows: Array, document: Array) -> Array:
    """Row of each node's caller: one of the same document and thread that was called before it."""
    parent = np.full(len(rows), -1, np.int64)
    number, called = rows["id"].view(np.uint64), rows["parent"].view(np.uint64)
    for one in np.unique(document):
        mine = np.flatnonzero(document == one)
        at = np.searchsorted(number[mine], called[mine])
        found = mine[np.minimum(at, len(mine) - 1)]
        parent[mine] = np.where((number[found] == called[mine]) & (found < mine), found, -1)
    root = rows["tid"][parent] == rows["tid"]
    root |= rows["parent"] == 1
    return np.where((parent >= 0) & root, parent, -1)


def _add_nodes(
    builder: TraceBuilder,
    file: pytorch_et_file.HostTrace,
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
        dur=_last(program.parent) - np.arange(count) + 1,
        args=args,
    )


@jit
def _last(parent: Array) -> Array:
    """Row of the last node within each, itself if there is none; callers come first."""
    last = np.arange(len(parent))
    for i in range(len(parent) - 1, -1, -1):
        p = parent[i]
        if p >= 0 and last[p] < last[i]:
            last[p] = last[i]
    return last


def _data(file: pytorch_et_file.HostTrace, program: _Program) -> Array:
    """Who made data, and who read it, as rows of the program."""
    rows = program.rows
    tensors = pytorch_et_decode.tensors(file.buffer, rows)
    allocation = np.array([t in pytorch_et_flow.ALLOCATIONS for t in [*file.texts, ""]])
    allocates = allocation[rows["name"]]
    leaf = pytorch_et_flow.leaves(program.parent, allocates)
    position = pytorch_et_flow.positions(program.parent, leaf, allocates)
    pairs = []
    for document in np.unique(program.document[tensors["node"]]):
        mine = tensors[program.document[tensors["node"]] == document]
        access = pytorch_et_flow.accesses(mine, rows["op_schema"], file.texts, allocates)
        pairs.append(pytorch_et_flow.flow(mine, position, leaf, allocates, access))
    return np.concatenate(pairs, axis=1) if pairs else np.zeros((2, 0), np.int64)


def _meta(path: Path, file: pytorch_et_file.HostTrace, rank: int, known_by: str) -> Meta:
    header = file.headers[0]
    stated = header.get("pid")
    pid = stated if isinstance(stated, int) and 0 <= stated < 1 << 31 else -1
    tool = f"schema {header.get('schema')}"
    facts = {f"host_et_{k}": str(header[k]) for k in _FACTS if header.get(k) is not None}
    return Meta(
        job=inputs.plain_name(path),
        clock=ORDER,
        ranks=(Rank(rank, pid=pid, known_by=known_by),),
        sources=(Source(str(path), PYTORCH_ET.name, tool, size=path.stat().st_size),),
        facts=facts,
    )


PYTORCH_ET = Converter(
    name="pytorch-et",
    description="PyTorch host execution trace (ExecutionTraceObserver)",
    versions="schemas 1.0.1, 1.0.2-chakra.0.0.4, 1.0.3, 1.1.0, 1.1.1 (torch 1.11 to 2.9)",
    sniff=sniff,
    read=read,
    carries="joined to the operators of a profile beside it: who made the data that each reads, "
    "shapes, types, schemas, communication, process groups; alone: the program in order, without "
    "times",
)
