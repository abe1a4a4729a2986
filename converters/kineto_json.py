"""Writing Kineto JSON: for HTA, TensorBoard, chrome://tracing and whatever reads PyTorch traces.

Format: libkineto's ``output_json.cpp``. Times are microseconds with three decimals since
``baseTimeNanoseconds``, made of whole nanoseconds. What comes back when our own reader reads the
file again is what was written, with these exceptions, for which Kineto has no words:

* API calls, allocations, gaps and other nodes become annotations, kernels named like NCCL's
  communicate; the kind that they had stands in ``args.chopper.kind``;
* hardware queues and copy engines become streams, lanes without a name get one;
* arrows end at an operator by its thread and start: forward → backward joins the shortest operator
  that starts there to the longest;
* process groups are told by name, and a collective without one is of the whole job;
* dependencies other than launches and forward → backward are not told, but counted;
* hardware counters of kernels stand in ``args.counters`` and are not read back, but counted;
* annotation columns without names of Kineto's stand in ``args.chopper`` and are not read back, but
  counted;
* series belong to no device and no tool: what they measure stands in their names; they are counted.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from chopper_interop import progress
from chopper_interop.columns import arrow
from chopper_interop.columns.members import is_any
from chopper_interop.converters import kineto_encode as encode
from chopper_interop.converters import kineto_links, kineto_samples
from chopper_interop.converters.kineto_header import head, tail
from chopper_interop.converters.kineto_members import (
    TIED,
    Added,
    comm_named,
    numbers,
    without_names,
)
from chopper_interop.converters.kineto_places import Places
from chopper_interop.converters.kineto_tables import CATEGORY_OF
from chopper_interop.files import jsonscan, outputs
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, EdgeKind, Kind

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

UNDRAWN = Fault(
    "edges-without-arrow",
    Severity.INFO,
    "Dependencies other than launches and forward to backward, for which Kineto has no arrows, are "
    "not in the JSON.",
)
COUNTERS = Fault(
    "counters-as-arguments",
    Severity.INFO,
    "Hardware counters of kernels stand among their arguments, as `counters`, from where no reader "
    "takes them as such.",
)
COLUMNS = Fault(
    "annotations-as-arguments",
    Severity.INFO,
    "Annotation columns for which Kineto has no names stand among arguments, in `chopper`, from "
    "where no reader takes them as such.",
)
SERIES = Fault(
    "series-by-name",
    Severity.INFO,
    "Series whose device, unit, tool, uncertainty or being of the node Kineto has no words for: a "
    "reader finds device and unit in their names alone, and the rest nowhere.",
)
ARROWS = (EdgeKind.LAUNCH, EdgeKind.FWDBWD)
_SEEN = (EdgeKind.CALL, EdgeKind.ORDER, EdgeKind.STREAM)
"""Edges that nesting and order show."""
WINDOW_NS = 7_889_238 * 10**9
"""``baseTimeNanoseconds`` is a multiple of this: three months as C++ counts them."""
_ENDINGS = (".json", ".json.gz")
_EVENTS_AT_A_TIME = 1 << 16
_CHUNK = 8 << 20
_TASK = "writing Kineto"
_MEMORY = "[memory]"
_UNLIKE_NCCL = "collective_comm"
"""Category of kernels that communicate and are not named like NCCL's."""
_PROBED = 1000
_SHARE_THAT_TELLS = 0.9
_MALFORMED = "malformed args"
_NODE_FILE = "node.json.gz"
"""What holds the node's telemetry, in a folder without any rank."""
_RANK_FILE = re.compile(r"rank\d+\.json\.gz")


def write(trace: Trace, path: Path) -> IssueLog:
    """Write a trace as PyTorch's profiler does.

    Parameters
    ----------
    trace
        Any trace.
    path
        ``….json`` or ``….json.gz`` for one file. Several ranks are fused in it: each has pids of
        its own, and its events say their ``rank`` and their own ``pid_raw``. Any other name is
        that of a folder, which gets a ``rank0.json.gz``, ``rank1.json.gz``, … as PyTorch writes
        them on each rank.

    Returns
    -------
    IssueLog
        How many dependencies have no arrow, how many counters and annotation columns stand among
        arguments, of how many series not all is told.
    """
    outputs.require_times(trace, path)
    issues = IssueLog("Kineto")
    told = [int(k) for k in (*ARROWS, *_SEEN)]
    issues.add(COUNTERS, trace.counters.num_rows)
    columns = without_names(trace)
    issues.add(COLUMNS, len(columns), ", ".join(columns))
    issues.add(SERIES, *_series_by_name(trace))
    issues.add(UNDRAWN, np.count_nonzero(~np.isin(trace.array("kind", "edges"), told)))
    progress.start(_TASK, trace.nodes.num_rows, "events")
    owners = trace.array("rank", "series")
    ranks = sorted({*trace.ranks, *(int(r) for r in owners[owners >= 0])})
    base = _base_ns(trace)
    if path.name.endswith(_ENDINGS):
        with outputs.file(path) as stream:
            _File(trace, ranks, base, stream).write(path.name, node=True)
        return issues
    with outputs.folder(path, owns=_is_ours) as folder:
        for rank in ranks:
            name = f"rank{rank}.json.gz"
            with outputs.file(folder / name) as stream:
                _File(_alone(trace, rank), [rank], base, stream).write(name, node=rank == ranks[0])
        if not ranks:
            with outputs.file(folder / _NODE_FILE) as stream:
                _File(trace, [], base, stream).write(_NODE_FILE, node=True)
    return issues


def _is_ours(path: Path) -> bool:
    named = path.name == _NODE_FILE or _RANK_FILE.fullmatch(path.name)
    return bool(named) and outputs.is_marked(path)


def _alone(trace: Trace, rank: int) -> Trace:
    """One rank of a trace, which may have telemetry only; all series are still there."""
    if rank in trace.ranks:
        return replace(trace.rank(rank), series=trace.series, samples=trace.samples)
    none = {name: getattr(trace, name).slice(0, 0) for name in ("nodes", "edges", "counters")}
    return replace(trace, **none)


def _base_ns(trace: Trace) -> int:
    """Start of the window of three months in which the first event lies."""
    starts = [int(trace.array("ts", t).min()) for t in ("nodes", "samples") if _rows(trace, t)]
    return (trace.meta.origin_ns + min(starts, default=0)) // WINDOW_NS * WINDOW_NS


def _rows(trace: Trace, table: str) -> int:
    return int(getattr(trace, table).num_rows)


class _File:
    """One file: some ranks of a trace."""

    def __init__(self, trace: Trace, ranks: list[int], base: int, stream: IO[bytes]) -> None:
        self.trace = trace
        self.ranks = ranks
        self.base = base
        self.shift = trace.meta.origin_ns - base
        self.stream = stream
        self.places = Places(trace, ranks)
        self.heads, self.head_of = _heads(trace)
        self.fixed = encode.Fixed(
            heads=encode.texts(self.heads),
            names=encode.texts(_json(name) for name in trace.names()),
            places=self.places.texts,
        )
        self.out = np.empty(_CHUNK, np.uint8)
        self.added = Added(trace, self.places, _correlations(trace), stated=self._stated())

    def write(self, name: str, *, node: bool) -> None:
        """Write everything; the node's own samples only if `node`."""
        self.stream.write(head(self.trace, self.ranks, self.base))
        series = [
            (row, about)
            for row, about in enumerate(self.trace.series.to_pylist())
            if about["rank"] in self.ranks or (about["rank"] < 0 and node)
        ]
        metadata = self.places.metadata(stated=self.added.stated)
        if any(about["rank"] < 0 for _, about in series) or not metadata:
            args = {"name": "node"}
            metadata.append(
                {"ph": "M", "name": "process_name", "pid": "node", "tid": 0, "args": args}
            )
        self.stream.write(b",\n".join(_json(event) for event in metadata))
        nodes = self.trace.nodes.num_rows
        for at in range(0, nodes, _EVENTS_AT_A_TIME):
            self._events(at, min(at + _EVENTS_AT_A_TIME, nodes))
        self._arrows()
        self._samples(series)
        self.stream.write(tail(name))

    def _stated(self) -> bool:
        """Whether a reader will tell ranks by what most events say of theirs in their arguments.

        So it is in a fused file, and in one with events that came out of such a file.
        """
        if self.places.fused:
            return True
        spans = np.flatnonzero(~self._moments(slice(None)))
        probe = spans[:: max(1, len(spans) // _PROBED)]
        at, length = (self.trace.array(c)[probe] for c in ("args_at", "args_len"))
        buffer, start = self.trace.text.block(at, length)
        _, found = jsonscan.extract(buffer, start, length, ("rank", "pid_raw"))
        return bool(probe.size) and bool(found.all(axis=0).mean() >= _SHARE_THAT_TELLS)

    def _moments(self, rows: slice) -> Array:
        """Which nodes are written as moments: not those that a reader would take for samples."""
        names = [name == _MEMORY for name in self.trace.names()]
        memory = np.array([*names, False])[self.trace.array("name")[rows]]
        instant = self.trace.array("kind")[rows] == Kind.INSTANT
        return np.asarray(instant & (self.trace.array("dur")[rows] == 0) & ~memory)

    def _events(self, start: int, stop: int) -> None:
        """Write the nodes from `start` to `stop`."""
        rows = slice(start, stop)
        moments = self._moments(rows)
        these = encode.Events(
            ts=self.trace.array("ts")[rows] + self.shift,
            dur=np.where(moments, -1, self.trace.array("dur")[rows]),
            head=np.where(moments, len(self.heads) - 1, self.head_of[rows]),
            name=np.array(self.trace.array("name")[rows], np.int64),
            place=np.array(self.places.of_node[rows], np.int64),
        )
        length = self.trace.array("args_len")[rows].astype(np.int64)
        buffer, at = self.trace.text.block(self.trace.array("args_at")[rows], length)
        arguments = encode.Arguments(_writable(buffer), np.array(at, np.int64), length)
        members = self.added.chunk(start, stop, arguments, moments)
        room = encode.rooms(0, stop - start, these, arguments, members, self.fixed)
        if room.max(initial=0) > len(self.out):
            self.out = np.empty(int(room.max()) + _CHUNK, np.uint8)
        done, last = 0, stop - start
        while done < last:
            size, done, status = encode.events(
                self.out, done, last, these, arguments, members, self.fixed, room
            )
            self.stream.write(self.out[:size].data)
            if status == encode.IMPROPER:
                self._repaired(done, these, arguments, members)
                done += 1
        progress.advance(_TASK, last)

    def _repaired(
        self, k: int, these: encode.Events, arguments: encode.Arguments, members: encode.Members
    ) -> None:
        """Write one event whose arguments others could not load, in a form that they can."""
        at, length = int(arguments.at[k]), int(arguments.length[k])
        raw = _proper(arguments.buffer[at : at + length].tobytes())
        arguments.at[k], arguments.length[k] = 0, len(raw)
        proper = arguments._replace(buffer=np.frombuffer(bytearray(raw), np.uint8))
        room = encode.rooms(k, k + 1, these, proper, members, self.fixed)
        out = np.empty(int(room[k]), np.uint8)
        size, _, _ = encode.events(out, k, k + 1, these, proper, members, self.fixed, room)
        self.stream.write(out[:size].data)

    def _arrows(self) -> None:
        """Write launches, and forward → backward, as arrows."""
        kind, src, dst = (self.trace.array(c, "edges") for c in ("kind", "src", "dst"))
        launch = np.flatnonzero(kind == EdgeKind.LAUNCH)
        calls, of_call = np.unique(src[launch], return_inverse=True)
        self._ends("s", "ac2g", np.arange(len(calls)), calls)
        self._ends("f", "ac2g", of_call, dst[launch])
        pairs = np.flatnonzero(kind == EdgeKind.FWDBWD)
        self._ends("s", "fwdbwd", np.arange(len(pairs)), src[pairs])
        self._ends("f", "fwdbwd", np.arange(len(pairs)), dst[pairs])

    def _ends(self, phase: str, category: str, ids: Array, nodes: Array) -> None:
        """Write the same end of many arrows."""
        more = {"bp": "e"} if phase == "f" else {}
        about = {"ph": phase, "cat": category, "name": category} | more
        begin = np.frombuffer(bytearray(b",\n" + _json(about)[:-1] + b","), np.uint8)
        place = np.array(self.places.of_node[nodes], np.int64)
        ts = self.trace.array("ts")[nodes] + self.shift
        ids = np.ascontiguousarray(ids, np.int64) + 1
        done = 0
        while done < len(nodes):
            size, done = encode.arrows(self.out, done, begin, ids, place, ts, self.places.texts)
            self.stream.write(self.out[:size].data)

    def _samples(self, series: list[tuple[int, dict[str, Any]]]) -> None:
        """Write samples as counter events."""
        owner = self.trace.array("series", "samples")
        ts = self.trace.array("ts", "samples") + self.shift
        value = self.trace.array("value", "samples")
        for (row, about), name in zip(series, _series_names(series), strict=True):
            start, stop = np.searchsorted(owner, [row, row + 1]).tolist()
            pid = self.places.hosts[about["rank"]] if about["rank"] >= 0 else "node"
            begin = _json({"ph": "C", "name": name, "pid": pid})[:-1]
            prefix = np.frombuffer(bytearray(b",\n" + begin), np.uint8)
            for at in range(start, stop, _EVENTS_AT_A_TIME):
                here = slice(at, min(at + _EVENTS_AT_A_TIME, stop))
                texts, done = numbers(value[here]), 0
                while done < here.stop - here.start:
                    size, done = encode.samples(self.out, done, prefix, ts[here], texts)
                    self.stream.write(self.out[:size].data)


def _heads(trace: Trace) -> tuple[list[bytes], Array]:
    """How events begin, by kind; and which of these beginnings each node has."""
    heads = [
        b',\n{"ph":"X","cat":%b,"name":' % _json(category)
        for category in (*CATEGORY_OF.values(), _UNLIKE_NCCL)
    ]
    of_kind = np.zeros(256, np.int64)
    of_kind[[int(kind) for kind in CATEGORY_OF]] = np.arange(len(CATEGORY_OF))
    kind = trace.array("kind")
    chosen = of_kind[kind]
    chosen[(kind == Kind.COMM) & ~comm_named(trace)] = len(heads) - 1
    moment = b',\n{"ph":"i","s":"t","cat":%b,"name":' % _json(CATEGORY_OF[Kind.INSTANT])
    return [*heads, moment], chosen


def _series_by_name(trace: Trace) -> tuple[int, str]:
    """How many series Kineto cannot tell whole, and the name of one."""
    plain = {"device": -1, "unit": "", "source": kineto_samples.SOURCE, "uncertainty_ns": 0}
    names = [
        about["name"]
        for about in trace.series.to_pylist()
        if about["rank"] < 0 or any(about[key] != value for key, value in plain.items())
    ]
    return len(names), next(iter(names), "")


def _series_names(series: list[tuple[int, dict[str, Any]]]) -> list[str]:
    """Names that say of what device and in what unit; no two of one rank are alike."""
    names: list[str] = []
    taken: dict[tuple[int, str], int] = {}
    for _, about in series:
        rank, device, unit = about["rank"], about["device"], about["unit"]
        parts = ["node"] * (rank < 0) + [f"GPU {device}"] * (device >= 0)
        parts += [about["name"]] * bool(about["name"]) + [f"({unit})"] * bool(unit)
        name = " ".join(parts)
        if (rank, name) in taken:
            name = f"{name} by {about['source']}"
        taken[rank, name] = turn = taken.get((rank, name), 0) + 1
        names.append(name if turn == 1 else f"{name} #{turn}")
    return names


def _correlations(trace: Trace) -> Array:
    """Correlation ids by which a reader finds the same launches again.

    They are the hub's own, and fresh ones where these tell nothing or something else.
    """
    correlation = trace.array("correlation").copy()
    kind = trace.array("kind")
    tied = is_any(kind, TIED)
    correlation[~tied] = -1
    call = trace.launch
    work = np.flatnonzero(is_any(kind, GPU_WORK))
    of_call = is_any(kind, CALLS)
    rank = trace.array("rank")
    told = (call[work] >= 0) & of_call[call[work]] & (rank[work] == rank[call[work]])
    wanted = np.where(told, call[work], -1)
    while True:
        found = _as_read(trace, correlation)[work]
        wrong = np.flatnonzero(found != wanted)
        if not wrong.size:
            return correlation
        fresh = max(int(correlation.max(initial=0)), 0) + 1
        owner = np.unique(wanted[wrong][wanted[wrong] >= 0])
        correlation[owner] = fresh + np.arange(len(owner))
        launched = np.isin(wanted, owner)
        correlation[work[launched]] = correlation[wanted[launched]]
        alone = wrong[wanted[wrong] < 0]
        correlation[work[alone]] = fresh + len(owner) + np.arange(len(alone))


def _as_read(trace: Trace, correlation: Array) -> Array:
    """For each node, the call that a reader will take for its launch, given these ids."""
    kind = np.array(trace.array("kind"))
    kind[(kind == Kind.KERNEL) & comm_named(trace)] = Kind.COMM
    nodes = trace.nodes
    for name, values in (("kind", kind), ("correlation", correlation)):
        nodes = arrow.replaced(nodes, name, values)
    src, dst = kineto_links.launches(replace(trace, nodes=nodes), IssueLog())
    call = np.full(trace.nodes.num_rows, -1, np.int64)
    call[dst] = src
    return call


def _proper(raw: bytes) -> bytes:
    """Arguments that are no proper JSON as proper JSON, with what can be told of them."""
    text = raw.decode("utf-8", "replace")
    try:
        value = json.loads(text, parse_constant=str, strict=False)
        return _json(value) if isinstance(value, dict) else _json({_MALFORMED: text})
    except (ValueError, RecursionError):
        return _json({_MALFORMED: text})


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _writable(buffer: Array) -> Array:
    """The buffer itself, unless numba would compile its functions again for it."""
    return buffer if buffer.flags.writeable else buffer.copy()
